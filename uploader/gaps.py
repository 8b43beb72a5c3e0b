"""Segments of a writer that must exist and are not here: files of a run may arrive one by one, in any order.

A trajectory that lies partly in a missing segment would be stored for ever as what was seen of it. So it waits for the
file, or until somebody says that it will not come: `--partial`, or a copy that `verl-trace repair` made, whose headers
tell what was missing.

A sealed file was published whole, with a checksum: one that is cut off or damaged is a copy that is not whole, yet or
any more. What looks unfinished there waits for a better one; a call that it lacks entirely can still be added then.

So does what awaits its score, which may lie in the missing or damaged part of whichever process has it.

Of a packed run more is known: which files it had, and their checksums. There what may have its score in a file that is
missing waits, too.
"""

from __future__ import annotations

from collections.abc import Container
from functools import cached_property
from typing import TYPE_CHECKING

import orjson

from ..reader.places import archive_at
from ..schemas.files import parse_side_file_name, segment_file_name, side_file_name

if TYPE_CHECKING:
    from ..reader import Segment, Trajectory, Writer

__all__ = ["Gaps", "missing_side_file"]


class Gaps:
    """What is missing of one writer; false when nothing is. `damaged`: sealed segments that are not whole are, too."""

    def __init__(self, writer: Writer, *, damaged: bool = True) -> None:
        self._writer = writer
        # sealed segments that the first pass over the run could not read whole; filled by it
        self._spoilt = writer.damaged if damaged else set()
        self._names: list[str] = []
        # when the first segment after each gap was opened
        self._resumed: list[str] = []
        # from when to when the segments that a packed run has damaged were written
        self._damaged: list[tuple[str, str]] = []
        self._read: list[tuple[str, str]] = []
        # whether the packed run lacks a file, or a part of one, of whomever
        self._incomplete = False
        self._look_into_the_pack(writer)
        expected = 0
        for segment in writer.segments:
            if segment.index > expected:
                self._gap(writer, segment, expected)
            expected = segment.index + 1
        self._next_name = segment_file_name(writer.id, expected)
        self._last = writer.segments[-1]
        if self._last.raw:
            # its writer may go on, so it is asked now
            self._open_end = _goes_on(self._last)

    def __bool__(self) -> bool:
        return self._certain or self._open_end

    @property
    def names(self) -> list[str]:
        """The missing and damaged files, as far as they can be known."""
        damaged = (segment.path.name for segment in self._spoilt)
        names = [*self._names, *sorted(name for name in damaged if name not in self._names)]
        return [*names, self._next_name] if self._open_end else names

    def may_hold_scores(self, attempts: Container[str]) -> bool:
        """Whether scores of trajectories of these attempts may lie in what is missing before the last segment, or in a
        sealed segment that is not whole, which is known once the first pass over the run is done."""
        return bool(self._spoilt) or (bool(self._resumed) and self._writer.attempt in attempts)

    @property
    def _certain(self) -> bool:
        return bool(self._resumed or self._spoilt) or self._incomplete

    @cached_property
    def _open_end(self) -> bool:
        """Whether there must be a segment after the last one. A sealed one is decompressed for it."""
        return _goes_on(self._last)

    def _look_into_the_pack(self, writer: Writer) -> None:
        found = archive_at(writer.segments[0].folder)
        if found is None:
            return
        archive, folder = found
        self._incomplete = bool(archive.problems or archive.damaged)
        for at, segment in enumerate(writer.segments):
            if (f"{folder}/{segment.path.name}" if folder else segment.path.name) in archive.damaged:
                self._damaged.append(_written(writer, at))
                self._names.append(segment.path.name)

    def _gap(self, writer: Writer, segment: Segment, expected: int) -> None:
        header = _header(segment)
        repaired = header.get("repaired")
        if isinstance(repaired, dict) and repaired.get("missing_before"):
            return
        # without a time everything may lie before it
        self._resumed.append(_opened(header, "~"))
        self._names += [segment_file_name(writer.id, index) for index in range(expected, segment.index)]

    def may_hold_more(self, trajectory: Trajectory) -> bool:
        """Whether records of the trajectory may lie in a missing segment."""
        root = trajectory.root
        seen_whole = root is not None and not any(
            call.unfinished or call.awaits_text or call.inputs is None or call.orphan for call in trajectory.calls
        )
        if not self._certain and (seen_whole or not self._open_end):
            return False
        if root is None or (not seen_whole and (self._open_end or self._incomplete)):
            return True
        if self._incomplete and (trajectory.awaits_score or trajectory.group_awaited):
            return True
        began = min(call.started_at for call in trajectory.calls)
        ended = max(call.ended_at or "~" for call in trajectory.calls)
        if any(began <= until and ended >= opened for opened, until in self._damaged):
            return True
        if not seen_whole and any(began <= until and ended >= opened for opened, until in self._not_whole()):
            return True
        return any(began < resumed and (not seen_whole or ended >= resumed) for resumed in self._resumed)

    def _not_whole(self) -> list[tuple[str, str]]:
        """From when to when those segments were written."""
        if len(self._read) != len(self._spoilt):
            segments = enumerate(self._writer.segments)
            self._read = [_written(self._writer, at) for at, segment in segments if segment in self._spoilt]
        return self._read


def missing_side_file(writer: Writer) -> str:
    """The first side file that must have been there of a writer whose lines refer to contents; "" when none is missing,
    or when the recording or a repaired copy says itself that contents are lost."""
    found = [parsed[1] for path in writer.side_files if (parsed := parse_side_file_name(path)) is not None]
    gap = next((index for index in range(len(found)) if index not in found), None if found else 0)
    if not found and not writer.closed:
        # killed, it may have been before it had written the first one
        return ""
    if gap is None or _tells_of_lost_contents(writer.segments[-1]):
        return ""
    return side_file_name(writer.id, gap)


def _tells_of_lost_contents(segment: Segment) -> bool:
    kinds = (b'{"kind":"lost"', b'{"kind":"close"')
    words = (b'"content missing":', b'"contents_lost":')
    try:
        return any(line.startswith(kinds) and any(word in line for word in words) for _, line in segment.lines())
    except OSError:
        return False


def _header(segment: Segment) -> dict[str, object]:
    try:
        first = next(iter(segment.lines()), None)
        head = orjson.loads(first[1]) if first is not None else {}
    except (OSError, orjson.JSONDecodeError):
        return {}
    return head if isinstance(head, dict) else {}


def _opened(header: dict[str, object], unknown: str) -> str:
    """When a segment was begun, by its header; `unknown` where that does not say."""
    opened = header.get("opened_at")
    return opened if isinstance(opened, str) else unknown


def _written(writer: Writer, at: int) -> tuple[str, str]:
    """From when to when a segment was written: until the next one was opened."""
    later = writer.segments[at + 1 :]
    return _opened(_header(writer.segments[at]), ""), _opened(_header(later[0]), "~") if later else "~"


def _goes_on(segment: Segment) -> bool:
    """Whether the segment ends with the word that its writer goes on in the next one."""
    try:
        record = orjson.loads(segment.last_line())
    except (OSError, orjson.JSONDecodeError):
        return False
    return isinstance(record, dict) and record.get("kind") == "close" and record.get("reason") == "rotated"
