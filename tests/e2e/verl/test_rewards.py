"""Rewards in the files are those that verl's own batch or queue holds, each with its trajectory, whatever the reward
worker does; and how it was scored is in the tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from verl_trace.reader import Call, Trajectory, find_runs, iter_trajectories, summarise

pytestmark = pytest.mark.e2e

SIZES = {"workers": 2, "samples": 4, "n": 4, "steps": 2}
PLACE = ("step", "sample_index", "rollout_n", "validate")
# Rewards go through float32 tensors in verl.
FLOAT32 = 1e-6
SCORING, IN_WORKER = "AgentLoopWorker._compute_score", "RewardLoopWorker.compute_score"


class Scored(NamedTuple):
    """What verl has in the end, and the trajectories in the files."""

    report: dict[str, Any]
    trajectories: list[Trajectory]
    folder: Path

    def by_place(self) -> dict[tuple[Any, ...], Trajectory]:
        """(step, sample_index, rollout_n, validate) -> trajectory; unique in these runs."""
        found = {tuple(t.calls[0].head[name] for name in PLACE): t for t in self.trajectories}
        assert len(found) == len(self.trajectories)
        return found

    def of_question(self, number: int) -> list[Trajectory]:
        """All rollouts of one question."""
        return [t for t in self.trajectories if t.calls[0].head["sample_index"] == number]


Play = Callable[..., Scored]


@pytest.fixture(scope="module")
def play(drive: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Play one scene in a job of its own; equal ones once."""
    known: dict[str, Scored] = {}

    def once(worker: str, *, variables: dict[str, str] | None = None, **scene: Any) -> Scored:
        key = f"{worker} {variables} {scene}"
        if key not in known:
            folder = tmp_path_factory.mktemp("rewards")
            scenes = [{"worker": worker, "backend": "jsonl", "experiment": "exp", **scene}]
            environment = {"VERL_TRACE_EXTRA": "1", **(variables or {})}
            tool = "rollout_parts.CalculatorTool" if scene.get("colocated") else "actor_tool.ActorCalculator"
            plan = {"scenes": scenes, "variables": variables or {}, **SIZES}
            report = drive(folder, environment, "reward_driver.py", tool, **plan)
            (run,) = find_runs(folder / "runs")
            known[key] = Scored(report["exp"], list(iter_trajectories(run)), folder / "runs" / "exp")
        return known[key]

    return once


@pytest.fixture(params=["v0-worker", "v0-trainer", "tq-worker", "tq-trainer"])
def scored(request: pytest.FixtureRequest, play: Play) -> Scored:
    """Both agent-loop workers, scored in reward workers and in the trainer."""
    worker, _, where = request.param.partition("-")
    return play(worker, validate=True, colocated=where == "trainer")


@pytest.fixture(params=["v0", "tq"])
def in_workers(request: pytest.FixtureRequest, play: Play) -> Scored:
    """Both agent-loop workers, scored in reward workers."""
    return play(request.param, validate=True, colocated=False)


def test_rewards_are_verls(scored: Scored) -> None:
    """For every row of verl's: the trajectory of the same place has its reward, extras, turns and tool rewards."""
    rows = {tuple(row[name] for name in PLACE): row for row in scored.report["rows"]}
    assert scored.report["raised"] == []
    assert len(rows) == 2 * 4 * 4 + 2 * 4
    found = scored.by_place()
    assert found.keys() == rows.keys()
    for place, row in rows.items():
        trajectory = found[place]
        assert trajectory.scored
        assert trajectory.reward == pytest.approx(row["reward"], abs=FLOAT32)
        assert trajectory.scores["num_turns"] == row["num_turns"]
        assert trajectory.scores["tool_rewards"] == row["tool_rewards"]
        assert trajectory.scores["turn_scores"] == row["turn_scores"]
    assert len({row["reward"] for row in rows.values()}) > 30


