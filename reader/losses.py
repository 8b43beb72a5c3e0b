"""How many records a process could not write and why, by what its files say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..schemas.wording import counted

__all__ = ["Losses", "lost_words"]

# Reasons for which nothing went wrong: the recording held back, as it was told to.
_PAUSES = {
    "MAX_BYTES": "while recording was paused at VERL_TRACE_MAX_BYTES",
    "MIN_FREE": "while recording was paused by VERL_TRACE_MIN_FREE",
}
# What a repaired copy lacks: it was written.
_DAMAGED = "damaged"


@dataclass
class Losses:
    """Of one process, or of a part of its files.

    `told`: by its `lost` records. `dropped`: by its latest `close` record, which counts all of them so far; also those
    of which no `lost` record could be written any more, since the disk stayed full, or the run at its cap, to the end.
    `damaged`: by the `lost` records of a repaired copy, which no process counted. `told_by` and `dropped_by`: the first
    two by reason.
    """

    told: int = 0
    dropped: int = 0
    damaged: int = 0
    told_by: dict[str, int] = field(default_factory=dict)
    dropped_by: dict[str, int] = field(default_factory=dict)

    def take(self, kind: str, head: dict[str, Any]) -> None:
        """Take a record in; of other kinds than these two it has nothing to say."""
        if kind == "lost":
            count = _count(head.get("records"))
            if "repaired" in head:
                self.damaged += count
            else:
                self.add(count, 0, 0, _counts(head.get("counts")), {})
        elif kind == "close":
            counters = head.get("counters")
            counters = counters if isinstance(counters, dict) else {}
            self.add(0, _count(counters.get("dropped")), 0, {}, _counts(counters.get("reasons")))

    def add(
        self, told: int, dropped: int, damaged: int, told_by: Mapping[str, int], dropped_by: Mapping[str, int]
    ) -> None:
        """Add another part of the same process's files."""
        self.told += told
        self.dropped = max(self.dropped, dropped)
        self.damaged += damaged
        for reason, count in told_by.items():
            self.told_by[reason] = self.told_by.get(reason, 0) + count
        for reason, count in dropped_by.items():
            self.dropped_by[reason] = max(self.dropped_by.get(reason, 0), count)

    @property
    def records(self) -> int:
        """All of them, each once."""
        return max(self.told, self.dropped) + self.damaged

    @property
    def by_reason(self) -> Counter[str]:
        """The same by reason, without what somebody else has written."""
        return (Counter(self.told_by) | Counter(self.dropped_by)) + Counter({_DAMAGED: self.damaged})


def lost_words(records: int, by_reason: Mapping[str, int]) -> str:
    """`never written: 108 records, while recording was paused at VERL_TRACE_MAX_BYTES`; with several reasons, how many
    of each. What a repaired copy lacks is told apart: it was written."""
    damaged = min(by_reason.get(_DAMAGED, 0), records)
    others = {reason: count for reason, count in by_reason.items() if reason != _DAMAGED}
    parts = [f"never written: {_never_written(records - damaged, others)}"] if records > damaged else []
    parts += [f"damaged or missing where this copy was repaired: {counted(damaged, 'record')}"] if damaged else []
    return "; ".join(parts)


def _never_written(records: int, by_reason: Mapping[str, int]) -> str:
    reasons = [(count, _why(reason)) for reason, count in sorted(by_reason.items())]
    if not reasons:
        return counted(records, "record")
    if len(reasons) == 1 and reasons[0][0] == records:
        return f"{counted(records, 'record')}, {reasons[0][1]}"
    return f"{counted(records, 'record')} ({', '.join(f'{count:,} {why}' for count, why in reasons)})"


def _why(reason: str) -> str:
    return _PAUSES.get(reason, f"because of {reason}")


def _count(value: Any) -> int:
    return value if type(value) is int else 0


def _counts(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    return {reason: count for reason, count in value.items() if type(count) is int and count > 0}
