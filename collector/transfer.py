"""One file from here to there: copied whole under a temporary name and compared, or extended by what is new."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from ..schemas.files import TMP_SUFFIX
from .items import Item

__all__ = ["Differs", "OutOfTime", "Pace", "digest_of", "transfer"]

_CHUNK = 1 << 20
# A wait for the limit is cut into pieces of so many seconds: whoever stops it must not wait for its end.
_NAP = 0.2


class OutOfTime(Exception):
    """The deadline has come."""


class Differs(Exception):
    """What was read back from the destination is not what was written."""


class Pace:
    """How fast, and until when. `limit`: bytes a second, None for all there is; `deadline`: a time of `clock`."""

    def __init__(
        self,
        limit: int | None = None,
        deadline: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limit, self.deadline, self._clock, self._sleep = limit, deadline, clock, sleep
        self._due = clock()
        self._stopped = False

    @property
    def over(self) -> bool:
        """Whether the deadline has come, or it was stopped."""
        return self._stopped or (self.deadline is not None and self._clock() >= self.deadline)

    def stop(self) -> None:
        """End it at once; may be called by a signal handler."""
        self._stopped = True

    def take(self, size: int) -> None:
        """Called before so many bytes are moved; waits as long as the limit asks for.

        Raises:
            OutOfTime
        """
        if self.over:
            raise OutOfTime
        if self._limit is None:
            return
        now = self._clock()
        self._due = max(self._due, now) + size / self._limit
        wait = self._due - now - size / self._limit
        if self.deadline is not None:
            wait = min(wait, self.deadline - now)
        while wait > 0:
            self._sleep(min(wait, _NAP))
            wait -= _NAP
            if self.over:
                raise OutOfTime


def transfer(item: Item, pace: Pace, token: str) -> int:
    """Bring a file, or what is new of it, to its target; returns the bytes that were moved.

    `token` makes the temporary name one's own. Several may do the same at once: a whole file is published by rename,
    and what is appended is written to the place where it stands in the source, so that the same bytes go there twice.

    Raises:
        OutOfTime: nothing half done is left behind.
        Differs: the file that was there before, if any, is untouched.
        OSError: reading or writing failed.
    """
    return _extend(item, pace) if item.kind == "grows" else _copy(item, pace, token)


def _copy(item: Item, pace: Pace, token: str) -> int:
    tmp = item.target.with_name(f"{item.target.name}.{token}{TMP_SUFFIX}")
    try:
        written, moved = hashlib.blake2b(), 0
        with open(item.source, "rb", buffering=0) as source, open(tmp, "wb", buffering=0) as target:
            while chunk := source.read(_CHUNK):
                pace.take(len(chunk))
                written.update(chunk)
                _write(target.fileno(), chunk, None)
                moved += len(chunk)
            os.fsync(target.fileno())
            _forget_cache(target.fileno())
        if digest_of(tmp) != written.digest():
            raise Differs(f"{item.target}: what arrived is not what was sent; the source was kept")
        if item.twin is not None and moved != item.size and item.target.exists():
            raise Differs(f"{item.source} was written anew since it was listed; the next pass looks at it again")
        os.utime(tmp, ns=(item.modified_ns, item.modified_ns))
        os.rename(tmp, item.target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(tmp)
        raise
    _sync_folder(item.target.parent)
    if item.twin is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(item.twin)
    return moved


def _extend(item: Item, pace: Pace) -> int:
    """Append what is new, up to the last whole line of it."""
    with open(item.source, "rb", buffering=0) as source:
        end = _line_end(source.fileno(), item.done, item.size) if item.is_lines else item.size
        # what was there must still be: another pass may have put the sealed form in its place meanwhile
        create = 0 if item.done else os.O_CREAT
        target = os.open(item.target, os.O_RDWR | create | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(target).st_size < item.done:
                raise Differs(f"{item.target} has become shorter; the next pass goes on from there")
            at = item.done
            written = hashlib.blake2b()
            try:
                while at < end and (chunk := os.pread(source.fileno(), min(_CHUNK, end - at), at)):
                    pace.take(len(chunk))
                    _write(target, chunk, at)
                    written.update(chunk)
                    at += len(chunk)
            finally:
                if at > item.done:
                    _finish_extending(item, target, at, written.digest())
        finally:
            os.close(target)
    if item.sealed is not None and item.sealed.exists():
        # it came while we wrote, and holds all of it
        with contextlib.suppress(FileNotFoundError):
            os.unlink(item.target)
    return at - item.done


def _finish_extending(item: Item, target: int, end: int, digest: bytes) -> None:
    """Have what was appended on disk, and as it was sent."""
    os.fsync(target)
    _forget_cache(target)
    arrived, at = hashlib.blake2b(), item.done
    while at < end and (chunk := os.pread(target, min(_CHUNK, end - at), at)):
        arrived.update(chunk)
        at += len(chunk)
    if arrived.digest() != digest:
        # the next pass begins again where it was good
        os.ftruncate(target, item.done)
        raise Differs(f"{item.target}: what arrived is not what was sent; it was taken back")
    # a reader on another host tells by it whether the writer lives
    os.utime(target, ns=(item.modified_ns, item.modified_ns))


def _forget_cache(target: int) -> None:
    # what is read back must come from the disk, not from our own memory, where the file system allows that
    with contextlib.suppress(OSError):
        os.posix_fadvise(target, 0, 0, os.POSIX_FADV_DONTNEED)


def _line_end(source: int, begin: int, end: int) -> int:
    """Behind the last newline between two places; `begin` when there is none."""
    while end > begin:
        start = max(begin, end - _CHUNK)
        found = os.pread(source, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return begin


def _write(target: int, data: bytes, at: int | None) -> None:
    while data:
        if at is None:
            count = os.write(target, data)
        else:
            count = os.pwrite(target, data, at)
            at += count
        data = data[count:]


def digest_of(path: Path) -> bytes:
    """Of the content of a file."""
    digest = hashlib.blake2b()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.digest()


def _sync_folder(folder: Path) -> None:
    # some network file systems refuse it, and need it less
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
