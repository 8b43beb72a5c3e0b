"""The figures of a run as tables and bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..schemas.wording import counted
from .tables import fitting_table, steps_table, trajectories_table
from .text import human_seconds, visible

__all__ = ["bars", "histogram", "stats_text"]

_BAR = 30
_BINS = 10


def stats_text(stats: dict[str, Any], durations: Sequence[float], columns: int | None, *, boxes: bool = True) -> str:
    """Steps, ops, shares of the time, durations, trajectories that stand out."""
    if not stats["steps"]:
        return "no trajectories"
    attempts = [row["attempt"] for row in stats["attempts"]]
    parts = []
    for number, total in enumerate(stats["attempts"], 1):
        mine = [row for row in stats["steps"] if row["attempt"] == total["attempt"]]
        if len(attempts) > 1:
            parts.append(f"attempt {number} of {len(attempts)}, {visible(total['attempt'])}: {_counts(total)}")
        parts += [steps_table(mine, columns), ""]
    if len(attempts) > 1:
        everything = {key: sum(row[key] for row in stats["attempts"]) for key in ("trajectories", "calls", "errors")}
        parts += [f"all attempts: {_counts(everything)}", ""]
    parts += [_ops(stats["ops"], columns), ""]
    whole = math.fsum(stats["time"].values())
    if whole:
        parts.append("time of trajectories (they overlap each other)")
        rows = [(name, stats["time"][name], human_seconds(stats["time"][name])) for name in ("model", "tools", "rest")]
        parts += [bars(rows, whole, boxes=boxes), ""]
    if len(durations) > 1:
        parts += ["how long trajectories took", histogram(durations, boxes=boxes), ""]
    for title, name in (("slowest", "slowest"), ("most tokens", "longest")):
        if stats[name]:
            parts += [title, trajectories_table(stats[name], columns, attempts), ""]
    return "\n".join(parts).rstrip()


def _counts(total: dict[str, Any]) -> str:
    names = {"trajectories": "trajectory", "calls": "call", "errors": "error"}
    return ", ".join(counted(total[key], noun) for key, noun in names.items())


def _ops(ops: Sequence[dict[str, Any]], columns: int | None) -> str:
    head = ["op", "calls", "err", "open", "tokens", "p50", "p90", "p95", "p99", "max", "total"]
    rows = [
        [
            visible(row["op"]), f"{row['calls']}", f"{row['errors']}", f"{row['unfinished']}", f"{row['tokens']}",
            *(human_seconds(row[f"duration_{name}"]) for name in ("p50", "p90", "p95", "p99", "max", "sum")),
        ]
        for row in ops
    ]  # fmt: skip
    return fitting_table(head, rows, columns, left=1, spare=("open", "p90", "max", "p99", "tokens"))


def bars(rows: Sequence[tuple[str, float, str]], whole: float, *, boxes: bool = True) -> str:
    """A line each: name, bar, what it is, percent of `whole`."""
    mark = "█" if boxes else "#"
    names = max(len(name) for name, _, _ in rows)
    values = max(len(told) for _, _, told in rows)
    return "\n".join(
        f"  {name:<{names}}  {mark * round(_BAR * part):<{_BAR}}  {told:>{values}}  {100 * part:3.0f} %"
        for name, part, told in [(name, value / whole, told) for name, value, told in rows]
    )


def histogram(values: Sequence[float], *, boxes: bool = True) -> str:
    """How many values lie in each of ten equal parts of their range, or of fewer where ten would read alike."""
    low, high = min(values), max(values)
    bins = next(bins for bins in range(_BINS, 0, -1) if bins == 1 or _differ(low, high, bins))
    width = (high - low) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / width))] += 1
    edges = [human_seconds(low + index * (high - low) / bins) for index in range(bins + 1)]
    rows = [(f"{edges[index]:>9} to {edges[index + 1]:>9}", count) for index, count in enumerate(counts)]
    mark, most = "█" if boxes else "#", max(counts)
    return "\n".join(f"  {name}  {mark * round(_BAR * count / most):<{_BAR}}  {count:,}" for name, count in rows)


def _differ(low: float, high: float, bins: int) -> bool:
    """Whether the ends of all parts are written differently."""
    return len({human_seconds(low + index * (high - low) / bins) for index in range(bins + 1)}) == bins + 1
