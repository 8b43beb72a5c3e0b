"""Segments of a writer that must exist and are not here: files of a run may arrive one by one, in any order.

A trajectory that lies partly in a missing segment would be stored for ever as what was seen of it. So it waits for the
file, or until somebody says that it will not come: `--partial`, or a copy that `verl-trace repair` made, whose headers
tell what was missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from ..schemas.files import parse_side_file_name, segment_file_name, side_file_name

if TYPE_CHECKING:
    from ..reader import Segment, Trajectory, Writer

__all__ = ["Gaps", "missing_side_file"]


class Gaps:
    """What is missing of one writer; false when nothing is.

    `names`: the missing files, as far as they can be known.
    """

    def __init__(self, writer: Writer) -> None:
        self.names: list[str] = []
        # when the first segment after each gap was opened
        self._resumed: list[str] = []
        expected = 0
        for segment in writer.segments:
            if segment.index > expected:
                self._gap(writer, segment, expected)
            expected = segment.index + 1
        self._open_end = not writer.closed and _goes_on(writer.segments[-1])
        if self._open_end:
            self.names.append(segment_file_name(writer.id, expected))

    def __bool__(self) -> bool:
        return bool(self._resumed) or self._open_end

    def _gap(self, writer: Writer, segment: Segment, expected: int) -> None:
        header = _header(segment)
        repaired = header.get("repaired")
        if isinstance(repaired, dict) and repaired.get("missing_before"):
            return
        opened = header.get("opened_at")
        # without a time everything may lie before it
        self._resumed.append(opened if isinstance(opened, str) else "~")
        self.names += [segment_file_name(writer.id, index) for index in range(expected, segment.index)]

    def may_hold_more(self, trajectory: Trajectory) -> bool:
        """Whether records of the trajectory may lie in a missing segment."""
        root = trajectory.root
        if root is None:
            return True
        seen_whole = not any(
            call.unfinished or call.awaits_text or call.inputs is None or call.orphan for call in trajectory.calls
        )
        if not seen_whole and self._open_end:
            return True
        began = min(call.started_at for call in trajectory.calls)
        ended = max(call.ended_at or "~" for call in trajectory.calls)
        return any(began < resumed and (not seen_whole or ended >= resumed) for resumed in self._resumed)


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


def _goes_on(segment: Segment) -> bool:
    """Whether the segment ends with the word that its writer goes on in the next one."""
    last = b""
    try:
        for _, line in segment.lines():
            last = line
        record = orjson.loads(last)
    except (OSError, orjson.JSONDecodeError):
        return False
    return isinstance(record, dict) and record.get("kind") == "close" and record.get("reason") == "rotated"
