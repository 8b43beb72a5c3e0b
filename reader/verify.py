"""Is everything there that was recorded? Reads all of a run, payloads too, and says what is not whole.

A sealed file is whole when zstd's checksum of its content fits; a raw one has none, so that a byte flipped inside of a
text shows only where it breaks the form of a record. A raw line being written by a live process is no damage, and the
end that a kill tore off is normal: it has a state of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..schemas.files import segment_file_name
from ..schemas.side import is_digest
from .losses import Losses
from .pairing import Pairing
from .places import archive_at, is_file
from .records import CALL_KINDS
from .runs import Run, Segment, Writer, closed_folders, find_runs
from .scan import DAMAGED, TORN, WHOLE, FileReport, Found, Scan, has_segment
from .segments import Damage
from .verify_contents import MISSING_CONTENTS, WriterContents, check_contents

__all__ = ["DAMAGED", "TORN", "WHOLE", "RunReport", "verify"]

_SEVERITY = (WHOLE, TORN, DAMAGED)


@dataclass
class RunReport:
    """What `verify` found in one run.

    `missing`: names of segments that are not there. `without_start`: writer -> ids of calls whose start is not there;
    `explained`: writers whose `lost` or `close` records say that something could not be written.
    """

    run: Run
    files: list[FileReport] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    duplicates: list[Damage] = field(default_factory=list)
    without_start: dict[str, list[str]] = field(default_factory=dict)
    explained: set[str] = field(default_factory=set)
    unknown_kinds: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    unfinished: int = 0
    without_text: int = 0
    lost_records: int = 0
    lost_by: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    contents: list[WriterContents] = field(default_factory=list)

    @property
    def state(self) -> str:
        """`whole`, `torn` or `damaged`: the worst of its parts."""
        if self.missing or self.duplicates or self.unexplained or self.unreadable:
            return DAMAGED
        states = [file.state for file in self.files] + [contents.state for contents in self.contents]
        return max(states, key=_SEVERITY.index, default=WHOLE)

    @property
    def unexplained(self) -> list[str]:
        """Calls whose start is not there although their writer does not say that it lost anything."""
        return [i for writer, ids in self.without_start.items() if writer not in self.explained for i in ids]

    @property
    def records(self) -> int:
        """Good records between headers and closes."""
        return sum(file.records for file in self.files if file.read)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "folder": str(self.run.folder),
            "project_name": self.run.project_name,
            "experiment_name": self.run.experiment_name,
            "state": self.state,
            "files": [_file_json(file) for file in self.files],
            "missing_segments": self.missing,
            "duplicates": [damage_json(damage) for damage in self.duplicates],
            "calls": self.calls,
            "unfinished": self.unfinished,
            "calls_without_start": sorted(i for ids in self.without_start.values() for i in ids),
            "calls_without_text": self.without_text,
            "unknown_kinds": dict(self.unknown_kinds),
            "lost_records": self.lost_records,
            "lost_by": dict(self.lost_by),
            "unreadable": self.unreadable,
            "side_files": [file.as_json() for of_writer in self.contents for file in of_writer.files],
            "missing_contents": [digest for of_writer in self.contents for digest in of_writer.missing],
        }


def verify(path: str | Path) -> list[RunReport]:
    """Read everything at `path`: a run, a folder of runs or one file (then nothing is said of the files beside it).

    Raises:
        NotARun: there is nothing to read.
    """
    path = Path(path)
    packed = archive_at(path)
    alone = path.is_file() and packed is None
    reports = [_Verification(run, alone).report for run in find_runs(path)]
    if reports and not alone:
        reports[0].unreadable += closed_folders(path)
    if reports and packed is not None:
        reports[0].unreadable += packed[0].check()
    return reports


class _Verification:
    def __init__(self, run: Run, alone: bool) -> None:
        self.report = RunReport(run)
        self.report.unreadable += [f"{damage.path} {damage.reason}" for damage in run.passed_over]
        self._alone = alone
        self._pairing = Pairing()
        for writer in run.writers:
            self._writer(writer)
        self.report.calls = self._pairing.calls
        self.report.unfinished = self._pairing.unfinished()
        self.report.without_text = self._pairing.without_text()
        if not alone:
            self.report.without_start = self._pairing.without_start()

    def _writer(self, writer: Writer) -> None:
        # looked at before the files are read: a line cut off at its end later was being written at that time
        alive = writer.alive and not writer.closed
        following = 0
        files = []
        self._referred: dict[str, None] = {}
        self._told = 0
        self._losses = Losses()
        for segment in writer.segments if self._alone else _with_unlisted(writer):
            file = self._segment(segment, writer.id, alive)
            files.append(file)
            if not self._alone and segment.index - following != _missing_before(file):
                self._miss(writer.id, range(following, segment.index))
            following = segment.index + 1
        _allow_kill_between(files[-2:])
        goes_on = file.close is not None and file.close.get("reason") == "rotated"
        if not self._alone and goes_on and not has_segment(segment.folder, writer.id, following):
            self._miss(writer.id, range(following, following + 1))
        self._told += _contents_lost(file.close)
        if self._losses.records:
            self.report.explained.add(writer.id)
            self.report.lost_records += self._losses.records
            self.report.lost_by += self._losses.by_reason
        self.report.contents.append(check_contents(writer, self._referred, alive=alive, told=self._told))

    def _miss(self, writer: str, indexes: range) -> None:
        self.report.missing += [segment_file_name(writer, index) for index in indexes[:_NAMED]]
        if len(indexes) > _NAMED:
            self.report.missing.append(f"… and {len(indexes) - _NAMED} more of {writer}")

    def _segment(self, segment: Segment, writer: str, alive: bool) -> FileReport:
        forms = [sealed for sealed in (True, False) if is_file(_path(segment, writer, sealed))] or [segment.sealed]
        if len(forms) == 2:
            return self._twins(segment, writer, alive)
        path = _path(segment, writer, forms[0])
        file = self._read(Scan(path, writer, segment.index, sealed=forms[0], alive=alive))
        if file.sealed or file.size or is_file(path) or not is_file(_path(segment, writer, True)):
            return file
        # sealed between the two looks; nothing was read of it yet
        self.report.files.remove(file)
        return self._read(Scan(_path(segment, writer, True), writer, segment.index, sealed=True))

    def _twins(self, segment: Segment, writer: str, alive: bool) -> FileReport:
        """Both forms: a crash between publishing the sealed one and removing the raw one. They hold the same."""
        scans = []
        for sealed in (True, False):
            scan = Scan(_path(segment, writer, sealed), writer, segment.index, sealed=sealed, alive=alive)
            for _ in scan:
                pass
            scans.append(scan)
        sealed_one, raw_one = (scan.report for scan in scans)
        # removed meanwhile: the hand-over is done
        raw_gone = not is_file(raw_one.path)
        if not raw_gone and DAMAGED not in (sealed_one.state, raw_one.state) and sealed_one.digest != raw_one.digest:
            raw_one.add(0, raw_one.size, "twin", f"holds other records than {sealed_one.path.name}")
        use_raw = not raw_gone and _rank(raw_one) > _rank(sealed_one)
        chosen, other = (raw_one, sealed_one) if use_raw else (sealed_one, raw_one)
        problems = chosen.problems
        file = self._read(Scan(chosen.path, writer, segment.index, sealed=chosen.sealed, alive=alive))
        file.problems = problems
        if not raw_gone:
            other.read = False
            self.report.files.append(other)
        return file

    def _read(self, scan: Scan) -> FileReport:
        report = self.report
        for found in scan:
            kind = found.record.kind
            if kind in CALL_KINDS:
                self._take(found, scan.report)
            elif kind in ("lost", "close"):
                self._losses.take(kind, found.record.head)
                self._told += _count(found.record.head.get("counts"), MISSING_CONTENTS)
            elif kind not in ("header", "skip", "score", "stall"):
                report.unknown_kinds[kind] += 1
        report.files.append(scan.report)
        return scan.report

    def _take(self, found: Found, file: FileReport) -> None:
        if not self._pairing.take(found.record.kind, found.record.head, file.writer):
            reason = f"a second {found.record.kind} of call {found.record.head['id']}"
            damage = Damage(file.path, found.offset, len(found.line), "duplicate", reason)
            self.report.duplicates.append(damage)
        names = found.record.head.get("blobs")
        if isinstance(names, list):
            self._referred.update(dict.fromkeys(name for name in names if is_digest(name)))


def _contents_lost(close: dict[str, Any] | None) -> int:
    """Contents that a writer says at its end it could not store, some of which lines refer to."""
    counters = (close or {}).get("counters")
    lost = counters.get("contents_lost") if isinstance(counters, dict) else None
    return sum(count for count in lost.values() if type(count) is int) if isinstance(lost, dict) else 0


def _count(counts: Any, reason: str) -> int:
    count = counts.get(reason) if isinstance(counts, dict) else None
    return count if type(count) is int else 0


# 64 MiB each: 6 TiB of one process. A file with a wild index must not make us look for ever.
_LOOKED_FOR = 100_000
# Missing segments that are named one by one; a file with a wild index must not fill the report.
_NAMED = 100


def _with_unlisted(writer: Writer) -> list[Segment]:
    """The writer's segments, and those that a listing of a busy folder passed over while they were renamed."""
    segments = list(writer.segments)
    folder, listed = segments[0].folder, {segment.index for segment in segments}
    for index in [index for index in range(min(max(listed), _LOOKED_FOR)) if index not in listed]:
        if has_segment(folder, writer.id, index):
            segments.append(Segment(folder, writer.id, index, sealed=True))
    return sorted(segments, key=lambda segment: segment.index)


