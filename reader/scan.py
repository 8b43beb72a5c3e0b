"""One span file, looked at closely: its good records, and everything that is wrong with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..schemas.files import segment_file_name
from ..schemas.lines import SCHEMA_VERSION, Line
from ..schemas.wording import counted
from .checks import checked, is_time, salvaged
from .places import is_file, open_file
from .segments import Damage, SegmentLines

__all__ = ["DAMAGED", "TORN", "WHOLE", "FileReport", "Found", "Scan", "has_segment"]

WHOLE, TORN, DAMAGED = "whole", "torn", "damaged"
_SEVERITY = (WHOLE, TORN, DAMAGED)


class Found(NamedTuple):
    """A good record: where it begins in the decompressed file, its bytes with newline, and what it says."""

    offset: int
    line: bytes
    record: Line


@dataclass
class FileReport:
    """What one file holds. `records` counts good lines between header and close, `end` is where the last good one ends.

    `read` is False for a file whose records are read from its other form. `lost` counts records that the close record
    counted and that are not here.
    """

    path: Path
    writer: str
    index: int
    sealed: bool
    problems: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    records: int = 0
    lost: int = 0
    end: int = 0
    size: int = 0
    read: bool = True
    header: dict[str, Any] | None = None
    header_fits: bool = True
    close: dict[str, Any] | None = None
    first_seen: str = ""
    last_seen: str = ""
    digest: bytes = b""

    @property
    def state(self) -> str:
        """`whole`, `torn` or `damaged`."""
        return max(
            (TORN if problem.kind == "torn" else DAMAGED for problem in self.problems),
            key=_SEVERITY.index,
            default=WHOLE,
        )

    def add(self, offset: int, length: int, kind: str, reason: str) -> None:
        """Note a problem."""
        self.problems.append(Damage(self.path, offset, length, kind, reason))


class Scan:
    """Iterates the good records of one file, header and close included; then `report` is complete.

    `alive`: whether the writing process may still be at it, so that an open end is no problem.
    """

    def __init__(self, path: Path, writer: str, index: int, *, sealed: bool, alive: bool = False) -> None:
        self.report = FileReport(path, writer, index, sealed)
        # a living process may seal it, and remove it raw, before it is read
        later = path.with_name(segment_file_name(writer, index, sealed=True))
        self._lines = SegmentLines(path, sealed=sealed, sealed_path=None if sealed else later)
        self._alive = alive and not sealed
        self._digest = hashlib.blake2b()
        self._closed_at = 0

    def __iter__(self) -> Iterator[Found]:
        report = self.report
        # asked before reading, since a live writer goes on; it opens the next segment before it closes this one
        following = report.index + (2 if self._alive else 1)
        self._is_last = not has_segment(report.path.parent, report.writer, following)
        try:
            for offset, line in self._lines:
                self._digest.update(line)
                found = self._check(offset, line)
                if found is not None and self._place(found):
                    yield found
        except OSError as error:
            report.add(self._lines.size, 0, "unreadable", error.strerror or str(error))
        report.path, report.sealed = self._lines.path, self._lines.sealed
        report.size = self._lines.size
        report.digest = self._digest.digest()
        self._finish()
        report.problems.sort(key=lambda problem: problem.offset)

    def _check(self, offset: int, line: bytes) -> Found | None:
        try:
            return Found(offset, line, checked(line))
        except ValueError as error:
            rest = salvaged(line)
            begin = rest[0] if rest is not None else len(line)
            self.report.add(offset, begin, "line", str(error))
            return Found(offset + begin, line[begin:], rest[1]) if rest is not None else None

    def _place(self, found: Found) -> bool:
        """Whether the record stands where it may."""
        report, (offset, line, record) = self.report, found
        kind, length = record.kind, len(line)
        if kind == "header":
            if report.header is not None or report.records:
                report.add(offset, length, "line", "a header in the middle of the file")
                return False
            report.header = record.head
        elif report.close is not None:
            report.add(offset, length, "close", "a record after the close record")
            if kind == "close":
                return False
            report.records += 1
        elif kind == "close":
            report.close = record.head
            self._closed_at = offset
        else:
            report.records += 1
        report.end = offset + length
        self._see(record.head)
        return True

    def _see(self, head: dict[str, Any]) -> None:
        report = self.report
        for key in ("opened_at", "started_at", "ended_at", "until", "closed_at"):
            time = head.get(key)
            if is_time(time):
                report.first_seen = min(report.first_seen or str(time), str(time))
                report.last_seen = max(report.last_seen, str(time))

    def _finish(self) -> None:
        report = self.report
        is_last = self._is_last
        for damage in self._lines.damages:
            if damage.kind != "torn":
                report.problems.append(damage)
            else:
                self._tail(damage, is_last)
        self._header(is_last)
        if report.close is None:
            self._open_end(is_last)
        else:
            self._count()

    def _tail(self, damage: Damage, is_last: bool) -> None:
        """Bytes behind the last newline: in a last segment a line being written or torn off, else damage."""
        report = self.report
        if report.close is not None or not is_last or not self._looks_begun(damage):
            report.add(damage.offset, damage.length, "line", "bytes behind the last record that begin none")
        elif not self._alive:
            report.problems.append(damage)

    def _looks_begun(self, damage: Damage) -> bool:
        if self.report.sealed:
            return True
        wanted = b'{"kind":"'
        try:
            with open_file(self.report.path) as file:
                file.seek(damage.offset)
                tail = file.read(min(damage.length, 4096)) or b""
        except FileNotFoundError:
            # sealed while it was read
            return True
        # a file system may show NUL bytes where another node's write is not there yet
        return tail.startswith(wanted) or wanted.startswith(tail) or (self._alive and not tail.strip(b"\0"))

    def _header(self, is_last: bool) -> None:
        report = self.report
        if report.header is None:
            if not report.end and report.state != DAMAGED and is_last and not report.sealed:
                if not self._alive and report.state == WHOLE:
                    report.add(0, 0, "torn", "empty: the process ended before it wrote the header")
                return
            report.header_fits = False
            report.add(0, 0, "header", "the file does not begin with a header" if report.size else "empty")
            return
        names = report.header.get("writer"), report.header.get("segment")
        if names != (report.writer, report.index):
            report.header_fits = False
            report.add(0, 0, "header", f"the header is of segment {names[1]} of {names[0]}: a renamed or copied file")
        schema = report.header["schema"]
        if schema > SCHEMA_VERSION:
            report.notes.append(f"format version {schema}; this verl-trace knows {SCHEMA_VERSION}: upgrade it")

    def _open_end(self, is_last: bool) -> None:
        report = self.report
        if not is_last:
            report.add(report.size, 0, "end", "ends without a close record, and yet its writer went on")
        elif not self._alive and report.state == WHOLE:
            report.add(report.size, 0, "torn", "ends without a close record: its process was killed")

    def _count(self) -> None:
        report = self.report
        count = report.close["records"] if report.close is not None else 0
        report.lost = max(0, count - report.records)
        if count != report.records:
            reason = f"the close record counts {counted(count, 'record')}, and {report.records:,} of them are here"
            report.add(self._closed_at, 0, "close", reason)


def has_segment(folder: Path, writer: str, index: int) -> bool:
    """Whether segment `index` of `writer` is there in either form."""
    return any(is_file(folder / segment_file_name(writer, index, sealed=sealed)) for sealed in (True, False))
