"""Scores of verl's agent-loop workers, in the shapes that its versions have; verl sees nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import orjson
import pytest

from verl_trace.schemas.lines import parse_line
from verl_trace.verl_plugin import agent_loop, extra

Records = Callable[..., list[dict[str, Any]]]
TRAJECTORY = {"step": 3, "sample_index": 7, "rollout_n": 1, "validate": False}


class Output:
    """Like `AgentLoopOutput`."""

    def __init__(self, reward_score: Any = None) -> None:
        self.prompt_ids, self.response_ids = [1, 2], [3]
        self.reward_score = reward_score
        self.num_turns = 4
        self.extra_fields: dict[str, Any] = {"tool_rewards": [0.5], "turn_scores": [], "raw_prompt": "long"}


class Reward:
    """Like the handle of a reward worker."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def ask(self) -> Any:
        await asyncio.sleep(0)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture
def records(verl: Any, tmp_path: Path) -> Records:
    """verl initialised for the recorder; records so far by kind."""

    def read(*kinds: str) -> list[dict[str, Any]]:
        lines = [parse_line(line) for p in (tmp_path / "e").glob("*.jsonl") for line in p.read_bytes().splitlines(True)]
        return [{**one.head, "payload": orjson.loads(one.payload or b"null")} for one in lines if one.kind in kinds]

    verl.RolloutTraceConfig.init("p", "e", "jsonl")
    return read


def worker(verl: Any, reward: Reward | None, *, tq: bool = False, scores: bool = True, own: Any = None) -> Any:
    """A worker as `verl.experimental.agent_loop.agent_loop` has it; without `scores` as in 0.6, which scores inline."""

    class Loop:
        @verl.rollout_trace_op  # type: ignore[untyped-decorator]
        async def run(self) -> Output:
            return Output(own)

    class AgentLoopWorker:
        _compute_score: Any

        def __init__(self) -> None:
            rollout = SimpleNamespace(val_kwargs={"n": 1}, get={"n": 2}.get)
            self.config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
            self.reward_loop_worker_handles = None if reward is None else [reward]

        async def _run_agent_loop(
            self, sampling_params: Any, trajectory: Any, *, agent_name: str, trace: bool = True, **kwargs: Any
        ) -> Any:
            with verl.rollout_trace_attr(**trajectory):
                output = await Loop().run()
                if scores:
                    await self._compute_score([output], kwargs=kwargs)
                elif reward is not None:
                    output.reward_score = (await reward.ask())["reward_score"]
                return None if tq else output

    async def _compute_score(self: Any, outputs: list[Output], kwargs: Any) -> None:
        """verl's, reduced."""
        output = outputs[-1]
        if output.reward_score is None and self.reward_loop_worker_handles is not None:
            result = await self.reward_loop_worker_handles[0].ask()
            output.reward_score = result["reward_score"]
            output.extra_fields["reward_extra_info"] = result["reward_extra_info"]

    if scores:
        AgentLoopWorker._compute_score = _compute_score
    cls = type("AgentLoopWorkerTQ", (AgentLoopWorker,), {}) if tq else AgentLoopWorker
    module = ModuleType("agent_loop")
    module.AgentLoopWorker = AgentLoopWorker  # type: ignore[attr-defined]
    module.get_trajectory_info = None  # type: ignore[attr-defined]
    module.RolloutTraceConfig = verl.RolloutTraceConfig  # type: ignore[attr-defined]
    agent_loop.replace(module)
    return cls()


def play(of: Any, **kwargs: Any) -> Any:
    """One rollout."""
    given = {"uid": "g", "reward_model": {"ground_truth": "42"}, "data_source": "d", **kwargs}
    return asyncio.run(of._run_agent_loop({}, TRAJECTORY, agent_name="a", **given))


def test_scored_by_a_reward_worker(verl: Any, records: Records) -> None:
    """One record with everything, of the root's trajectory; the scoring call is the root's child."""
    answer = {"reward_score": 0.5, "reward_extra_info": {"acc": True, "odd": print}}
    output = play(worker(verl, Reward(answer)))
    (score,) = records("score")
    root, scoring = records("start")
    end = records("end")[1]

    assert output.reward_score == 0.5
    assert score["payload"]["reward"] == 0.5
    assert score["payload"]["reward_extra_info"]["acc"] is True
    assert (score["payload"]["num_turns"], score["payload"]["tool_rewards"]) == (4, [0.5])
    assert (score["trace_id"], score["source"], score["status"]) == (root["id"], "reward_worker", "scored")
    assert (score["uid"], score["group_size"], score["step"], score["sample_index"]) == ("g", 2, 3, 7)
    assert scoring["op"].endswith("_compute_score")
    assert (scoring["parent_id"], scoring["trace_id"]) == (root["id"], root["id"])
    assert scoring["payload"] == {"data_source": "d", "ground_truth": "42"}
    assert end["payload"]["reward_score"] == 0.5


