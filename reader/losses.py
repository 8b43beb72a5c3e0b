"""How many records a process could not write, by what its files say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Losses"]


@dataclass
class Losses:
    """Of one process, or of a part of its files.

    `told`: by its `lost` records. `dropped`: by its latest `close` record, which counts all of them so far; also those
    of which no `lost` record could be written any more, since the disk stayed full, or the run at its cap, to the end.
    `damaged`: by the `lost` records of a repaired copy, which no process counted.
    """

    told: int = 0
    dropped: int = 0
    damaged: int = 0

    def take(self, kind: str, head: dict[str, Any]) -> None:
        """Take a record in; of other kinds than these two it has nothing to say."""
        if kind == "lost":
            count = _count(head.get("records"))
            if "repaired" in head:
                self.damaged += count
            else:
                self.told += count
        elif kind == "close":
            counters = head.get("counters")
            self.dropped = max(self.dropped, _count(counters.get("dropped") if isinstance(counters, dict) else None))

    def add(self, told: int, dropped: int, damaged: int) -> None:
        """Add another part of the same process's files."""
        self.told += told
        self.dropped = max(self.dropped, dropped)
        self.damaged += damaged

    @property
    def records(self) -> int:
        """All of them, each once."""
        return max(self.told, self.dropped) + self.damaged


def _count(value: Any) -> int:
    return value if type(value) is int else 0
