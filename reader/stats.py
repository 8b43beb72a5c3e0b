"""A run in figures: by step, by op, where the time went, and which trajectories stand out.

Memory: 8 bytes a call for exact percentiles, and the few extreme trajectories.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .calls import Call, Trajectory
from .digest import count_of
from .kinds import MODEL, TOOL, kind_of
from .steps import StepRow, add_to_steps, in_order, percentile

__all__ = ["OpRow", "Stats", "shares_of"]

_EXTREMES = 5


@dataclass
class OpRow:
    """All calls of one op."""

    op: str
    kind: str
    calls: int = 0
    errors: int = 0
    unfinished: int = 0
    tokens: int = 0
    durations: array[float] = field(default_factory=lambda: array("d"))

    def add(self, call: Call) -> None:
        """Count one call in."""
        self.calls += 1
        self.errors += call.status == "error"
        self.unfinished += call.unfinished
        if call.duration is not None:
            self.durations.append(call.duration)
        if self.kind == MODEL and call.raw_output is not None:
            self.tokens += count_of(call.raw_output, "token_ids") or 0

    def as_json(self) -> dict[str, Any]:
        """The row as JSON values; durations in seconds."""
        ordered = sorted(self.durations)
        return {
            "op": self.op,
            "kind": self.kind,
            "calls": self.calls,
            "errors": self.errors,
            "unfinished": self.unfinished,
            "tokens": self.tokens,
            "duration_sum": math.fsum(ordered),
            **{f"duration_p{percent}": percentile(ordered, percent) for percent in (50, 90, 95, 99)},
            "duration_max": ordered[-1] if ordered else None,
        }


class Stats:
    """Takes trajectories in; `as_json` is the result."""

    def __init__(self, attempts: list[str]) -> None:
        self.steps: dict[tuple[Any, ...], StepRow] = {}
        self.durations = array("d")
        self._attempts = attempts
        self._ops: dict[str, OpRow] = {}
        self._seconds = {"model": 0.0, "tools": 0.0, "rest": 0.0}
        self._slowest: list[tuple[float, str, dict[str, Any]]] = []
        self._longest: list[tuple[float, str, dict[str, Any]]] = []

    def add(self, trajectory: Trajectory, facts: dict[str, Any]) -> None:
        """Count one trajectory in."""
        add_to_steps(self.steps, trajectory, facts)
        for call in trajectory.calls:
            row = self._ops.get(call.op)
            if row is None:
                row = self._ops[call.op] = OpRow(call.op, kind_of(call))
            row.add(call)
        shares = shares_of(trajectory)
        for name, seconds in (shares or {}).items():
            self._seconds[name] += seconds
        if facts["duration"] is not None:
            self.durations.append(facts["duration"])
            _keep(self._slowest, facts["duration"], facts)
        if facts["tokens"] is not None:
            _keep(self._longest, facts["tokens"], facts)

    def as_json(self) -> dict[str, Any]:
        """Steps and attempts are as `ls` has them; `time` is in seconds of trajectories, which overlap each other."""
        rows = [row.as_json() for row in in_order(self.steps.values(), self._attempts)]
        return {
            "steps": rows,
            "attempts": [_total(attempt, rows) for attempt in dict.fromkeys(row["attempt"] for row in rows)],
            "ops": [row.as_json() for row in sorted(self._ops.values(), key=lambda row: -math.fsum(row.durations))],
            "time": self._seconds,
            "slowest": _unpacked(self._slowest),
            "longest": _unpacked(self._longest),
        }


def shares_of(trajectory: Trajectory) -> dict[str, float] | None:
    """Seconds of a trajectory in which the model wrote, in which tools ran (and the model did not), and the rest.

    Calls that overlap count once. None for a trajectory without an end.
    """
    root = trajectory.root
    if root is None or root.duration is None:
        return None
    begin = _seconds(root.started_at)
    end = begin + root.duration
    spans: dict[str, list[tuple[float, float]]] = {MODEL: [], TOOL: []}
    for call in trajectory.calls:
        kind = kind_of(call)
        if kind in spans and call.duration is not None and call is not root:
            # a clock of another node may put it outside of the trajectory: it is moved there, as long as it was
            started = min(max(begin, _seconds(call.started_at)), max(begin, end - call.duration))
            spans[kind].append((started, min(end, started + call.duration)))
    model, both = _covered(spans[MODEL]), _covered(spans[MODEL] + spans[TOOL])
    return {"model": model, "tools": both - model, "rest": max(0.0, root.duration - both)}


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    total, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total


def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def _keep(heap: list[tuple[float, str, dict[str, Any]]], value: float, facts: dict[str, Any]) -> None:
    item = (float(value), facts["trace_id"], facts)
    if len(heap) < _EXTREMES:
        heapq.heappush(heap, item)
    elif item[:2] > heap[0][:2]:
        heapq.heapreplace(heap, item)


def _unpacked(heap: list[tuple[float, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [facts for _, _, facts in sorted(heap, key=lambda item: item[:2], reverse=True)]


def _total(attempt: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    mine = [row for row in rows if row["attempt"] == attempt]
    names = ("trajectories", "calls", "errors", "unfinished", "tool_calls", "tool_failures", "turns", "tokens")
    return {"attempt": attempt, "steps": len(mine), **{name: sum(row[name] for row in mine) for name in names}}
