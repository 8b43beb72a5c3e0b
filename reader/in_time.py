"""The lines of a run in time order, from the files of all its writers at once.

A writer appends in time order, so the files are merged like sorted lists. One file is open for each writer that was at
work at the same time, up to `MOST_OPEN`; where there are more, those are merged into a temporary file first (`spool`).
An open sealed file takes up to 33 MiB of memory, most of them far less.
"""

from __future__ import annotations

import heapq
import resource
from collections.abc import Iterator
from typing import Any

from .records import read_lines, text_of
from .runs import Run
from .spool import spooled
from .trees import Reading
from .writers import Writer

__all__ = ["MOST_OPEN", "lines_in_time"]

# Files that are open at once; half of what the system allows, where that is less.
MOST_OPEN = 128

_TIMES = ("ended_at", "started_at", "recorded_at", "opened_at", "closed_at", "until")


def lines_in_time(run: Run, reading: Reading, trace_ids: frozenset[str] | None = None) -> Iterator[bytes]:
    """Every whole record with its newline; with `trace_ids`, those of these trajectories only.

    Damage is passed over and noted in `reading`. Times come from the clocks of the hosts, to the microsecond; records
    of one writer keep their order.
    """
    reading.damages += run.passed_over
    streams = [
        (writer.started_at, number, _timed(writer, reading, trace_ids)) for number, writer in enumerate(run.writers)
    ]
    streams.sort(key=lambda item: item[:2])
    most = min(MOST_OPEN, max(2, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
    heap: list[_Open] = []
    put_aside: set[int] = set()
    waiting = iter(streams)
    ahead = next(waiting, None)
    while heap or ahead is not None:
        # a file is opened when the merge has come to the time when its writer began
        while ahead is not None and (not heap or ahead[0] <= heap[0][0]):
            if len(heap) >= most:
                _put_aside(heap, put_aside)
            _push(heap, *ahead[1:])
            ahead = next(waiting, None)
        if heap:
            yield heap[0][2]
            _advance(heap)


# Time and line that come next, the number of the writer (equal times go by it), and what follows.
_Open = tuple[str, int, bytes, Iterator[tuple[str, bytes]]]


def _put_aside(heap: list[_Open], put_aside: set[int]) -> None:
    """One temporary file in place of all that are open, but for those that are temporary already."""
    files = [item for item in heap if item[1] not in put_aside] or heap.copy()
    heap[:] = [item for item in heap if item not in files]
    heapq.heapify(heap)
    heapq.heapify(files)
    number = files[0][1]
    put_aside.add(number)
    _push(heap, number, spooled(_drained(files)))


def _push(heap: list[_Open], number: int, lines: Iterator[tuple[str, bytes]]) -> None:
    first = next(lines, None)
    if first is not None:
        heapq.heappush(heap, (first[0], number, first[1], lines))


def _advance(heap: list[_Open]) -> None:
    _, number, _, rest = heap[0]
    following = next(rest, None)
    if following is None:
        heapq.heappop(heap)
    else:
        heapq.heapreplace(heap, (following[0], number, following[1], rest))


def _drained(heap: list[_Open]) -> Iterator[tuple[str, bytes]]:
    """All that the open files still have, in order."""
    while heap:
        yield heap[0][0], heap[0][2]
        _advance(heap)


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
