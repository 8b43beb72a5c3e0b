"""A run step by step: what a training step's trajectories did, attempts apart.

Memory: some 16 bytes a trajectory, for percentiles that are exact.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .outline import Outline

__all__ = ["StepRow", "add_to_steps", "in_order", "number_of", "percentile", "sort_key"]


@dataclass
class StepRow:
    """The trajectories of one step in one attempt; `validate` ones are a row of their own."""

    attempt: str
    step: Any
    validate: bool
    trajectories: int = 0
    calls: int = 0
    errors: int = 0
    unfinished: int = 0
    tool_calls: int = 0
    tool_failures: int = 0
    turns: int = 0
    tokens: int = 0
    rewards: array[float] = field(default_factory=lambda: array("d"))
    durations: array[float] = field(default_factory=lambda: array("d"))

    def add(self, outline: Outline, facts: dict[str, Any]) -> None:
        """Count one trajectory in."""
        self.trajectories += 1
        self.calls += facts["calls"]
        self.errors += facts["errors"]
        self.turns += facts["turns"]
        self.tokens += facts["tokens"] or 0
        figures = outline.figures
        self.unfinished += figures.unfinished > 0
        self.tool_calls += figures.tools
        self.tool_failures += figures.tool_failures
        reward = number_of(facts.get("reward"))
        if reward is not None:
            self.rewards.append(reward)
        if facts["duration"] is not None:
            self.durations.append(facts["duration"])

    def as_json(self) -> dict[str, Any]:
        """The row as JSON values; what is not known is null."""
        rewards, durations = self.rewards, self.durations
        return {
            "attempt": self.attempt,
            "step": self.step,
            "validate": self.validate,
            "trajectories": self.trajectories,
            "calls": self.calls,
            "errors": self.errors,
            "unfinished": self.unfinished,
            "tool_calls": self.tool_calls,
            "tool_failures": self.tool_failures,
            "turns": self.turns,
            "tokens": self.tokens,
            "rewarded": len(rewards),
            "reward_mean": math.fsum(rewards) / len(rewards) if rewards else None,
            "reward_min": min(rewards) if rewards else None,
            "reward_max": max(rewards) if rewards else None,
            "duration_p50": percentile(durations, 50),
            "duration_p95": percentile(durations, 95),
        }


def add_to_steps(rows: dict[tuple[Any, ...], StepRow], outline: Outline, facts: dict[str, Any]) -> None:
    """Count a trajectory into its row, which is made when it is the first."""
    step, validate = facts["step"], bool(facts["validate"])
    # 1 and True are one key, 1 and "1" are not: a step is a number, but files may say anything
    key = (facts["attempt"], type(step).__name__, str(step), validate)
    row = rows.get(key)
    if row is None:
        row = rows[key] = StepRow(facts["attempt"], step, validate)
    row.add(outline, facts)


def in_order(rows: Iterable[StepRow], attempts: list[str]) -> list[StepRow]:
    """By attempt, step, training before validation."""
    place = {attempt: number for number, attempt in enumerate(attempts)}
    return sorted(rows, key=lambda row: (place.get(row.attempt, len(place)), sort_key(row.step), row.validate))


def sort_key(value: Any) -> tuple[int, float, str]:
    """Orders values of any types: numbers first, then text as text, nothing last."""
    number = number_of(value)
    if number is not None and not isinstance(value, bool):
        return 0, number, ""
    return (3, 0.0, "") if value is None else (1, 0.0, str(value))


def number_of(value: Any) -> float | None:
    """A finite number, None for anything else."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The value that `percent` of all do not exceed, interpolated; None of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
