"""Tables of steps and of trajectories, as wide as there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..reader.steps import sort_key
from .text import cell_width, cut_to_width, human_seconds, plain_table, visible

__all__ = ["fitting_table", "place_of", "sorted_rows", "steps_table", "trajectories_table", "unique_prefix"]


def fitting_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None, *, left: int, spare: Sequence[str] = ()
) -> str:
    """A table whose first `left` columns are text. Of those named in `spare`, the last go while it is too wide."""
    names, cells = list(head), [list(row) for row in rows]
    while True:
        right = frozenset(range(left, len(names)))
        table = plain_table(names, cells, right=right)
        if columns is None or max(map(cell_width, table.splitlines())) <= columns:
            return table
        gone = next((name for name in reversed(spare) if name in names), None)
        if gone is None:
            return "\n".join(cut_to_width(row, columns) for row in table.splitlines())
        at = names.index(gone)
        left -= at < left
        for row in [names, *cells]:
            del row[at]


def steps_table(rows: Sequence[dict[str, Any]], columns: int | None) -> str:
    """One line a step; the attempt is told where there are several, the reward where one is known."""
    head = ["step", "traj", "calls", "err", "reward", "min", "max", "turns", "tokens", "p50", "p95", "tools", "failed"]
    cells = [
        [
            _step(row), f"{row['trajectories']}", f"{row['calls']}", f"{row['errors']}", _number(row["reward_mean"]),
            _number(row["reward_min"]), _number(row["reward_max"]), f"{row['turns']}", _large(row["tokens"]),
            human_seconds(row["duration_p50"]), human_seconds(row["duration_p95"]), f"{row['tool_calls']}",
            f"{row['tool_failures']}",
        ]
        for row in rows
    ]  # fmt: skip
    if not any(row["rewarded"] for row in rows):
        head, cells = _without(head, cells, ("reward", "min", "max"))
    return fitting_table(head, cells, columns, left=1, spare=("turns", "calls", "min", "max", "tools", "p95"))


def trajectories_table(
    facts: Sequence[dict[str, Any]], columns: int | None, attempts: Sequence[str], *, whole_run: bool = False
) -> str:
    """One line a trajectory; of a `whole_run`, each is named by as much of its id as tells it apart."""
    unique = unique_prefix([fact["trace_id"] for fact in facts]) if whole_run else None
    head = ["trajectory", "place", "status", "att", "reward", "turns", "tokens", "time", "err"]
    cells = [
        [
            visible(fact["trace_id"][:unique]), place_of(fact), fact["status"], _attempt(fact["attempt"], attempts),
            _number(fact.get("reward")), f"{fact['turns']}", _large(fact["tokens"]), human_seconds(fact["duration"]),
            f"{fact['errors']}",
        ]
        for fact in facts
    ]  # fmt: skip
    gone = [] if len(attempts) > 1 else ["att"]
    gone += [] if any(fact.get("reward") is not None for fact in facts) else ["reward"]
    head, cells = _without(head, cells, gone)
    return fitting_table(head, cells, columns, left=3, spare=("status", "err", "turns", "att"))


def place_of(facts: dict[str, Any]) -> str:
    """`3:7:0`, a selector; validation is marked by a `v` behind it."""
    words = ["-" if facts[name] is None else visible(facts[name]) for name in ("step", "sample_index", "rollout_n")]
    return ":".join(words) + (" v" if facts["validate"] else "")


def sorted_rows(facts: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Ordered by a fact, `-name` for the largest first; what lacks it comes last in both."""
    name, reverse = by.removeprefix("-"), by.startswith("-")
    known = [fact for fact in facts if fact.get(name) is not None]
    unknown = [fact for fact in facts if fact.get(name) is None]
    return sorted(known, key=lambda fact: sort_key(fact[name]), reverse=reverse) + unknown


def unique_prefix(ids: Sequence[str]) -> int:
    """How many characters of these ids tell them all apart, at least eight."""
    ordered = sorted(set(ids))
    longest = 7
    for one, other in pairwise(ordered):
        same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        longest = max(longest, same)
    return longest + 1


def _without(head: list[str], rows: list[list[str]], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    keep = [index for index, name in enumerate(head) if name not in names]
    return [head[index] for index in keep], [[row[index] for index in keep] for row in rows]


def _step(row: dict[str, Any]) -> str:
    step = "-" if row["step"] is None else visible(row["step"])
    return f"{step} v" if row["validate"] else step


def _attempt(attempt: str, attempts: Sequence[str]) -> str:
    return str(attempts.index(attempt) + 1) if attempt in attempts else "?"


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "-" if value is None else cut_to_width(visible(value), 12)
    return f"{value:.4g}"


def _large(value: int | None) -> str:
    if value is None:
        return "-"
    for limit, unit in ((10_000_000_000, "G"), (10_000_000, "M"), (10_000, "k")):
        if value >= limit:
            return f"{value / (limit / 10):.0f}{unit}" if value >= limit * 10 else f"{value / (limit / 10):.1f}{unit}"
    return str(value)
