"""What the calls of a trajectory come to: counts, times, and where its time went."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from .kinds import MODEL, OTHER, ROOT, TOOL, handing_on

__all__ = ["END", "START", "TEXT", "Figures", "OpFigures", "figures_of"]

# Which records of a call there are.
START, END, TEXT = 1, 2, 4


class OpFigures(NamedTuple):
    """The calls of one op. `durations` are those of calls that ended, in seconds."""

    op: str
    kind: str
    calls: int
    errors: int
    unfinished: int
    tokens: int
    durations: list[float]


class Figures(NamedTuple):
    """A trajectory in figures.

    `op` and `duration` are the root's, "" and None without one; `started_at` and `place` those of the first call.
    `tokens`: what the model wrote, or without turns the length of the response. `first`, `last`: earliest start and
    latest end that were recorded. `shares`: see `shares_of`.
    """

    op: str
    started_at: str
    duration: float | None
    place: Any
    calls: int
    errors: int
    unfinished: int
    status: str
    turns: int
    tokens: int | None
    tools: int
    tool_failures: int
    first: str
    last: str
    shares: list[float] | None
    ops: list[OpFigures]


def figures_of(columns: Sequence[Sequence[Any]]) -> Figures:
    """Of the calls of one trajectory in order: the columns of `outline.CallOutline`, up to `seen`."""
    ids, parents, ops, kinds, statuses, durations, tokens, responses, started, ended, places, seen, *_ = columns
    outer = handing_on(zip(ids, parents, kinds, strict=True)) if kinds.count(MODEL) > 1 else ()
    if outer:
        instead = {call_id: ROOT if parent is None else OTHER for call_id, parent in zip(ids, parents, strict=True)}
        kinds = [instead[call_id] if call_id in outer else kind for call_id, kind in zip(ids, kinds, strict=True)]
    root = parents.index(None) if None in parents else None
    first = root or 0
    open_calls = sum(not bits & END for bits in seen)
    by_op: dict[str, list[Any]] = {}
    failures = tools = 0
    spans = []
    counts = []
    for index, (op, kind, status, duration, count) in enumerate(
        zip(ops, kinds, statuses, durations, tokens, strict=True)
    ):
        row = by_op.get(op)
        if row is None:
            row = by_op[op] = [op, kind, 0, 0, 0, 0, []]
        row[2] += 1
        if status == "error":
            row[3] += 1
        if not seen[index] & END:
            row[4] += 1
        if duration is not None:
            row[6].append(duration)
        if kind == MODEL:
            row[1] = kind
            if count is not None:
                counts.append(count)
                row[5] += count
        elif kind == TOOL:
            tools += 1
            failures += status == "error"
        else:
            continue
        if duration is not None:
            spans.append((kind == MODEL, started[index], duration))
    response = None if root is None else responses[root]
    return Figures(
        "" if root is None else ops[root],
        started[first],
        None if root is None else durations[root],
        places[first],
        len(ops),
        statuses.count("error"),
        open_calls,
        "error" if "error" in statuses else "unfinished" if "unfinished" in statuses else "success",
        kinds.count(MODEL),
        sum(counts) if counts else response,
        tools,
        failures,
        min(filter(None, started), default=""),
        max(filter(None, ended), default=""),
        None if root is None else shares_of(started[root], durations[root], spans),
        [OpFigures(*row) for row in by_op.values()],
    )


def shares_of(started_at: str, duration: float | None, spans: Iterable[tuple[bool, str, float]]) -> list[float] | None:
    """Seconds of a trajectory in which the model wrote, in which tools ran (and the model did not), and the rest.

    `spans`: of each call of the model or a tool, whether it is the model's, its start, its duration. Calls that overlap
    count once. None for a trajectory without an end.
    """
    if duration is None:
        return None
    begin = _seconds(started_at)
    end = begin + duration
    model, every = [], []
    for is_model, start, seconds in spans:
        # a clock of another node may put it outside of the trajectory: it is moved there, as long as it was
        at = min(max(begin, _seconds(start)), max(begin, end - seconds))
        span = (at, min(end, at + seconds))
        every.append(span)
        if is_model:
            model.append(span)
    of_model, both = _covered(model), _covered(every)
    return [of_model, both - of_model, max(0.0, duration - both)]


def _covered(spans: list[tuple[float, float]]) -> float:
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
