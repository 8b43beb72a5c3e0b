"""What was written, skipped and dropped; and the one warning per kind of trouble.

Every lock here is re-entrant: a signal handler or a finaliser that traces may interrupt its own thread anywhere.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter

import orjson

from ..schemas.interrupts import pass_on
from .ids import timestamp

__all__ = ["Counters", "Lost", "after_fork", "announce", "warn_once"]


class Lost:
    """Records that could not be written and that no `lost` record tells of yet; `since` in ns since the epoch."""

    __slots__ = ("counts", "since")

    def __init__(self, counts: Counter[str], since: int) -> None:
        self.counts = counts
        self.since = since

    def line(self) -> bytes:
        """The `lost` record."""
        record = {
            "kind": "lost",
            "since": timestamp(self.since),
            "until": timestamp(time.time_ns()),
            "counts": dict(self.counts),
            "records": sum(self.counts.values()),
        }
        return orjson.dumps(record) + b"\n"


class Counters:
    """Counts of one recording. `dropped` is by reason and never silent: see the `lost` and `close` records.

    `contents_lost` counts values left out of lines because the side file did not take them, by reason.
    `stalls` counts how often a slow disk made records wait in memory, `queued` the records that did.
    """

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.contents_lost: Counter[str] = Counter()
        self.written = 0
        self.skipped = 0
        self.stalls = 0
        self.queued = 0
        self._lock = threading.RLock()
        self._pending: Counter[str] = Counter()
        self._since = 0

    def drop(self, reason: str, count: int = 1) -> None:
        """Count records as dropped; the next `lost` record tells of them."""
        with self._lock:
            self.dropped[reason] += count
            if not self._pending:
                self._since = time.time_ns()
            self._pending[reason] += count

    def lose_content(self, reason: str) -> None:
        """Count a value that has a mark in its place on its line."""
        with self._lock:
            self.contents_lost[reason] += 1

    @property
    def pending(self) -> bool:
        """Whether drops wait for their `lost` record."""
        return bool(self._pending)

    def take_lost(self) -> Lost | None:
        """What the next `lost` record has to tell; give it back when that cannot be written either."""
        with self._lock:
            if not self._pending:
                return None
            lost = Lost(self._pending, self._since)
            self._pending = Counter()
            return lost

    def give_back(self, lost: Lost) -> None:
        """Put what was taken back among the drops that no record tells of."""
        with self._lock:
            self._pending.update(lost.counts)
            self._since = lost.since

    def as_dict(self) -> dict[str, object]:
        """JSON form for the `close` record."""
        with self._lock:
            dropped, contents = dict(self.dropped), dict(self.contents_lost)
        out: dict[str, object] = {"written": self.written, "skipped": self.skipped, "dropped": sum(dropped.values())}
        out |= {"reasons": dropped, "stalls": self.stalls, "queued": self.queued}
        return out | {"contents_lost": contents} if contents else out


_warned: set[str] = set()
_warned_lock = threading.RLock()


def warn_once(kind: str, message: str) -> None:
    """Print one warning per `kind` and process on stderr; the process's logging set-up is left alone."""
    with _warned_lock:
        if kind in _warned:
            return
        _warned.add(kind)
    announce(f"warning: {message}")


def announce(message: str) -> None:
    """Print one line on stderr; a closed or broken stderr is not our business, what a signal handler raises is nobody's
    but the program's."""
    try:
        sys.stderr.write(f"verl-trace: {message}\n")
        sys.stderr.flush()
    except Exception as error:  # noqa: BLE001
        pass_on(error)


def after_fork() -> None:
    """In a forked child: another thread of the parent may have held the lock."""
    global _warned_lock
    _warned_lock = threading.RLock()
