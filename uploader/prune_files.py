"""Delete trajectories from the files of a run: a segment is written anew without them, a writer's last ones removed.

A note is written and synced first. Each new file is whole before it takes the place of the old one, so that whatever
interrupts this, every other trajectory is in the files; doing it again finishes it. The note's last line says that it
is finished: from then on the note vouches for nothing that is found here again.

What has changed since it was read is not touched. One process at a time deletes, where the file system has locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from ..reader.pruned import PRUNING_DONE
from ..reader.records import trace_id_of
from ..reader.sealed_file import SealedFile
from ..reader.some_lines import SomeLines
from ..schemas.errors import BadTarget
from ..schemas.files import PRUNED_PREFIX, TMP_SUFFIX, parse_segment_name, segment_file_name

if TYPE_CHECKING:
    from ..reader import Run, Segment, Writer

__all__ = ["FilesPlan", "Stamps", "delete", "plan_files", "stamps_of"]

# A file's path -> its size and time of change.
Stamps = dict[Path, tuple[int, int]]

# In the names of temporary files: they are this command's.
_OWN = "prune-"
# Lines that are of no use without the trajectories beside them; what they count is in the note.
_IDLE = (b'{"kind":"header"', b'{"kind":"close"', b'{"kind":"stall"', b'{"kind":"skip"')


@dataclass
class FilesPlan:
    """What a deletion does to the files of a run. `bytes`: of the files that it touches, on disk.

    `removed`: writers of which nothing is left; `rewritten`: segments of which something is. `skipped`: trajectories
    that sampling had left out, as the removed files tell. `stamps`: all files of the run before they were read.
    """

    run: Run
    gone: frozenset[str]
    stamps: Stamps = field(default_factory=dict)
    removed: list[Writer] = field(default_factory=list)
    rewritten: list[Segment] = field(default_factory=list)
    bytes: int = 0
    records: int = 0
    skipped: int = 0

    @property
    def files(self) -> list[Path]:
        """The files that will be there no more."""
        return [path for writer in self.removed for path in _files_of(writer)]


def stamps_of(run: Run) -> Stamps:
    """What the run's files look like now; to be taken before they are read."""
    paths = (path for writer in run.writers for path in _files_of(writer))
    return {path: stamp for path in paths if (stamp := _stamp(path)) is not None}


def plan_files(
    run: Run,
    gone: frozenset[str],
    stamps: Stamps,
    *,
    everything: bool,
    writing: set[str],
    damaged: set[Path],
    begun: frozenset[str] = frozenset(),
) -> FilesPlan:
    """Which files hold lines of the traces `gone`.

    `everything`: nothing else of value is in the run. `writing`: ids of writers that are not touched. `damaged`: files
    of which nobody can say what else is in them; their writers are not removed. `begun`: names of files that an
    interrupted deletion was about to remove.
    """
    plan = FilesPlan(run, gone, stamps)
    names = set(map(_name, damaged))
    for writer in run.writers:
        if writer.id in writing:
            continue
        touched = []
        left = sum((writer.id, segment.index) in names for segment in writer.segments)
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
        meant = touched or any(path.name in begun for path in _files_of(writer))
        if (meant and not left) or everything:
            # those without trajectories first: interrupted, the next time finds what is left of them
            plan.removed.insert(len(plan.removed) if touched else 0, writer)
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
        with _alone(plan.run.folder) as locked:
            for writer in plan.removed:
                _check_unchanged(plan, writer)
            for segment in plan.rewritten:
                _check_file(plan, segment.path)
            note = _write_note(plan, head, trajectories)
            for segment in plan.rewritten:
                _rewrite(segment, plan, note.name, locked=locked)
                tell()
            for writer in plan.removed:
                _check_unchanged(plan, writer)
                for path in _files_of(writer):
                    path.unlink(missing_ok=True)
                tell()
            _sync_folder(plan.run.folder)
            _finish(note)
    except OSError as error:
        raise BadTarget(
            f"{error.filename or plan.run.folder}: {error.strerror}; not all of it was deleted",
            hint="mend that and run the same command again: it goes on",
        ) from error
    return note


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Keep other prunes of this folder out; False where the file system has no locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadTarget(
                f"{folder}: another prune is deleting here; this one deleted nothing",
                hint="run it again when it has ended",
            ) from None
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def _check_unchanged(plan: FilesPlan, writer: Writer) -> None:
    """Whether the writer's files are those that were read, no more and no fewer."""
    # one that had gone when it was to be removed is as well
    known = {path for path in plan.stamps if _writer_of(path) == writer.id}
    listed = {plan.run.folder / name for name in os.listdir(plan.run.folder) if _writer_of(Path(name)) == writer.id}
    for path in sorted({*known, *listed, *writer.side_files}):
        _check_file(plan, path)


def _check_file(plan: FilesPlan, path: Path) -> None:
    if _stamp(path) != plan.stamps.get(path):
        raise BadTarget(
            f"{path}: has changed since it was read, and was not deleted, nor what was to follow",
            hint="does its process live, or does something copy or compress files here? Run the same command again",
        )


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


def _name(path: Path) -> tuple[str, int] | None:
    parsed = parse_segment_name(path)
    return (parsed.writer, parsed.index) if parsed is not None else None


def _writer_of(path: Path) -> str:
    parsed = parse_segment_name(path)
    return parsed.writer if parsed is not None else ""


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


def _finish(note: Path) -> None:
    # a collector may have taken it along
    with contextlib.suppress(FileNotFoundError), open(os.open(note, os.O_WRONLY | os.O_APPEND), "ab") as file:
        file.write(PRUNING_DONE + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _rewrite(segment: Segment, plan: FilesPlan, note: str, *, locked: bool) -> None:
    path = segment.path
    _check_file(plan, path)
    status = os.stat(path)
    sealed = segment.folder / segment_file_name(segment.writer, segment.index, sealed=True)
    raw = segment.folder / segment_file_name(segment.writer, segment.index)
    if locked:
        # left by one that was killed
        for name in os.listdir(segment.folder):
            if name.startswith(f"{sealed.name}.{_OWN}") and name.endswith(TMP_SUFFIX):
                (segment.folder / name).unlink(missing_ok=True)
    gone, said = plan.gone, {"note": note}
    with SealedFile(sealed, _OWN + secrets.token_hex(4)) as file:
        for line in SomeLines(segment.lines(), lambda trace_id: trace_id not in gone, "pruned", said, said):
            file.write(line)
    if path == raw:
        # what was added meanwhile is in the raw one alone, which then serves
        _check_file(plan, path)
    # a process of another host counts as alive while its files are young
    os.utime(sealed, ns=(status.st_atime_ns, status.st_mtime_ns))
    raw.unlink(missing_ok=True)


def _files_of(writer: Writer) -> list[Path]:
    """In the order in which they may go: side files that are left without segments would never be found again."""
    folder = writer.segments[0].folder
    names = [segment_file_name(writer.id, s.index, sealed=sealed) for s in writer.segments for sealed in (True, False)]
    return writer.side_files + [path for name in names if (path := folder / name).is_file()]


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
