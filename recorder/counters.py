"""What was written, skipped and dropped; and the one warning per kind of trouble."""

from __future__ import annotations

import sys
import threading
from collections import Counter

__all__ = ["Counters", "announce", "warn_once"]


class Counters:
    """Counts of one recording. `dropped` is by reason and never silent: see the `lost` and `close` records."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.written = 0
        self.skipped = 0

    def as_dict(self) -> dict[str, object]:
        """JSON form for the `close` record."""
        dropped = dict(self.dropped)
        return {"written": self.written, "skipped": self.skipped, "dropped": sum(dropped.values()), "reasons": dropped}


_warned: set[str] = set()
_warned_lock = threading.Lock()


def warn_once(kind: str, message: str) -> None:
    """Print one warning per `kind` and process on stderr; the process's logging set-up is left alone."""
    with _warned_lock:
        if kind in _warned:
            return
        _warned.add(kind)
    announce(f"warning: {message}")


def announce(message: str) -> None:
    """Print one line on stderr; a closed or broken stderr is not our business."""
    try:
        sys.stderr.write(f"verl-trace: {message}\n")
        sys.stderr.flush()
    except Exception:  # noqa: BLE001, S110
        pass