def test_scoring_that_fails(verl: Any, records: Records) -> None:
    """verl's caller gets the very exception; the record says failed, and by what."""
    error = ValueError("no reward")
    with pytest.raises(ValueError, match="no reward") as raised:
        play(worker(verl, Reward(error)))
    (score,) = records("score")

    assert raised.value is error
    assert (score["status"], score["payload"]["reward"]) == ("failed", None)
    assert score["exception"] == {"type": "ValueError", "message": "no reward"}
    assert [end["status"] for end in records("end")] == ["success", "error"]


def test_a_reward_that_the_loop_set(verl: Any, records: Records) -> None:
    """No scoring call: there was none."""
    assert play(worker(verl, Reward({}), own=0.25)).reward_score == 0.25
    (score,) = records("score")
    assert (score["source"], score["payload"]["reward"], len(records("start"))) == ("agent_loop", 0.25, 1)


def test_a_reward_that_the_trainer_will_compute(verl: Any, records: Records) -> None:
    """What there is is told, with what the trainer's record can be joined by."""
    play(worker(verl, None), priority=SimpleNamespace(item=lambda: 9))
    play(worker(verl, None, tq=True), session_id=1)
    v0, tq = records("score")
    assert [(s["status"], s["payload"]["num_turns"]) for s in (v0, tq)] == [("partial", 4)] * 2
    assert (v0["row"], v0["session"], len(v0["response"])) == (9, None, 16)
    assert (tq["row"], tq["session"], tq["rollout_n"]) == (None, 1, 1)


def test_verl_0_6_scores_inline(verl: Any, records: Records) -> None:
    """The record is made from what `_run_agent_loop` returns."""
    play(worker(verl, Reward({"reward_score": 2}), scores=False))
    (score,) = records("score")
    assert (score["payload"]["reward"], score["trace_id"]) == (2, records("start")[0]["id"])


def test_without_extra_calls_the_scores_stay(verl: Any, records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """VERL_TRACE_EXTRA=0: the tree is live tracing's."""
    monkeypatch.setenv(extra.VARIABLE, "0")
    play(worker(verl, Reward({"reward_score": 2, "reward_extra_info": {}})))
    assert [start["op"].rpartition(".")[2] for start in records("start")] == ["run"]
    assert [score["payload"]["reward"] for score in records("score")] == [2]


def test_without_a_recording_nothing_changes(verl: Any, tmp_path: Path) -> None:
    """verl's own backend: its results, and no file."""
    verl.RolloutTraceConfig.init("p", "e", "mlflow")
    verl.rollout_trace_attr = lambda **_: __import__("contextlib").nullcontext()
    assert play(worker(verl, Reward({"reward_score": 2, "reward_extra_info": {}}))).reward_score == 2
    assert not (tmp_path / "e").exists()


def test_a_root_around_run_and_scoring(verl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """VERL_TRACE_TREE=trajectory: run and scoring are children of one root, which has the scores."""
    monkeypatch.setenv("VERL_TRACE_TREE", "trajectory")
    verl.RolloutTraceConfig.init("p", "e", "jsonl")
    play(worker(verl, Reward({"reward_score": 0.5, "reward_extra_info": {}})))
    (path,) = (tmp_path / "e").glob("*.jsonl")
    lines = [parse_line(line) for line in path.read_bytes().splitlines(keepends=True)]
    root, run, scoring = (line.head for line in lines if line.kind == "start")
    (score,) = (line for line in lines if line.kind == "score")
    ends = [line for line in lines if line.kind == "end"]

    assert root["parent_id"] is None
    assert run["parent_id"] == scoring["parent_id"] == score.head["trace_id"] == root["id"]
    assert [end.head["id"] for end in ends] == [run["id"], scoring["id"], root["id"]]
    assert orjson.loads(ends[-1].payload)["reward"] == 0.5
