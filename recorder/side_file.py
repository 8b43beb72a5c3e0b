"""The side file of a process: contents too large for a line, each stored once, appended before the line that refers
to it.

    <writer>.<index>.blobs
        {"kind":"header",…}\\n
        {"kind":"blob","digest":"…","size":N}\\n<N bytes>\\n      as often as needed
        {"kind":"close","blobs":N}\\n

A content is written before `keep` returns, so that SIGKILL costs nothing of a returned call. Exceptions, which wait
in memory for the background thread: raw pixels and arrays above VERL_TRACE_MEDIA_SYNC, everything while the disk is
slow, and what a signal handler records inside of a write. They may take `QUEUE_BYTES`; what does not fit is left out,
with a mark on its line and a count.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

import orjson

from ..schemas.files import side_file_name
from ..schemas.interrupts import is_of_handler
from ..schemas.side import SideFile
from .appender import RETRY_AFTER, STALL_SECONDS
from .counters import Counters, warn_once
from .identity import Identity
from .locking import within
from .sealing import sync_folder
from .segment import Segment, close_quietly, create, whole_or_nothing, write_rest, write_whole
from .settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

__all__ = ["SideFileWriter"]

# What may wait in memory, in bytes; one content may be larger when nothing else waits.
QUEUE_BYTES = 256 << 20
# A side file grows to this size: copied and checked in one piece, and few in number.
FILE_BYTES = 1 << 30
# Contents that are remembered so as to be stored once; beyond it they may be stored again.
REMEMBERED = 100_000
# How long contents go by the background thread after a write that took too long, in seconds.
SLOW_PAUSE = 10.0


class SideFileWriter(SideFile):
    """Stores contents for one process. `paused` names the setting that forbids to write on, "" when none does."""

    def __init__(
        self,
        folder: str | Path,
        identity: Identity,
        about: dict[str, Any],
        settings: Settings,
        counters: Counters,
        paused: Callable[[], str],
    ) -> None:
        self.folder = folder
        self.total = 0
        self.accelerators = settings.accelerators
        self.on_queued: Callable[[], None] = lambda: None
        self._identity = identity
        self._about = about
        self._settings = settings
        self._counters = counters
        self._paused = paused
        self._lock = threading.RLock()
        self._writing = False
        self._file: Segment | None = None
        # as large as they may be; the background thread finishes them, since an fsync takes long
        self._full: deque[Segment] = deque()
        self._next_index = 0
        self._known: set[str] = set()
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._waiting_bytes = 0
        self._blocked_until = 0.0
        self._reason = ""
        self._slow_until = 0.0

    # -- in the traced code's thread ---------------------------------------------------------------------------------

    def keep(self, digest: str, content: bytes, *, in_background: bool) -> str:
        """Store a content; "" or why it is not stored. Never raises."""
        if digest in self._known:
            return ""
        reason = self._paused() or (self._reason if monotonic() < self._blocked_until else "")
        if reason:
            return self._lose(reason)
        if in_background and len(content) > self._settings.media_sync:
            return self._queue(digest, content)
        lock = self._lock
        for taken in within(lock, STALL_SECONDS) if monotonic() >= self._slow_until else ():
            try:
                if not taken:
                    break
                # inside of our own thread's write: not into the middle of its content
                return self._queue(digest, content) if self._writing else self._write(digest, content)
            finally:
                if taken:
                    lock.release()
        return self._queue(digest, content)

    def _write(self, digest: str, content: bytes, *, waited: bool = False) -> str:
        """Append a content, which may be one that `waited` and is known for that; the lock is held."""
        if digest in self._known and not waited:
            return ""
        begun = monotonic()
        self._writing = True
        try:
            file = self._open_file()
            head = b'{"kind":"blob","digest":"%s","size":%d}\n' % (digest.encode(), len(content))
            parts = (head, content, b"\n")
            size = len(head) + len(content) + 1
            done = os.writev(file.fd, parts)
            if done != size:
                with whole_or_nothing(file.fd, done):
                    write_rest(file.fd, b"".join(parts), done)
        except BaseException as error:
            self._leave()
            self._known.discard(digest)
            if not isinstance(error, OSError) or is_of_handler(error):
                raise
            self._reason, self._blocked_until = os.strerror(error.errno or 5), begun + RETRY_AFTER
            warn_once("side-file", f"{self.folder}: {self._reason}; large values are left out until it recovers")
            return self._lose(self._reason)
        finally:
            self._writing = False
        file.size += size
        file.records += 1
        self.total += size
        self._remember(digest)
        if monotonic() - begun > STALL_SECONDS:
            self._slow_until = monotonic() + SLOW_PAUSE
        return ""

    def _remember(self, digest: str) -> None:
        if len(self._known) >= REMEMBERED:
            self._known = {waiting for waiting, _ in list(self._waiting)}
        self._known.add(digest)

    def _queue(self, digest: str, content: bytes) -> str:
        if self._waiting_bytes and self._waiting_bytes + len(content) > QUEUE_BYTES:
            return self._lose("too many large values wait to be written")
        self._waiting_bytes += len(content)
        self._remember(digest)
        self._waiting.append((digest, content))
        self.on_queued()
        return ""

    def _lose(self, reason: str) -> str:
        self._counters.lose_content(reason)
        return reason

    def _open_file(self) -> Segment:
        file = self._file
        if file is not None and not file.is_ours():
            self._forsake(file)
            file = None
        if file is not None and file.begin + file.size < FILE_BYTES:
            return file
        new, index = create(self.folder, self._identity, self._about, self._next_index, side_file_name)
        self._next_index = index + 1
        self._file = new
        if file is not None:
            self._full.append(file)
        return new

    def _leave(self) -> None:
        """Go on in another file: half a content may be at the end of this one."""
        file, self._file = self._file, None
        if file is not None:
            close_quietly(file.take_descriptor())

    def _forsake(self, file: Segment) -> None:
        """Go on in another file: the program closed the descriptor. What was written before is whole."""
        text = "the program closed its descriptor; large values go on in a new file"
        warn_once("side-descriptor", f"{file.name}: {text}")
        self._file = None

    # -- in the background thread ------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Finish full files, write what waits."""
        while self._full:
            _finish(self._full.popleft())
        while self._waiting and monotonic() >= self._blocked_until and not self._paused():
            digest, content = self._waiting[0]
            with self._lock:
                self._write(digest, content, waited=True)
                self._waiting.popleft()
                self._waiting_bytes -= len(content)

    def sync(self) -> None:
        """fsync the open file, on a descriptor of its own."""
        with self._lock:
            file = self._file
            fd = os.dup(file.fd) if file is not None else -1
        if file is None:
            return
        try:
            os.fsync(fd)
            if not file.is_durable:
                sync_folder(self.folder)
                file.is_durable = True
        except OSError as error:
            warn_once("side-fsync", f"{file.name}: fsync: {error.strerror}; a power loss may cost large values")
        finally:
            close_quietly(fd)

    def check_health(self) -> None:
        """Notice a file that was removed while in use: what it held is stored again when it is met again. And one whose
        descriptor the program closed."""
        file = self._file
        if file is None:
            return
        if not file.is_removed():
            with self._lock:
                if file is self._file and not file.is_ours():
                    self._forsake(file)
            return
        warn_once("side-removed", f"{file.name} was removed while in use; the large values in it are lost")
        with self._lock:
            self._leave()
            self._known = {waiting for waiting, _ in list(self._waiting)}
        for _ in range(file.records):
            self._counters.lose_content("file removed")

    def close(self) -> None:
        """Write what waits and end the file; a later content opens another."""
        self.drain()
        with self._lock:
            while self._waiting:
                _, content = self._waiting.popleft()
                self._waiting_bytes -= len(content)
                self._lose("not written at exit")
            file, self._file = self._file, None
        if file is not None:
            self._full.append(file)
        while self._full:
            _finish(self._full.popleft())

    def after_fork(self, identity: Identity, counters: Counters) -> None:
        """In a forked child: leave the parent's file alone; what waits is written by the parent."""
        inherited, on_queued = [*self._full, *([self._file] if self._file is not None else ())], self.on_queued
        self.__init__(self.folder, identity, self._about, self._settings, counters, self._paused)  # type: ignore[misc]
        self.on_queued = on_queued
        for file in inherited:
            close_quietly(file.take_descriptor())


def _finish(file: Segment) -> None:
    """Say that the file is whole, sync and close it: no sealed form will take its place."""
    fd = file.take_descriptor()
    if fd < 0:
        # the program closed it, and what is in the file is whole
        return
    try:
        write_whole(fd, orjson.dumps({"kind": "close", "blobs": file.records}) + b"\n")
        os.fsync(fd)
    except OSError as error:
        warn_once("side-finish", f"{file.name}: {error.strerror} while finishing the file; its contents are kept")
    close_quietly(fd)
