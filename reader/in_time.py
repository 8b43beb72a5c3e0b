"""The lines of a run in time order, from the files of all its writers at once.

A writer appends in time order, so the files are merged like sorted lists. Memory: one open file a writer that was at
work at the same time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from .records import read_lines, text_of
from .runs import Run
from .trees import Reading
from .writers import Writer

__all__ = ["lines_in_time"]

_TIMES = ("ended_at", "started_at", "recorded_at", "opened_at", "closed_at", "until")


def lines_in_time(run: Run, reading: Reading, trace_ids: frozenset[str] | None = None) -> Iterator[bytes]:
    """Every whole record with its newline; with `trace_ids`, those of these trajectories only.

    Damage is passed over and noted in `reading`. Times come from the clocks of the hosts, to the microsecond; records
    of one writer keep their order.
    """
    begun: list[tuple[str, int, Iterator[tuple[str, bytes]]]] = []
    for number, writer in enumerate(run.writers):
        begun.append((writer.started_at, number, _timed(writer, reading, trace_ids)))
    begun.sort(key=lambda item: item[:2])
    heap: list[tuple[str, int, bytes, Iterator[tuple[str, bytes]]]] = []
    waiting = iter(begun)
    ahead = next(waiting, None)
    while heap or ahead is not None:
        # a file is opened when the merge has come to the time when its writer began
        while ahead is not None and (not heap or ahead[0] <= heap[0][0]):
            _push(heap, ahead[1], ahead[2])
            ahead = next(waiting, None)
        if not heap:
            continue
        _, number, line, rest = heap[0]
        yield line
        following = next(rest, None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following[0], number, following[1], rest))


def _push(
    heap: list[tuple[str, int, bytes, Iterator[tuple[str, bytes]]]], number: int, lines: Iterator[tuple[str, bytes]]
) -> None:
    first = next(lines, None)
    if first is not None:
        heapq.heappush(heap, (first[0], number, first[1], lines))


def _timed(writer: Writer, reading: Reading, trace_ids: frozenset[str] | None) -> Iterator[tuple[str, bytes]]:
    """`(time, line)`, times never falling."""
    latest = writer.started_at
    for segment in writer.segments:
        being_written = writer.alive and segment in writer.segments[-2:]
        for line, record in read_lines(segment.lines(), reading.damages, being_written=being_written):
            latest = max(latest, _time(record.head))
            if trace_ids is None or record.head.get("trace_id") in trace_ids:
                yield latest, line


def _time(head: dict[str, Any]) -> str:
    """When the record was written, as far as it says; "" where it does not, as a text record."""
    return next((text_of(head[name]) for name in _TIMES if name in head), "")
