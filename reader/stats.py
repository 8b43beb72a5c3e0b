"""A run in figures: by step, by op, where the time went, and which trajectories stand out.

Memory: 8 bytes a call for exact percentiles, and the few extreme trajectories.
"""

from __future__ import annotations

import heapq
import math
from array import array
from dataclasses import dataclass, field
from typing import Any

from .figures import OpFigures
from .kinds import MODEL
from .outline import Outline
from .steps import StepRow, add_to_steps, in_order, percentile

__all__ = ["OpRow", "Stats"]

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

    def add(self, figures: OpFigures) -> None:
        """Count the calls of one trajectory in."""
        self.calls += figures.calls
        self.errors += figures.errors
        self.unfinished += figures.unfinished
        self.durations.extend(figures.durations)
        if self.kind == MODEL:
            self.tokens += figures.tokens

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

    def add(self, outline: Outline, facts: dict[str, Any]) -> None:
        """Count one trajectory in."""
        add_to_steps(self.steps, outline, facts)
        for figures in outline.figures.ops:
            row = self._ops.get(figures.op)
            if row is None:
                row = self._ops[figures.op] = OpRow(figures.op, figures.kind)
            row.add(figures)
        for name, seconds in zip(self._seconds, outline.figures.shares or (), strict=False):
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
