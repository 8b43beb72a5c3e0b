"""Delete trajectories from the files of a run: a segment is written anew without them, a writer's last ones removed.

A note is written and synced first. Each new file is whole before it takes the place of the old one, so that whatever
interrupts this, every other trajectory is in the files; doing it again finishes it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from ..reader.records import trace_id_of
from ..reader.sealed_file import SealedFile
from ..reader.some_lines import SomeLines
from ..schemas.errors import BadTarget
from ..schemas.files import PRUNED_PREFIX, TMP_SUFFIX, segment_file_name

if TYPE_CHECKING:
    from ..reader import Run, Segment, Writer

__all__ = ["FilesPlan", "delete", "plan_files"]

# Lines that are of no use without the trajectories beside them; what they count is in the note.
_IDLE = (b'{"kind":"header"', b'{"kind":"close"', b'{"kind":"stall"', b'{"kind":"skip"')


@dataclass
class FilesPlan:
    """What a deletion does to the files of a run. `bytes`: of the files that it touches, on disk.

    `removed`: writers of which nothing is left; `rewritten`: segments of which something is. `skipped`: trajectories
    that sampling had left out, as the removed files tell.
    """

    run: Run
    gone: frozenset[str]
    removed: list[Writer] = field(default_factory=list)
    rewritten: list[Segment] = field(default_factory=list)
    bytes: int = 0
    records: int = 0
    skipped: int = 0

    @property
    def files(self) -> list[Path]:
        """The files that will be there no more."""
        return [path for writer in self.removed for path in _files_of(writer)]


def plan_files(run: Run, gone: frozenset[str], *, everything: bool) -> FilesPlan:
    """Which files hold lines of the traces `gone`. `everything`: nothing else of value is in the run."""
    plan = FilesPlan(run, gone)
    for writer in run.writers:
        touched, left = [], 0
        for segment in writer.segments:
            mine = 0
            for _, line in segment.lines():
                if trace_id_of(line) in gone:
                    mine += 1
                elif line.startswith(b'{"kind":"skip"'):
                    plan.skipped += 1
                elif not line.startswith(_IDLE):
                    left += 1
            plan.records += mine
            touched += [segment] if mine else []
        if (touched and not left) or everything:
            plan.removed.append(writer)
            plan.bytes += sum(_size(path) for path in _files_of(writer))
        else:
            plan.rewritten += touched
            plan.bytes += sum(segment.stored_bytes for segment in touched)
    return plan


def delete(plan: FilesPlan, head: dict[str, Any], trajectories: Iterable[bytes], tell: Callable[[], None]) -> Path:
    """Carry the plan out; the note's path. `head`: its first line; `trajectories`: its further lines.

    Raises:
        BadTarget: the folder refuses, or a file; what was done so far is done, and doing it again goes on.
    """
    try:
        note = _write_note(plan, head, trajectories)
        for segment in plan.rewritten:
            _rewrite(segment, plan.gone, note.name)
            tell()
        for writer in plan.removed:
            for path in _files_of(writer):
                path.unlink(missing_ok=True)
            tell()
        _sync_folder(plan.run.folder)
    except OSError as error:
        raise BadTarget(
            f"{error.filename or plan.run.folder}: {error.strerror}; not all of it was deleted",
            hint="mend that and run the same command again: it goes on",
        ) from error
    return note


def _write_note(plan: FilesPlan, head: dict[str, Any], trajectories: Iterable[bytes]) -> Path:
    now = datetime.fromtimestamp(time.time(), timezone.utc)
    note = plan.run.folder / f"{PRUNED_PREFIX}{now:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}.jsonl"
    first = {
        "kind": "pruned",
        "pruned_at": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        **head,
        "records": plan.records,
        "skipped": plan.skipped,
        "removed": [path.name for path in plan.files],
        "rewritten": [segment.path.name for segment in plan.rewritten],
    }
    tmp = note.with_name(note.name + TMP_SUFFIX)
    try:
        with open(tmp, "xb") as file:
            file.write(orjson.dumps(first) + b"\n")
            file.writelines(line + b"\n" for line in trajectories)
            file.flush()
            os.fsync(file.fileno())
        os.rename(tmp, note)
    finally:
        tmp.unlink(missing_ok=True)
    _sync_folder(plan.run.folder)
    return note


def _rewrite(segment: Segment, gone: frozenset[str], note: str) -> None:
    path = segment.path
    status = os.stat(path)
    sealed = segment.folder / segment_file_name(segment.writer, segment.index, sealed=True)
    raw = segment.folder / segment_file_name(segment.writer, segment.index)
    # left by one that was killed
    sealed.with_name(sealed.name + TMP_SUFFIX).unlink(missing_ok=True)
    with SealedFile(sealed) as file:
        for line in SomeLines(segment.lines(), lambda trace_id: trace_id not in gone, "pruned", {"note": note}):
            file.write(line)
    # a process of another host counts as alive while its files are young
    os.utime(sealed, ns=(status.st_atime_ns, status.st_mtime_ns))
    raw.unlink(missing_ok=True)


def _files_of(writer: Writer) -> list[Path]:
    folder = writer.segments[0].folder
    names = [segment_file_name(writer.id, s.index, sealed=sealed) for s in writer.segments for sealed in (True, False)]
    return [path for name in names if (path := folder / name).is_file()] + writer.side_files


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
