"""A trajectory's scores under flat names: for filters, listings, exports, and as attributes in Weave.

| name | from |
| --- | --- |
| `reward` | the reward |
| `num_turns`, `tool_rewards`, `turn_scores` | what the agent loop says |
| `reward_extra_NAME` | `reward_extra_info[NAME]`; `reward_extra_A_B` for a dict under A |
| `score_NAME` | `record_score(NAME, …)` |
| `group_reward_mean`, `group_reward_std`, `group_reward_best`, `group_rank`, `group_size` | its GRPO group, if whole |

Characters that would split a column's path become `_`. Where two names meet, the later one gets `_2`, `_3`, …
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import Any, Protocol

from .groups import Group

__all__ = ["SCORE_NAMES", "flat_scores"]

_PLAIN = ("reward", "num_turns", "tool_rewards", "turn_scores")
# Those that are the same in every run that has them.
SCORE_NAMES = (*_PLAIN, "group_reward_mean", "group_reward_std", "group_reward_best", "group_rank", "group_size")
_UNSAFE = re.compile(r"[^\w-]+")
# Deeper than any real extra; what lies below stays one value.
_MAX_DEPTH = 4
# A tagged number that JSON has no form for, as the recorder writes it.
_NUMBER = {"_type", "value"}


class Scored(Protocol):
    """A trajectory, or its outline."""

    @property
    def scores(self) -> dict[str, Any]: ...

    @property
    def group(self) -> Group | None: ...


def flat_scores(trajectory: Scored, taken: Container[str]) -> dict[str, Any]:
    """Name -> value, beside names that are `taken` already; {} where there are no scores."""
    out: dict[str, Any] = {}
    for name, value in _named(trajectory):
        unique, count = name, 1
        while unique in out or unique in taken:
            count += 1
            unique = f"{name}_{count}"
        out[unique] = value
    return out


def _named(trajectory: Scored) -> Iterator[tuple[str, Any]]:
    scores = trajectory.scores
    for name in _PLAIN:
        if name in scores:
            yield from _flat(name, scores[name], 0)
    group = trajectory.group
    if group is not None:
        yield "group_reward_mean", group.mean
        yield "group_reward_std", group.std
        yield "group_reward_best", group.best
        yield "group_rank", group.rank
        yield "group_size", group.size
    extras = scores.get("reward_extra_info")
    if isinstance(extras, dict):
        for name, value in extras.items():
            yield from _flat(f"reward_extra_{name}", value, 0)
    elif extras is not None:
        yield "reward_extra_info", extras
    for name, value in scores.items():
        if name not in _PLAIN and name != "reward_extra_info":
            yield from _flat(f"score_{name}", value, 0)


def _flat(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and set(value) == _NUMBER:
        yield _safe(name), value["value"]
    elif isinstance(value, dict) and value and depth < _MAX_DEPTH:
        for inner, of_inner in value.items():
            yield from _flat(f"{name}_{inner}", of_inner, depth + 1)
    else:
        yield _safe(name), value


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name)
