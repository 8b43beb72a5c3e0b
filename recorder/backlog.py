"""What waits in memory while the disk is stalled: in order, bounded, and over for good once it ran empty."""

from __future__ import annotations

import threading
import time
from collections import deque

import orjson

from .ids import timestamp

__all__ = ["Backlog"]

BATCH_BYTES = 1 << 20


class Backlog:
    """Lines of one stall. The lock is held for list operations only, so nobody waits here for a disk."""

    def __init__(self, limit: int) -> None:
        self.since = time.time_ns()
        self.taken_in = 0
        self.told = False  # a record in the file says that the stall began
        self._limit = limit
        self._lock = threading.RLock()
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._over = False

    def __len__(self) -> int:
        return len(self._lines)

    def put(self, line: bytes) -> bool | None:
        """True when the line waits, False when it does not fit, None when the stall is over and it may be written."""
        with self._lock:
            if self._over:
                return None
            if self._bytes + len(line) > self._limit:
                return False
            self._bytes += len(line)
            self._lines.append(line)
            self.taken_in += 1
            return True

    def take(self) -> tuple[bytes, int]:
        """The next lines to write in one go, and how many they are; (b"", 0) when there are none.

        In one go, because each write lets another thread have the interpreter for some milliseconds: a busy caller
        would put lines aside faster than they are written one by one.
        """
        with self._lock:
            taken: list[bytes] = []
            size = 0
            while self._lines and (not taken or size + len(self._lines[0]) <= BATCH_BYTES):
                line = self._lines.popleft()
                size += len(line)
                taken.append(line)
            self._bytes -= size
        return b"".join(taken), len(taken)

    def end(self) -> bool:
        """Take nothing in any more; False when a line came in meanwhile."""
        with self._lock:
            self._over = not self._lines
            return self._over

    def record(self) -> bytes:
        """The `stall` record: since when, until at least when, and how many records waited."""
        times = {"since": timestamp(self.since), "until": timestamp(time.time_ns())}
        return orjson.dumps({"kind": "stall", **times, "records": self.taken_in}) + b"\n"