def test_an_odd_extra_costs_itself_alone(scored: Scored) -> None:
    """A function among the extras is recorded as a name; the others are what they were."""
    for trajectory in scored.trajectories:
        extras = trajectory.scores["reward_extra_info"]
        assert extras["acc"] is (trajectory.reward is not None and trajectory.reward > 0.5)
        assert extras["format.ok"] == 1
        assert str(extras["odd"]).startswith("<")


def test_groups_are_verls(scored: Scored) -> None:
    """A group is one prompt's rollouts of one step; validation is apart. Its figures are those of verl's rewards."""
    rows = scored.report["rows"]
    for place, trajectory in scored.by_place().items():
        step, sample, _, validate = place
        mates = [r["reward"] for r in rows if (r["step"], r["sample_index"], r["validate"]) == (step, sample, validate)]
        group = trajectory.group
        assert group is not None
        assert (group.size, len(mates)) == ((1, 1) if validate else (4, 4))
        assert group.mean == pytest.approx(sum(mates) / len(mates), abs=FLOAT32)
        assert group.best == pytest.approx(max(mates), abs=FLOAT32)
        assert trajectory.reward is not None
        assert group.rank == 1 + sum(mate > trajectory.reward + FLOAT32 for mate in mates)


def test_the_scoring_call_is_in_the_tree(in_workers: Scored) -> None:
    """Below the root, with the reward worker's part below it from another process, and the user's own calls there."""
    for trajectory in in_workers.trajectories:
        calls = {call.id: call for call in trajectory.calls}
        (scoring,) = (call for call in trajectory.calls if call.op == SCORING)
        (there,) = (call for call in trajectory.calls if call.op == IN_WORKER)
        (judge,) = (call for call in trajectory.calls if call.op == "judge")
        root = trajectory.root
        assert root is not None
        assert root.op == "ToolAgentLoop.run"
        assert (scoring.parent_id, there.parent_id, judge.parent_id) == (root.id, scoring.id, there.id)
        assert scoring.writer is root.writer
        assert there.writer is judge.writer is not root.writer
        assert {call.attributes["uid"] for call in calls.values()} == {root.attributes["uid"]}
        assert {call.head["step"] for call in calls.values()} == {root.head["step"]}
        assert not any(call.orphan or call.unfinished or call.clock_skew for call in calls.values())
        assert scoring.duration is not None
        assert there.duration is not None
        assert scoring.duration >= there.duration
    assert len({call.writer.id for t in in_workers.trajectories for call in t.calls if call.op == IN_WORKER}) == 2


def actor_calls(trajectories: list[Trajectory]) -> list[tuple[Call, Call | None]]:
    """Each call of the tool, and what its actor did for it."""
    found: list[tuple[Call, Call | None]] = []
    for trajectory in trajectories:
        children = trajectory.children()
        for call in trajectory.calls:
            if call.op == "ActorCalculator.execute":
                below = children.get(call.id, [])
                assert len(below) < 2
                found.append((call, below[0] if below else None))
    return found


def test_a_tool_in_an_actor_is_in_the_tree(in_workers: Scored) -> None:
    """The actor's method below the tool's call, and what it calls itself below that, with inputs and outcome."""
    calls = actor_calls(in_workers.trajectories)
    assert len(calls) > 40
    assert Counter(call.status for call, _ in calls).keys() == {"success", "error"}
    for call, there in calls:
        assert there is not None
        assert (there.op, there.status) == ("Abacus.evaluate", call.status)
        assert there.writer is not call.writer
        assert set(orjson.loads(there.inputs or b"")) == {"expression"}
        if there.exception is not None:
            assert there.exception["type"] == "ZeroDivisionError"
    inner = [call for t in in_workers.trajectories for call in t.calls if call.op == "Abacus.compute"]
    assert {call.parent_id for call in inner} == {there.id for _, there in calls if there is not None}


