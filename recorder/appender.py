"""The hot path: one append a record, safe against SIGKILL as soon as it returns.

The lock is held for the append, or for swapping one segment for another, and for nothing else: files are made, synced,
closed and renamed outside of it. A segment is closed only after it was swapped out, so no append can meet a reused
descriptor. A signal handler or a finaliser that traces may interrupt its own thread anywhere: the locks are re-entrant,
and a line that comes while half of another is written waits for the rest of it.

Three states: *open* (append at once), *blocked* (the disk refused, or a limit is reached: records are counted as lost,
and every second one append tries again), *stalled* (writing took over a second: records wait in a bounded backlog that
the background thread writes; only here can SIGKILL cost records of returned calls). `_hindered` is true in all but the
plain case, and is all that the hot path asks.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

from ..schemas.interrupts import is_of_handler
from .backlog import Backlog
from .counters import Counters, announce, warn_once
from .locking import within
from .segment import Broken, Segment, whole_or_nothing, write_rest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["OPENING", "Appender"]

# After a refusal, one append a second finds out whether the disk is well again.
RETRY_AFTER = 1.0
# What slow writes may cost in a row before writing moves to the background; the event loop must not pay it twice.
STALL_SECONDS = 1.0
# A write to the page cache takes microseconds; one this slow counts. Of what slow writes cost, 0.2 s a second are
# forgiven, so that a disk that is slow now and then is not called stalled.
SLOW_SECONDS = 0.1
FORGIVEN_A_SECOND = 0.2
# Bytes a second; a line of 200 MB takes its time on a disk that is well, too.
HEALTHY_RATE = 20e6
# What may wait in memory while the disk is stalled.
QUEUE_BYTES = 32 << 20

# What a system takes at once is 1,024 (IOV_MAX) or more.
_MOST_PIECES = 1000

# Not a refusal: another thread is opening a segment, and the disk keeps it waiting.
OPENING = "opening"


class Appender:
    """Appends lines to the open segment. `append` never raises for a disk; all trouble is counted.

    `on_full` is called once when a segment has reached its size; it must not wait.
    """

    def __init__(self, folder: str | Path, segment_bytes: int, counters: Counters) -> None:
        self.folder = folder
        self.counters = counters
        self.on_full: Callable[[], None] = _nothing
        self._segment_bytes = segment_bytes
        self._lock = threading.RLock()
        # held while `_hindered` or `_backlog` changes, never across a system call
        self._state = threading.RLock()
        self._segment: Segment | None = None
        self._hindered = True
        self._full_at = segment_bytes
        self._total = 0
        self._writing = False
        self._deferred: deque[bytes] = deque()
        self._reason = ""
        self._blocked_until = 0.0
        self._paused = ""
        self._backlog: Backlog | None = None
        self._slow_sum = 0.0
        self._slow_at = 0.0
        # segments that nothing is appended to any more and that are still to be closed; True: broken
        self._left: deque[tuple[Segment, bool]] = deque()
        # told by the background thread, so that no caller waits for a terminal
        self._news: deque[tuple[str, str]] = deque()

    # -- hot path ---------------------------------------------------------------------------------------------------

    def append(self, line: bytes, rest: tuple[bytes, ...] = ()) -> bool:
        """Append one whole line (with its newline). False when it was counted as lost instead.

        `rest`: where the line is large, its further pieces, which are then copied once only: into the file.
        """
        if not self._hindered:
            # a signal handler that forks replaces the lock
            lock = self._lock
            taken = False
            try:
                # asked without a time limit first, which takes less
                taken = lock.acquire(False) or lock.acquire(True, STALL_SECONDS)
                if not taken:
                    # another thread is inside a slow write
                    return self._put_aside(b"".join((line, *rest)))
                if not (self._hindered or self._writing):
                    return self._write(line, rest)
            finally:
                # not by one condition: in Python 3.10 a signal handler may raise where that jumps
                if taken:
                    lock.release()
                elif lock._is_owned():  # type: ignore[attr-defined]
                    # a signal handler raised before `taken` was stored
                    lock.release()
        return self._append_hindered(b"".join((line, *rest)))

    def _write(self, line: bytes, rest: tuple[bytes, ...] = (), lines: int = 1, calls: int = 1) -> bool:
        """Write to the open segment; the lock is held. Counted before: an exception of a signal handler may follow."""
        segment: Segment = self._segment  # type: ignore[assignment]
        begun = monotonic()
        size = len(line)
        if rest:
            size += sum(map(len, rest))
            if len(rest) >= _MOST_PIECES:
                line, rest = b"".join((line, *rest)), ()
        # no condition before the `try`: in Python 3.10 a signal handler may raise where that jumps
        self._writing = True
        segment.records += lines
        segment.notes += lines - calls
        self.counters.written += calls
        try:
            done = os.writev(segment.fd, (line, *rest)) if rest else os.write(segment.fd, line)
            if done != size:
                self._write_rest(segment, b"".join((line, *rest)), done)
            # an exception of a signal handler must find the size right: here, for behind a jump one may be raised
            segment.size += size
            self._total += size
        except BaseException as error:
            is_refused = isinstance(error, OSError) and not is_of_handler(error)
            # else a signal handler raised
            if is_refused or not self._is_written(segment, size):
                segment.records -= lines
                segment.notes -= lines - calls
                self.counters.written -= calls
                if is_refused:
                    self._refused(error, calls)  # type: ignore[arg-type]
                    return False
                self._lose("interrupted", calls)
            raise
        finally:
            self._writing = False
            if self._deferred:
                self._write_deferred()
        if monotonic() - begun > SLOW_SECONDS:
            self._was_slow(begun, size)
        if segment.size >= self._full_at:
            self._full_at = sys.maxsize
            self.on_full()
        return True

    def _write_rest(self, segment: Segment, line: bytes, done: int) -> None:
        """The rest of a line that the disk took in part."""
        try:
            with whole_or_nothing(segment.fd, done):
                write_rest(segment.fd, line, done)
        except Broken:
            self._leave_broken(segment)
            raise

    def _is_written(self, segment: Segment, size: int) -> bool:
        """Whether the line that an exception interrupted is in the file; a part of it is taken out again."""
        start = segment.begin + segment.size
        try:
            end = os.lseek(segment.fd, 0, os.SEEK_END)
            if end == start + size:
                segment.size += size
                self._total += size
                return True
            if end != start:
                os.ftruncate(segment.fd, start)
        except OSError:
            self._leave_broken(segment)
        return False

    def _leave_broken(self, segment: Segment) -> None:
        """Half a line stays and is seen as a torn tail: nothing may follow it in this file."""
        self._left.append((segment, True))
        self._segment = None
        self._settle()

    def _write_deferred(self) -> None:
        """The calls that a signal handler or a finaliser made inside of the write that is now over."""
        while self._deferred:
            self._write_or_lose(self._deferred.popleft())

    # -- beside the hot path: trouble --------------------------------------------------------------------------------

    def _append_hindered(self, line: bytes) -> bool:
        if self._backlog is not None and (taken := self._enqueue(line)) is not None:
            return taken
        if self._segment is None and not self._writing:
            reason = self._ensure_open()
            if reason == OPENING:
                return self._put_aside(line)
            if reason:
                return self._lose(reason)
        lock = self._lock
        for taken in within(lock, STALL_SECONDS):
            try:
                if not taken:
                    break
                return self._append_locked(line)
            finally:
                if taken:
                    lock.release()
        return self._put_aside(line)

    def _append_locked(self, line: bytes) -> bool:
        try:
            if self._writing:
                # inside of our own thread's write: never into the middle of its line
                self._deferred.append(line)
                return True
            return self._write_or_lose(line)
        finally:
            self._settle()

    def _write_or_lose(self, data: bytes, calls: int = 1) -> bool:
        """Write the lines of `calls` records, with the `lost` record that is due before them; the lock is held."""
        reason = self._reason_to_lose()
        if reason:
            return self._lose(reason, calls)
        lost = self.counters.take_lost()
        if lost is None:
            return self._write(data, (), calls, calls)
        done = False
        try:
            done = self._write(lost.line() + data, (), calls + 1, calls)
        finally:
            if not done:
                self.counters.give_back(lost)
        return done

    def _reason_to_lose(self) -> str:
        if self._paused:
            return self._paused
        if self._segment is None or monotonic() < self._blocked_until:
            return self._reason or "EIO"
        return ""

    def _settle(self) -> None:
        """Find out whether appends go the plain way."""
        with self._state:
            self._hindered = bool(
                self._segment is None
                or self._paused
                or monotonic() < self._blocked_until
                or self._backlog is not None
                or self.counters.pending
            )

    def _lose(self, reason: str, count: int = 1) -> bool:
        with self._state:
            self.counters.drop(reason, count)
            self._hindered = True
        return False

    def _refused(self, error: OSError, calls: int) -> None:
        self._reason = errno.errorcode.get(error.errno or 0, "EIO")
        self._blocked_until = monotonic() + RETRY_AFTER
        self._hindered = True
        if calls:
            self._lose(self._reason, calls)
        self._say(
            f"refused-{self._reason}",
            f"{self.folder}: {error.strerror}; calls go on, their records count as lost until it recovers"
            " (`verl-trace doctor` looks into it)",
        )

    def _say(self, kind: str, message: str) -> None:
        self._news.append((kind, message))

    def tell(self) -> None:
        """Print what happened since, each kind of trouble once; kind "" is no warning and is always printed."""
        while self._news:
            kind, message = self._news.popleft()
            if kind:
                warn_once(kind, message)
            else:
                announce(message)

    # -- a stalled disk ----------------------------------------------------------------------------------------------

    def _was_slow(self, begun: float, size: int) -> None:
        now = monotonic()
        forgiven = (begun - self._slow_at) * FORGIVEN_A_SECOND
        took = max(0.0, now - begun - size / HEALTHY_RATE)
        self._slow_sum = max(0.0, self._slow_sum - forgiven) + took
        self._slow_at = now
        if self._slow_sum > STALL_SECONDS:
            self._slow_sum = 0.0
            self._stall()

    def _stall(self) -> Backlog:
        """Begin to put records aside."""
        with self._state:
            backlog = self._backlog
            if backlog is None:
                backlog = self._backlog = Backlog(QUEUE_BYTES)
                self._hindered = True
                self.counters.stalls += 1
                self._say("", f"warning: {self.folder}: the disk stalls; writing in the background until it recovers")
        return backlog

    def _put_aside(self, line: bytes) -> bool:
        while True:
            self._stall()
            taken = self._enqueue(line)
            if taken is not None:
                return taken

    def _enqueue(self, line: bytes) -> bool | None:
        """Let a line wait in memory; None when no stall is going on (any more)."""
        backlog = self._backlog
        taken = backlog.put(line) if backlog is not None else None
        return self._lose("queue full") if taken is False else taken

    @property
    def is_stalled(self) -> bool:
        """Whether records are put aside, since the disk takes too long."""
        return self._backlog is not None

    @property
    def waiting(self) -> int:
        """Records in the backlog of a stalled disk."""
        return len(self._backlog or ())

    def _ensure_open(self) -> str:
        """ "" when a segment is open, OPENING while another thread has to wait for one, else why there is none."""
        raise NotImplementedError


def _nothing() -> None: ...