def _allow_kill_between(last_two: list[FileReport]) -> None:
    """A kill after the next segment was opened and before this one got its close record costs that record only."""
    if len(last_two) < 2 or last_two[1].close is not None or last_two[1].index != last_two[0].index + 1:
        return
    before = last_two[0]
    if [problem.kind for problem in before.problems] == ["end"]:
        place = before.problems.pop()
        before.add(place.offset, 0, "torn", "ends without a close record: its process was killed as it went on")


def damage_json(damage: Damage) -> dict[str, Any]:
    """Plain data."""
    return {
        "file": damage.path.name,
        "offset": damage.offset,
        "length": damage.length,
        "kind": damage.kind,
        "reason": damage.reason,
    }


def _file_json(file: FileReport) -> dict[str, Any]:
    return {
        "file": file.path.name,
        "state": file.state,
        "records": file.records,
        "read": file.read,
        "problems": [damage_json(problem) for problem in file.problems],
        "notes": file.notes,
    }


def _path(segment: Segment, writer: str, sealed: bool) -> Path:
    return segment.folder / segment_file_name(writer, segment.index, sealed=sealed)


def _rank(file: FileReport) -> tuple[int, int]:
    return -_SEVERITY.index(file.state), file.records


def _missing_before(file: FileReport) -> int:
    """Segments that a repaired copy says were not there."""
    repaired = (file.header or {}).get("repaired")
    count = repaired.get("missing_before") if isinstance(repaired, dict) else None
    return count if isinstance(count, int) else 0
