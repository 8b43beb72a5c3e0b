"""The open segment of this process: one append a record, safe against SIGKILL as soon as it returns.

The lock is held for the append, or for swapping one descriptor for another, and for nothing else: files are opened,
synced, closed and renamed outside of it. A descriptor is closed only after it was swapped out, so no append can meet a
reused number.

Three states: *open* (append at once), *blocked* (the disk refused: records are counted as lost, and every second one
append tries again), *stalled* (a write took longer than a second: records wait in a bounded queue that the background
thread drains; only here can SIGKILL cost records of returned calls).
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import orjson

from ..schemas.files import segment_file_name
from .counters import Counters, announce, warn_once
from .identity import Identity
from .ids import timestamp
from .settings import Settings

__all__ = ["SegmentWriter"]

# After a refusal, one append a second finds out whether the disk is well again.
RETRY_AFTER = 1.0
# A write this slow means a sick disk; the event loop must not meet a second one.
STALL_SECONDS = 1.0
# What may wait in memory while the disk is stalled.
QUEUE_BYTES = 32 << 20


class SegmentWriter:
    """Appends lines to `<folder>/<writer>.<index>.jsonl`. `append` never raises; all trouble is counted."""

    def __init__(self, folder: Path, identity: Identity, about: dict[str, Any], settings: Settings, counters: Counters):
        self.folder = folder
        self.identity = identity
        self.counters = counters
        self._about = about
        self._settings = settings
        self._indexes = itertools.count()
        self._lock = threading.RLock()
        self._fd = -1
        self._path: Path | None = None
        self._opened = 0.0
        self.size = 0
        self._records = 0
        self._total = 0
        self._lost: Counter[str] = Counter()
        self._lost_since = 0
        self._blocked_until = 0.0
        self._paused = ""
        # held for list operations only, so that nobody waits here for a disk
        self._queue_lock = threading.Lock()
        self._queue: deque[bytes] | None = None
        self._queued = 0

    # -- hot path ---------------------------------------------------------------------------------------------------

    def append(self, line: bytes) -> bool:
        """Append one whole line (with its newline). False when it was counted as lost instead."""
        if self._queue is not None and (taken := self._enqueue(line, begin=False)) is not None:
            return taken
        if self._fd < 0 and not self._open_late():
            return self._lose("not open")
        if not self._lock.acquire(timeout=STALL_SECONDS):
            # another thread is inside a slow write
            return bool(self._enqueue(line, begin=True))
        try:
            if self._paused or (self._blocked_until and time.monotonic() < self._blocked_until):
                return self._lose(self._paused or "blocked")
            if self._lost:
                line = self._lost_record() + line
            return self._write(line)
        finally:
            self._lock.release()

    def _write(self, line: bytes) -> bool:
        begun = time.monotonic()
        done = 0
        try:
            done = os.write(self._fd, line)
            while done < len(line):
                # a write of 2 GiB and more comes in parts, and so does one that meets the end of the disk
                done += os.write(self._fd, memoryview(line)[done:])
        except OSError as error:
            self._refused(error, done)
            return False
        self.size += len(line)
        self._total += len(line)
        self._records += 1
        self.counters.written += 1
        self._blocked_until = 0.0
        if self._lost:
            self._lost.clear()
        if time.monotonic() - begun > STALL_SECONDS:
            self._stall()
        return True

    def _refused(self, error: OSError, done: int) -> None:
        reason = errno.errorcode.get(error.errno or 0, "EIO")
        if done:
            try:
                os.ftruncate(self._fd, os.lseek(self._fd, 0, os.SEEK_END) - done)
            except OSError:
                # the torn line stays and is seen as damage; a new segment keeps the next line apart from it
                self._fd_broken()
        self._blocked_until = time.monotonic() + RETRY_AFTER
        self._lose(reason)
        warn_once(
            f"refused-{reason}",
            f"{self._path}: {error.strerror}; calls go on, their records count as lost until it recovers",
        )

    def _fd_broken(self) -> None:
        fd, self._fd = self._fd, -1
        # closing is deferred: the number must not be reused while this lock is held
        threading.Thread(target=_close, args=(fd,), daemon=True).start()

    def _lose(self, reason: str) -> bool:
        if not self._lost:
            self._lost_since = time.time_ns()
        self._lost[reason] += 1
        self.counters.dropped[reason] += 1
        return False

    def _lost_record(self) -> bytes:
        return (
            orjson.dumps(
                {
                    "kind": "lost",
                    "since": timestamp(self._lost_since),
                    "until": timestamp(time.time_ns()),
                    "counts": dict(self._lost),
                    "records": sum(self._lost.values()),
                }
            )
            + b"\n"
        )

    def _stall(self) -> None:
        with self._queue_lock:
            if self._queue is not None:
                return
            self._queue = deque()
            self._queued = 0
        announce(
            f"warning: {self._path}: a write took over {STALL_SECONDS:g} s; writing in the background until it recovers"
        )

    def _enqueue(self, line: bytes, *, begin: bool) -> bool | None:
        """Queue a line; None when nothing is queued just now and `begin` does not ask for it."""
        with self._queue_lock:
            if self._queue is None:
                if not begin:
                    return None
                self._queue = deque()
                self._queued = 0
            if self._queued + len(line) <= QUEUE_BYTES:
                self._queued += len(line)
                self._queue.append(line)
                return True
        return self._lose("queue full")

    # -- opening, rotating, closing: any thread, no lock held across a system call but the swap -----------------------

    @property
    def path(self) -> Path | None:
        """The open segment, None when there is none."""
        return self._path

    def open(self) -> bool:
        """Open the next segment and write its header; False (with one warning) when the folder refuses."""
        opened = self._new_segment()
        if opened is None:
            return False
        fd, path = opened
        if self._fd >= 0:
            _close(fd)
            path.unlink(missing_ok=True)
            return True
        self._swap(fd, path)
        return True

    def _open_late(self) -> bool:
        """First record of a forked child, or after trouble: open now, but not more than once a second."""
        now = time.monotonic()
        if now < self._blocked_until:
            return False
        if self.open():
            return True
        self._blocked_until = time.monotonic() + RETRY_AFTER
        return False

    def _new_segment(self) -> tuple[int, Path] | None:
        index = next(self._indexes)
        path = self.folder / segment_file_name(self.identity.writer, index)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                header = orjson.dumps(self.identity.header(self._about, index)) + b"\n"
                if os.write(fd, header) != len(header):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except BaseException:
                _close(fd)
                path.unlink(missing_ok=True)
                raise
        except OSError as error:
            warn_once(
                f"open-{error.errno}",
                f"cannot record to {path}: {error.strerror}; calls go on, their records count as lost until it works",
            )
            return None
        return fd, path

    def _swap(self, fd: int, path: Path | None) -> tuple[int, Path | None, int]:
        with self._lock:
            old = (self._fd, self._path, self._records)
            self._fd, self._path = fd, path
            self.size = 0
            self._records = 0
            self._opened = time.monotonic()
            self._blocked_until = 0.0
        return old

    def rotation_due(self, min_seal_bytes: int) -> bool:
        """Whether the open segment is large, or old and not tiny."""
        if self._fd < 0:
            return False
        if self.size >= self._settings.segment_bytes:
            return True
        return self.size >= min_seal_bytes and time.monotonic() - self._opened >= self._settings.seal_age

    def rotate(self) -> Path | None:
        """Go on in a new segment; the finished one's path, closed and synced, ready for sealing."""
        opened = self._new_segment()
        if opened is None:
            return None
        return self._finish(self._swap(*opened), "rotated")

    def close(self) -> Path | None:
        """End the open segment with a `close` record. A later append opens a new one."""
        self.drain()
        with self._lock:
            if self._lost and self._fd >= 0:
                self._write(self._lost_record())
        return self._finish(self._swap(-1, None), "exit")

    def _finish(self, old: tuple[int, Path | None, int], reason: str) -> Path | None:
        fd, path, records = old
        if fd < 0:
            return None
        record = {
            "kind": "close",
            "closed_at": timestamp(time.time_ns()),
            "reason": reason,
            "records": records,
            "counters": self.counters.as_dict(),
        }
        try:
            os.write(fd, orjson.dumps(record) + b"\n")
            os.fsync(fd)
        except OSError as error:
            warn_once("finish", f"{path}: {error.strerror} while finishing the file; its records are kept as they are")
            return None
        finally:
            _close(fd)
        return path

    # -- the background thread's part --------------------------------------------------------------------------------

    def sync(self) -> None:
        """fsync the open segment, on a descriptor of its own so that a swap meanwhile does no harm."""
        with self._lock:
            fd = os.dup(self._fd) if self._fd >= 0 else -1
        if fd < 0:
            return
        try:
            os.fsync(fd)
        except OSError as error:
            warn_once("fsync", f"{self._path}: fsync: {error.strerror}")
        finally:
            _close(fd)

    def drain(self) -> None:
        """Write what waits in the queue of a stalled disk; direct appends again once it is empty and the disk quick."""
        while self._queue is not None:
            begun = time.monotonic()
            # the lock goes first: a direct append must not overtake the last queued line
            with self._lock:
                with self._queue_lock:
                    if not self._queue:
                        self._queue = None
                        announce(f"{self._path}: the disk answers again; writing directly")
                        return
                    line = self._queue.popleft()
                    self._queued -= len(line)
                if self._fd < 0:
                    self._lose("not open")
                else:
                    self._write(line)
            if time.monotonic() - begun > STALL_SECONDS:
                return

    @property
    def waiting(self) -> int:
        """Records in the queue of a stalled disk."""
        return len(self._queue or ())

    def check_health(self) -> None:
        """Keep the reserve of the disk and the cap of the run; notice a folder that was removed under the open file."""
        if self._fd < 0:
            if self._lost:
                self._open_late()
            return
        paused = ""
        try:
            space = os.statvfs(self.folder)
            if space.f_bavail * space.f_frsize < self._settings.min_free:
                paused = "MIN_FREE"
            gone = os.fstat(self._fd).st_nlink == 0
        except OSError:
            gone = True
        if self._settings.max_bytes and self._total >= self._settings.max_bytes:
            paused = "MAX_BYTES"
        if gone:
            self._reopen_after_removal()
        elif paused != self._paused:
            self._pause(paused)

    def _pause(self, reason: str) -> None:
        self._paused = reason
        if reason:
            warn_once(
                f"paused-{reason}",
                f"{self.folder}: recording pauses (VERL_TRACE_{reason}); calls go on, their records count as lost",
            )

    def _reopen_after_removal(self) -> None:
        warn_once("removed", f"{self._path} was removed while in use; recording goes on in a new file")
        fd, _, records = self._swap(-1, None)
        _close(fd)
        with self._lock:
            for _ in range(records):
                self._lose("file removed")
            self.counters.written -= records
        self.open()

    def after_fork(self, identity: Identity, counters: Counters) -> None:
        """In a forked child: leave the parent's file alone, start one of our own at the first record."""
        fd = self._fd
        self.__init__(self.folder, identity, self._about, self._settings, counters)  # type: ignore[misc]
        if fd >= 0:
            _close(fd)


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError as error:
        warn_once("close", f"closing a span file: {error.strerror}")