def test_files_hold_one_attempt_and_no_trouble(scored: Scored) -> None:
    """The reward workers and the trainer record into the run of the rollouts; nothing is lost or joined to nobody."""
    (run,) = find_runs(scored.folder)
    summary = summarise(run)
    assert len(run.attempts) == 1
    assert (summary.damages, summary.lost, summary.orphans, summary.unjoined_scores, summary.unscored) == (
        [],
        0,
        0,
        0,
        0,
    )
    assert summary.rewarded == len(scored.report["rows"])
    rewards = [row["reward"] for row in scored.report["rows"]]
    assert summary.reward_mean == pytest.approx(sum(rewards) / len(rewards), abs=FLOAT32)
    assert summary.reward_min == pytest.approx(min(rewards), abs=FLOAT32)
    assert summary.reward_max == pytest.approx(max(rewards), abs=FLOAT32)


FAULTS = {"REWARD_FAULTS": '{"1": "raise", "2": "slow", "4": "die"}', "ABACUS_DIES_AT": "7"}


@pytest.fixture(params=["v0", "tq"])
def faulty(request: pytest.FixtureRequest, play: Play) -> Scored:
    """A reward function that raises for one question, is slow for another, and kills its process for a third."""
    return play(request.param, variables=FAULTS)


def scoring_calls(trajectories: list[Trajectory], op: str) -> list[Call]:
    """Calls of one name."""
    return [call for trajectory in trajectories for call in trajectory.calls if call.op == op]


def test_a_reward_that_raises(faulty: Scored) -> None:
    """verl fails as it does; the trajectories say that scoring failed, with the error in both processes."""
    assert len(faulty.report["raised"]) == 2
    failed = faulty.of_question(1)
    assert len(failed) == 4
    for trajectory in failed:
        assert (trajectory.scored, trajectory.score_status, trajectory.reward) == (True, "failed", None)
        assert trajectory.scores["num_turns"] > 0
        assert trajectory.group is None
        assert trajectory.root is not None
        assert trajectory.root.status == "success"
    for op in (SCORING, IN_WORKER):
        calls = scoring_calls(failed, op)
        assert Counter(call.status for call in calls) == {"error": 4}
        assert all("no reward for question 1" in str(call.exception) for call in calls)


def test_a_reward_that_is_slow(faulty: Scored) -> None:
    """The time is the scoring call's, not the root's."""
    slow = faulty.of_question(2)
    durations = [call.duration for call in scoring_calls(slow, SCORING)]
    assert len(durations) == 4
    assert all(duration is not None and duration > 0.5 for duration in durations)


def test_a_reward_worker_that_is_killed(faulty: Scored) -> None:
    """Its calls have no end and hang where they belong; the caller's say that the actor died."""
    killed = faulty.of_question(4)
    assert len(killed) == 4
    assert {trajectory.score_status for trajectory in killed} == {"failed"}
    assert {call.exception["type"] for call in scoring_calls(killed, SCORING) if call.exception} == {"ActorDiedError"}
    unfinished = [call for call in scoring_calls(killed, IN_WORKER) if call.unfinished]
    assert unfinished
    assert not any(call.orphan for trajectory in killed for call in trajectory.calls)
    assert {call.writer.state for call in unfinished} == {"torn"}


def test_a_tool_whose_actor_is_killed(faulty: Scored) -> None:
    """verl tells the model; in the tree the actor's call has no end, below the tool's call with its error."""
    killed = [(call, there) for call, there in actor_calls(faulty.of_question(7)) if call.status == "error"]
    assert killed
    for call, there in killed:
        assert call.exception is not None
        assert call.exception["type"].startswith("Actor")
        assert there is None or (there.unfinished and there.writer.state == "torn" and not there.orphan)
    assert any(there is not None for _, there in killed)
    # the job may end while a rollout still waits for the actor's restart
    assert all(t.root is not None and t.root.status in ("success", "unfinished") for t in faulty.of_question(7))
    assert not any(call.orphan for t in faulty.of_question(7) for call in t.calls)
