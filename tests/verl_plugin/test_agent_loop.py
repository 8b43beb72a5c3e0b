"""What is added to verl's agent-loop worker: uid, and on the default trainer tracing with its numbers and its limit."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from verl_trace.recorder.context import extra_attributes
from verl_trace.verl_plugin import agent_loop


class Scalar:
    """Like a number in a tensor."""

    def __init__(self, value: int) -> None:
        self.value = value

    def item(self) -> int:
        return self.value


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """verl's configuration object while a recording is active."""
    config = SimpleNamespace(max_samples_per_step_per_worker=None)
    monkeypatch.setattr(agent_loop, "recording", lambda: True)
    return config


def workers(config: SimpleNamespace) -> tuple[Any, Any, ModuleType]:
    """A worker of each kind whose `_run_agent_loop` returns what it was given, and their module."""

    class AgentLoopWorker:
        async def _run_agent_loop(
            self, sampling_params: Any, trajectory: Any, *, agent_name: str, trace: bool = True, **kwargs: Any
        ) -> dict[str, Any]:
            return {**trajectory, "trace": trace, "kwargs": kwargs, "extra": extra_attributes.get()}

    class AgentLoopWorkerTQ(AgentLoopWorker):
        pass

    async def get_trajectory_info(step: Any, index: Any, validate: bool) -> list[dict[str, Any]]:
        return [{"step": step, "sample_index": i, "rollout_n": 0, "validate": validate} for i in index]

    module = ModuleType("agent_loop")
    module.AgentLoopWorker = AgentLoopWorker  # type: ignore[attr-defined]
    module.get_trajectory_info = get_trajectory_info  # type: ignore[attr-defined]
    module.RolloutTraceConfig = SimpleNamespace(get_instance=lambda: config)  # type: ignore[attr-defined]
    agent_loop.replace(module)
    return AgentLoopWorker(), AgentLoopWorkerTQ(), module


def test_uid_is_recorded_where_there_is_one(limit: SimpleNamespace) -> None:
    """The group's name becomes an attribute of the trajectory, as text, and of no other."""
    v0, _, _ = workers(limit)
    trajectory = {"step": 1, "sample_index": 2, "rollout_n": 3, "validate": False}

    async def roll() -> tuple[Any, Any, Any]:
        with_uid = await v0._run_agent_loop({}, trajectory, agent_name="a", uid=7)
        left = extra_attributes.get()
        return with_uid, left, await v0._run_agent_loop({}, trajectory, agent_name="a", trace=False)

    with_uid, left, without = asyncio.run(roll())

    assert with_uid == {**trajectory, "trace": True, "kwargs": {"uid": 7}, "extra": {"uid": "7"}}
    assert without == {**trajectory, "trace": False, "kwargs": {}, "extra": None}
    assert left is None


def test_default_trainer_is_traced(limit: SimpleNamespace) -> None:
    """The default trainer's worker is traced with the session's number, and with plain numbers out of tensors."""
    _, tq, _ = workers(limit)
    trajectory = {"step": Scalar(1), "sample_index": Scalar(2), "rollout_n": 0, "validate": True}
    found = asyncio.run(
        tq._run_agent_loop({}, trajectory=trajectory, trace=False, session_id=5, agent_name="a", uid="u")
    )

    assert found["trace"] is True
    assert (found["step"], found["sample_index"], found["rollout_n"], found["validate"]) == (1, 2, 5, True)
    assert found["kwargs"] == {"session_id": 5, "uid": "u"}
    assert trajectory["rollout_n"] == 0


def test_nothing_changes_without_a_recording(limit: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another backend the default trainer goes untraced, as verl has it."""
    monkeypatch.setattr(agent_loop, "recording", lambda: False)
    limit.max_samples_per_step_per_worker = 1
    _, tq, module = workers(limit)
    found = asyncio.run(module.get_trajectory_info(1, [4, 4, 5], False))
    result = asyncio.run(
        tq._run_agent_loop({}, trajectory=found[0], trace=False, session_id=5, agent_name="a", uid="u")
    )

    assert [type(trajectory) for trajectory in found] == [dict] * 3
    assert (result["trace"], result["rollout_n"], result["extra"]) == (False, 0, None)


@pytest.mark.parametrize(("most", "kept"), [(0, 0), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_limit_keeps_whole_samples(limit: SimpleNamespace, most: int, kept: int) -> None:
    """At most so many samples of a call are traced, each with all its rollouts."""
    limit.max_samples_per_step_per_worker = most
    _, tq, module = workers(limit)
    index = [Scalar(i) for i in (4, 5, 6, 4, 5, 6)]

    async def roll() -> Counter[int]:
        trajectories = await module.get_trajectory_info(1, index, False)
        done = [
            await tq._run_agent_loop({}, trajectory=t, agent_name="a", trace=False, session_id=0) for t in trajectories
        ]
        return Counter(result["sample_index"] for result in done if result["trace"])

    assert sorted(asyncio.run(roll()).values()) == [2] * kept


def test_choice_is_random_and_of_its_own(limit: SimpleNamespace) -> None:
    """Over many steps every sample is chosen some time, and the program's own random numbers stay the same."""
    limit.max_samples_per_step_per_worker = 1
    _, _, module = workers(limit)
    random.seed(7)
    expected = random.random()
    random.seed(7)
    chosen = set()
    for step in range(200):
        found = asyncio.run(module.get_trajectory_info(step, [1, 2, 3], False))
        chosen |= {trajectory["sample_index"] for trajectory in found if trajectory.traced}

    # each of three is missed by 200 draws once in 10^35
    assert chosen == {1, 2, 3}
    assert random.random() == expected


def test_trouble_of_ours_stays_ours(limit: SimpleNamespace, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A trajectory that does not look as expected runs as verl called it; one line says what happened."""
    _, tq, _ = workers(limit)
    found = asyncio.run(tq._run_agent_loop({}, trajectory={"step": 1}, trace=False, session_id=0, agent_name="a"))

    assert found["trace"] is False
    assert "KeyError" in capsys.readouterr().err
