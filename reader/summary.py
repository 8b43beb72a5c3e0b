"""A run in numbers, all of them from its records: a killed process leaves no summary of its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .filters import Filters
from .outline import Outline
from .outlines import iter_outlines
from .runs import Run
from .segments import Damage
from .trees import Reading

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
    lost_by: Counter[str] = field(default_factory=Counter)
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

    def add(self, outline: Outline) -> None:
        """Count one trajectory."""
        figures = outline.figures
        self.trajectories += 1
        self._add_reward(outline)
        self.calls += figures.calls
        self.errors += figures.errors
        self.unfinished += figures.unfinished
        self.orphans += outline.orphans
        if outline.skewed:
            self._add_skew(outline)
        self.last = max(self.last, figures.last, outline.last_seen_at)
        if figures.first:
            self.first = min(self.first or figures.first, figures.first)
        self.per_attempt[outline.attempt] += 1
        step = figures.place.head.get("step")
        if isinstance(step, (int, float, str)):
            self.steps.add(step)

    def _add_skew(self, outline: Outline) -> None:
        known = {call.id: call for call in outline.calls}
        for call in outline.calls:
            parent = known.get(call.parent_id or "")
            if call.clock_skew > 0 and parent is not None:
                found = self.clocks.setdefault((call.writer.node, parent.writer.node), ClockDifference())
                found.seconds = max(found.seconds, call.clock_skew)
                found.calls += 1

    def _add_reward(self, trajectory: Outline) -> None:
        reward = trajectory.reward
        if reward is not None and math.isfinite(reward):
            self.rewarded += 1
            self.reward_sum += reward
            self.reward_min = reward if self.reward_min is None else min(self.reward_min, reward)
            self.reward_max = reward if self.reward_max is None else max(self.reward_max, reward)
        elif trajectory.score_status is not None:
            self.unscored += 1


def summarise(run: Run, filters: Filters | None = None, seen: Callable[[Outline], None] | None = None) -> Summary:
    """Read a whole run once and count; `seen` is given every trajectory that is counted, in outline.

    Raises:
        BadFilter: an attempt that the run does not have.
    """
    summary, reading = Summary(), Reading()
    filters = filters.of_run(run.attempts) if filters is not None else Filters()
    for outline in iter_outlines(run, reading):
        if filters.trajectory(outline):
            summary.add(outline)
            if seen is not None:
                seen(outline)
    summary.skipped = reading.skipped
    summary.lost, summary.lost_by = reading.lost_records, reading.lost_by
    summary.duplicates = reading.duplicates
    summary.damages = reading.damages
    summary.unknown_kinds = reading.unknown_kinds
    summary.unjoined_scores = reading.unjoined_scores
    return summary
