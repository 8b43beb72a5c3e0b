"""A run in numbers, all of them from its records: a killed process leaves no summary of its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .calls import Call
from .digest_cache import digests
from .filters import Filters
from .runs import Run
from .segments import Damage
from .trees import Reading, Trajectory, iter_trajectories

__all__ = ["ClockDifference", "Summary", "summarise"]


@dataclass
class ClockDifference:
    """What calls that began before their parents say of two clocks. `seconds`: at least so much."""

    seconds: float = 0.0
    calls: int = 0


@dataclass
class Summary:
    """Counts of one run. `trajectories` are call trees, `skipped` those that sampling left out."""

    trajectories: int = 0
    calls: int = 0
    errors: int = 0
    unfinished: int = 0
    orphans: int = 0
    skipped: int = 0
    lost: int = 0
    duplicates: int = 0
    first: str = ""
    last: str = ""
    steps: set[Any] = field(default_factory=set)
    per_attempt: Counter[str] = field(default_factory=Counter)
    damages: list[Damage] = field(default_factory=list)
    unknown_kinds: dict[str, int] = field(default_factory=dict)
    # trajectories whose reward is a finite number, and those rewards
    rewarded: int = 0
    reward_sum: float = 0.0
    reward_min: float | None = None
    reward_max: float | None = None
    unscored: int = 0
    unjoined_scores: int = 0
    # by (node of the call, node of its parent): how its clock is behind the other's at least, and by how many calls
    clocks: dict[tuple[str, str], ClockDifference] = field(default_factory=dict)

    @property
    def reward_mean(self) -> float | None:
        """Mean reward of the trajectories that have one; None where none has."""
        return self.reward_sum / self.rewarded if self.rewarded else None

    def add(self, trajectory: Trajectory) -> None:
        """Count one trajectory."""
        self.trajectories += 1
        self._add_reward(trajectory)
        for call in trajectory.calls:
            self.calls += 1
            self.errors += call.status == "error"
            self.unfinished += call.unfinished
            self.orphans += call.orphan
            self.last = max(self.last, call.ended_at or call.last_seen_at)
            if call.clock_skew > 0:
                self._add_skew(call, trajectory)
            if call.started_at:
                self.first = min(self.first or call.started_at, call.started_at)
        if trajectory.calls:
            self.per_attempt[trajectory.calls[0].writer.attempt] += 1
            step = trajectory.calls[0].head.get("step")
            if isinstance(step, (int, float, str)):
                self.steps.add(step)

    def _add_skew(self, call: Call, trajectory: Trajectory) -> None:
        parent = next((other for other in trajectory.calls if other.id == call.parent_id), None)
        if parent is not None:
            found = self.clocks.setdefault((call.writer.node, parent.writer.node), ClockDifference())
            found.seconds = max(found.seconds, call.clock_skew)
            found.calls += 1

    def _add_reward(self, trajectory: Trajectory) -> None:
        reward = trajectory.reward
        if reward is not None and math.isfinite(reward):
            self.rewarded += 1
            self.reward_sum += reward
            self.reward_min = reward if self.reward_min is None else min(self.reward_min, reward)
            self.reward_max = reward if self.reward_max is None else max(self.reward_max, reward)
        elif trajectory.score_status is not None:
            self.unscored += 1


def summarise(run: Run, filters: Filters | None = None, seen: Callable[[Trajectory], None] | None = None) -> Summary:
    """Read a whole run once and count; `seen` is given every trajectory that is counted, without payloads.

    Raises:
        BadFilter: an attempt that the run does not have.
    """
    summary, reading = Summary(), Reading()
    filters = filters.of_run(run.attempts) if filters is not None else Filters()
    for trajectory in iter_trajectories(run, reading, source=digests):
        if filters.trajectory(trajectory):
            summary.add(trajectory)
            if seen is not None:
                seen(trajectory)
    summary.skipped = reading.skipped
    summary.lost = reading.lost_records
    summary.duplicates = reading.duplicates
    summary.damages = reading.damages
    summary.unknown_kinds = reading.unknown_kinds
    summary.unjoined_scores = reading.unjoined_scores
    return summary
