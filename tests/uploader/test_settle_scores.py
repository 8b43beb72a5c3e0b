"""Trajectories of a training that goes on, and whose rewards come late: none is sent without its reward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
from verl_trace.demo.server_env import Server
from verl_trace.recorder import session as sessions
from verl_trace.recorder.context import current_attributes
from verl_trace.recorder.score import Join, write_scores
from verl_trace.uploader import settle, upload
from verl_trace.uploader.result import ALREADY_STORED, WAITS_FOR_SCORE

DAY = 86400.0


@rollout_trace_op
def run(sample: int) -> int:
    return sample


class Training:
    """This process records, and is alive; scores are told when the test says so."""

    def __init__(self) -> None:
        self.traces: dict[tuple[int, int], Any] = {}

    def roll(self, sample: int, n: int) -> None:
        """One rollout, without a score."""
        with rollout_trace_attr(step=1, sample_index=sample, rollout_n=n):
            run(sample)
            self.traces[sample, n] = current_attributes.get()

    def tell(self, sample: int, n: int, reward: float | None) -> None:
        """The agent loop's record; without a reward it says that one is to come."""
        session, trace = sessions.current(), self.traces[sample, n]
        assert session is not None
        join = Join(uid=f"group-{sample}", group_size=2, session=n)
        scores = {} if reward is None else {"reward": reward}
        write_scores(session, scores, source="agent_loop", trace=trace, trace_id=trace.place.root.trace_id, join=join)


@pytest.fixture
def training(tmp_path: Path, project: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    """A recording that is not closed before the test ends."""
    monkeypatch.setenv("VERL_TRACE_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("VERL_TRACE_MIN_FREE", "0")
    RolloutTraceConfig.init(f"demo/{project}", "exp1", "jsonl")
    yield Training()
    RolloutTraceConfig.reset()


def rewards(rows: dict[str, Any]) -> list[tuple[float, int]]:
    return sorted((row["attributes"]["reward"], row["attributes"]["group_rank"]) for row in rows.values())


def test_rewards_come_first(
    wandb_login: Server, training: Training, project: str, stored: Callable[[str], Any], tmp_path: Path
) -> None:
    """Before any score is told, after one of a group, after both: only whole groups with their figures are sent."""
    for sample in (0, 1):
        for n in (0, 1):
            training.roll(sample, n)
    before = upload(tmp_path / "runs", settle=DAY)
    training.tell(0, 0, 0.25)
    training.tell(1, 0, None)
    half = upload(tmp_path / "runs", settle=DAY)
    training.tell(0, 1, 0.75)
    group = upload(tmp_path / "runs", settle=DAY)

    assert [(result.sent, result.skipped[WAITS_FOR_SCORE]) for result in (before, half)] == [(0, 4), (0, 4)]
    assert (group.sent, group.skipped[WAITS_FOR_SCORE]) == (2, 2)
    assert rewards(stored(project)) == [(0.25, 2), (0.75, 1)]

    training.tell(1, 0, -1.0)
    training.tell(1, 1, 1.0)
    rest = upload(tmp_path / "runs", settle=DAY)
    assert (rest.sent, rest.skipped[ALREADY_STORED]) == (2, 2)
    assert rewards(stored(project)) == [(-1.0, 2), (0.25, 2), (0.75, 1), (1.0, 1)]


def test_nothing_waits_for_ever(
    wandb_login: Server, training: Training, project: str, stored: Callable[[str], Any], tmp_path: Path
) -> None:
    """A reward that never comes: the trajectory goes without it after `settle`, or with the end of its attempt."""
    training.roll(0, 0)
    training.roll(0, 1)
    training.tell(0, 0, 0.5)
    waiting = upload(tmp_path / "runs", settle=DAY)
    patience = upload(tmp_path / "runs", settle=0.0)

    assert (waiting.sent, patience.sent) == (0, 2)
    assert sorted(row["attributes"].get("reward", -1) for row in stored(project).values()) == [-1, 0.5]

    training.roll(1, 0)
    RolloutTraceConfig.reset()
    ended = upload(tmp_path / "runs", settle=DAY)
    assert ended.sent == 1


def test_a_training_without_scores(
    wandb_login: Server, training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no score was told for a while, none is waited for."""
    training.roll(0, 0)
    assert upload(tmp_path / "runs", settle=DAY).sent == 0
    monkeypatch.setattr(settle, "SCORE_LAG", 0.0)
    assert upload(tmp_path / "runs", settle=DAY).sent == 1
