"""A GRPO group in figures: the rollouts of one prompt, which verl compares with each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["Group", "figures", "number"]


class Group(NamedTuple):
    """A trajectory's place in its group, which is whole: every rollout of it has a reward.

    Attributes:
        size: rollouts in the group.
        mean: of their rewards.
        std: standard deviation of the sample, as verl's advantages take it; 0.0 in a group of one.
        best: the highest reward.
        rank: 1 for the highest reward; equal rewards share the better rank.
    """

    size: int
    mean: float
    std: float
    best: float
    rank: int


def figures(rewards: Iterable[float], mine: float) -> Group | None:
    """The figures for one who has the reward `mine` among `rewards`; None where one of them is no finite number."""
    values = list(rewards)
    if not values or not all(map(math.isfinite, values)):
        return None
    mean = math.fsum(values) / len(values)
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return Group(len(values), mean, std, max(values), 1 + sum(value > mine for value in values))


def number(value: Any) -> float | None:
    """A recorded value as a number, also one that JSON has no form for (nan, inf); None where it is none."""
    if isinstance(value, dict) and value.get("_type") in ("float", "int"):
        value = value.get("value")
        if not isinstance(value, (int, float, str)):
            return None
    elif not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
