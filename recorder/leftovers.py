"""What dead processes left raw: compressed by the next attempt, or on demand.

A raw segment is sealed when its process is dead for sure: of this host, boot and pid namespace, and its pid is gone or
somebody else's. A torn last line is kept byte for byte. Any number of processes may do this at once: who holds the lock
of a raw file seals it; without locks (some network file systems) several write the same content under names of their
own, and the last rename wins.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..schemas.files import TMP_SUFFIX, parse_segment_name
from ..schemas.lines import parse_line
from .identity import boot_id, pid_namespace, process_stat
from .loading import loading
from .sealing import seal, sealed_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RawSegment", "is_alive", "iter_raw", "seal_dead"]

# A header is a few hundred bytes; a file without a newline in this many has none.
_HEADER_BYTES = 1 << 20

Outcome = Literal["sealed", "alive", "unknown", "busy", "gone", "failed"]


class RawSegment(NamedTuple):
    """What became of one raw file.

    `outcome`: `sealed`; `alive` (its process runs); `unknown` (another host or container, or no header: nobody here can
    tell); `busy` (another process seals it); `gone` (it did, or the file was removed); `failed`, with the reason in
    `detail`.
    """

    path: Path
    outcome: Outcome
    sealed: Path | None = None
    detail: str = ""


def seal_dead(folder: Path, *, idle: float | None = None) -> list[RawSegment]:
    """Seal what dead processes left raw in a run's folder; says of every raw file there what became of it.

    With `idle`, files whose process nobody here can ask are sealed too when they did not change for that many seconds.

    Raises:
        OSError: the folder cannot be listed.
    """
    return sorted(iter_raw(folder, idle=idle))


def iter_raw(folder: str | Path, own: str = "", idle: float | None = None) -> Iterator[RawSegment]:
    """As `seal_dead`, one file at a time and in random order; leaves out the files of the writer `own`.

    Raises:
        OSError: the folder cannot be listed.
    """
    names = os.listdir(folder)
    # many processes start at once: each begins with another file
    names.sort(key=lambda name: hash((name, os.getpid())))
    for name in names:
        parsed = parse_segment_name(name)
        if parsed is not None and not parsed.sealed and parsed.writer != own:
            with loading():
                from pathlib import Path
            path = Path(folder, name)
            try:
                yield _seal_one(path, idle)
            except FileNotFoundError:
                yield RawSegment(path, "gone")
            except Exception as error:  # noqa: BLE001
                text = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
                yield RawSegment(path, "failed", None, text)


def _seal_one(raw: Path, idle: float | None) -> RawSegment:
    # what is no file, a pipe say, must not keep us waiting for whoever writes to it
    fd = os.open(raw, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        alive = is_alive(_header(fd))
        if alive is None and idle is not None:
            alive = time.time() - status.st_mtime < idle
        if alive is not False:
            return RawSegment(raw, "alive" if alive else "unknown")
        locked = _lock(fd)
        if locked is False:
            return RawSegment(raw, "busy")
        now = os.stat(raw)
        if (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino):
            return RawSegment(raw, "gone")
        if locked:
            _remove_unfinished(raw)
        return RawSegment(raw, "sealed", seal(raw, os.urandom(4).hex()))
    finally:
        os.close(fd)


def _header(fd: int) -> dict[str, Any]:
    first, newline, _ = os.pread(fd, _HEADER_BYTES, 0).partition(b"\n")
    try:
        line = parse_line(first) if newline else None
    except ValueError:
        return {}
    return line.head if line is not None and line.kind == "header" else {}


def _lock(fd: int) -> bool | None:
    """True: ours until we close or die; False: another process has it; None: no locks here."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None


def _remove_unfinished(raw: Path) -> None:
    """Remove what a seal of this file left that was itself killed."""
    start = sealed_path(raw).name
    for name in os.listdir(raw.parent):
        if name.startswith(start) and name.endswith(TMP_SUFFIX):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(raw.parent / name)


def is_alive(header: dict[str, Any]) -> bool | None:
    """Whether the process of a header runs; None when that cannot be told from here."""
    pid, start = header.get("pid"), header.get("pid_start")
    if not isinstance(pid, int) or not isinstance(start, int) or pid <= 0:
        return None
    here = (boot_id(), pid_namespace())
    if None in here or here != (header.get("boot_id"), header.get("pid_ns")):
        return None
    try:
        # also sees processes that /proc hides from us
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    found, by_pid, ours = process_stat(pid), process_stat(os.getpid()), process_stat("self")
    if found is None or by_pid is None or ours is None or by_pid.start != ours.start:
        # hidden from us, or /proc belongs to another pid namespace
        return None
    return found.start == start and not found.ended
