"""A clean copy of all that is readable, beside the damaged run and never in place.

Step 1 `verify` says what is good. Step 2 every good line is copied byte for byte into sealed segments of the same
names. What the copy cannot take over it says: a `lost` record names the damaged places of its segment, headers and
close records that had to be made anew carry the key `repaired`. Step 3 `verify` reads the copy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson

from ..schemas.errors import BadTarget
from ..schemas.files import ATTEMPT_PREFIX, PRUNED_PREFIX, REPAIR_REPORT, segment_file_name
from .places import is_file, is_folder, list_folder, open_file
from .rebuild import close_record, header_record, lost_record
from .scan import WHOLE, FileReport, Scan
from .sealed_file import SealedFile
from .segments import Damage
from .side_copy import copy_side_file
from .verify import RunReport, damage_json, verify
from .verify_contents import MISSING_CONTENTS

__all__ = ["Repair", "repair"]


@dataclass
class Repair:
    """What a copy holds and what it does not.

    `left_out`: damaged places, torn ends and duplicates of the original. `doubtful`: copied records of files whose
    compressed form is damaged; each is a well-formed record, and nothing vouches for its bytes. `missing_contents`:
    what lines refer to and no side file holds whole. `copy`: the state of the copy as `verify` sees it.
    """

    source: Path
    out: Path
    files: int = 0
    records: int = 0
    doubtful: int = 0
    left_out: list[Damage] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    made_anew: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    missing_contents: int = 0
    copy: str = WHOLE

    @property
    def complete(self) -> bool:
        """Whether nothing is missing but what a kill tore off."""
        harmless = all(damage.kind == "torn" for damage in self.left_out)
        nothing_missing = not self.missing and not self.missing_contents and not self.unreadable
        return harmless and nothing_missing and self.copy == WHOLE

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "source": str(self.source),
            "out": str(self.out),
            "complete": self.complete,
            "files": self.files,
            "records": self.records,
            "doubtful": self.doubtful,
            "left_out": [damage_json(damage) for damage in self.left_out],
            "missing_segments": self.missing,
            "missing_contents": self.missing_contents,
            "made_anew": self.made_anew,
            "unreadable": self.unreadable,
            "copy": self.copy,
        }


def repair(source: str | Path, out: str | Path) -> Repair:
    """Copy all that is readable at `source` (a run, a folder of runs, one file) into the new folder `out`.

    Raises:
        NotARun: there is nothing to read.
        BadTarget: `out` is inside of `source`, is not empty, or cannot be written.
    """
    source, out = Path(source), Path(out)
    reports = verify(source)
    _check_target(source, out)
    result = Repair(source, out)
    root = source if is_folder(source) else source.parent
    try:
        out.mkdir(parents=True, exist_ok=True)
        for report in reports:
            folder = out / report.run.folder.relative_to(root)
            folder.mkdir(exist_ok=True)
            _copy_run(report, folder, result)
        result.copy = max((copy.state for copy in verify(out)), key=("whole", "torn", "damaged").index)
        data = orjson.dumps(result.as_json(), option=orjson.OPT_INDENT_2) + b"\n"
        (out / REPAIR_REPORT).write_bytes(data)
    except OSError as error:
        raise BadTarget(
            f"{error.filename or out}: {error.strerror}; the copy in {out} is not complete",
            hint=f"free what is missing, remove {out} and run it again; the original was not touched",
        ) from error
    return result


def _check_target(source: Path, out: Path) -> None:
    inside = (source if is_folder(source) else source.parent).resolve()
    if out.resolve() == inside or inside in out.resolve().parents:
        raise BadTarget(f"{out} lies in {inside}, which is to be repaired", hint="give a folder beside it with --out")
    try:
        if out.exists() and any(out.iterdir()):
            raise BadTarget(f"{out} is not empty", hint="give a new folder with --out")
    except OSError as error:
        raise BadTarget(f"{out}: {error.strerror}", hint="give a new folder with --out") from error


def _copy_run(report: RunReport, folder: Path, result: Repair) -> None:
    result.missing += report.missing
    result.unreadable += report.unreadable
    result.left_out += report.duplicates
    for file in report.files:
        result.left_out += file.problems
    for name in list_folder(report.run.folder):
        if name.startswith(ATTEMPT_PREFIX):
            (folder / name).touch()
        if name.startswith(PRUNED_PREFIX) and is_file(report.run.folder / name):
            with open_file(report.run.folder / name) as note:
                (folder / name).write_bytes(note.readall())
    writers: dict[str, list[FileReport]] = {}
    for file in report.files:
        if file.read:
            writers.setdefault(file.writer, []).append(file)
    for files in writers.values():
        _copy_writer(report, files, folder, result)
    for of_writer in report.contents:
        if not of_writer.killed:
            result.missing_contents += len(of_writer.missing)
        for side in of_writer.files:
            result.left_out += side.problems
            copy_side_file(side, folder)


def _copy_writer(report: RunReport, files: list[FileReport], folder: Path, result: Repair) -> None:
    following = 0
    for file in files:
        last = file is files[-1]
        missing = file.index - following
        starts = len(report.without_start.get(file.writer, [])) if last and file.writer not in report.explained else 0
        _SegmentCopy(report, file, folder, missing_before=missing, missing_starts=starts, last=last).write(result)
        following = file.index + 1


class _SegmentCopy:
    """One segment on its way into the copy."""

    def __init__(
        self,
        report: RunReport,
        file: FileReport,
        folder: Path,
        *,
        missing_before: int,
        missing_starts: int,
        last: bool,
    ) -> None:
        self._report = report
        self._file = file
        self._path = folder / segment_file_name(file.writer, file.index, sealed=True)
        self._missing_before = missing_before
        self._last = last
        self._counts = self._count_losses(missing_starts)
        self._skip = {damage.offset for damage in report.duplicates if damage.path == file.path}

    def _count_losses(self, missing_starts: int) -> dict[str, int]:
        file, counts = self._file, {}
        places = sum(problem.kind not in ("torn", "header", "close") for problem in file.problems)
        if max(file.lost, places):
            counts["damaged"] = max(file.lost, places)
        if self._missing_before:
            counts["segment missing"] = self._missing_before
        if self._last and self._goes_on_nowhere():
            counts["segment missing"] = counts.get("segment missing", 0) + 1
        if missing_starts:
            counts["start missing"] = missing_starts
        contents = next((c for c in self._report.contents if c.writer == file.writer), None)
        if self._last and contents is not None and len(contents.missing) > contents.told:
            counts[MISSING_CONTENTS] = len(contents.missing) - contents.told
        return counts

    def _goes_on_nowhere(self) -> bool:
        return segment_file_name(self._file.writer, self._file.index + 1) in self._report.missing

    def write(self, result: Repair) -> None:
        """Copy the good lines; add what must be said."""
        file = self._file
        with SealedFile(self._path) as target:
            if not file.header_fits or file.header is None or self._missing_before:
                target.write(header_record(self._report.run, file, self._missing_before))
                result.made_anew.append(f"{self._path.name}: header")
            records = 0
            close: bytes | None = None
            for line, kind in self._lines():
                if kind == "header":
                    if target.size == 0:
                        target.write(line)
                elif kind == "close":
                    close = line
                else:
                    target.write(line)
                    records += 1
            if self._counts:
                target.write(lost_record(file, self._counts, _now()))
                records += 1
            if close is None or not self._close_fits(records):
                reason = "exit" if self._last else "rotated"
                close = close_record(file, reason, records, _now())
                result.made_anew.append(f"{self._path.name}: close")
            target.write(close)
        result.files += 1
        result.records += records - bool(self._counts)
        if any(problem.kind == "zstd" for problem in file.problems):
            result.doubtful += records - bool(self._counts)

    def _lines(self) -> Iterator[tuple[bytes, str]]:
        file = self._file
        for found in Scan(file.path, file.writer, file.index, sealed=file.sealed):
            # a live file has grown since it was verified
            if found.offset >= file.end:
                return
            if found.offset not in self._skip:
                yield found.line, found.record.kind

    def _close_fits(self, records: int) -> bool:
        close = self._file.close
        if close is None or close["records"] != records:
            return False
        return close["reason"] == "exit" if self._last else True


def _now() -> str:
    return datetime.fromtimestamp(time.time(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
