"""What the records of one call, and of one trace, say together. Nothing is parsed but heads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..schemas.lines import Line
from ..schemas.side import is_digest
from .groups import Group, number
from .records import text_of
from .writers import Writer

__all__ = ["Call", "Trajectory"]


@dataclass(slots=True, eq=False)
class Call:
    """One call: what its start, end and text records say. `head` is the end's head, or the start's before it."""

    id: str
    trace_id: str
    writer: Writer
    head: dict[str, Any]
    inputs: bytes | None = None  # raw JSON; None: the start record is lost
    raw_output: bytes | None = None  # raw JSON; None: the call has not ended
    text: bytes | None = None  # raw JSON of a text record's output
    last_seen_at: str = ""  # last time in the file of its writer, when it never ended
    orphan: bool = False  # its parent is not among the records
    resolved_parent: str | None = None  # where the record has only half of the parent's id
    clock_skew: float = 0.0  # seconds by which it began before its parent, by clocks that disagree
    blobs: list[str] = field(default_factory=list)  # digests of contents of `writer.contents` that it refers to

    def take(self, kind: str, line: Line) -> bool:
        """Add what a `start`, `end` or `text` record says; False when such a one was there already."""
        if kind == "start":
            if self.inputs is not None:
                return False
            self.inputs = line.payload
            self._refer(line)
            if self.unfinished:
                # a text record may have come first, and knows less
                self.head = line.head
            return True
        if kind == "end":
            if self.raw_output is not None:
                return False
            self.head, self.raw_output = line.head, line.payload
            self._refer(line)
            return True
        if self.text is not None:
            return False
        self.text = line.payload
        return True

    def _refer(self, line: Line) -> None:
        names = line.head.get("blobs")
        if isinstance(names, list):
            self.blobs += [name for name in names if is_digest(name) and name not in self.blobs]

    @property
    def op(self) -> str:
        """Recorded op name."""
        return text_of(self.head.get("op")) or "unknown"

    @property
    def parent_id(self) -> str | None:
        """Id of the calling call; None for a root."""
        if self.resolved_parent is not None:
            return self.resolved_parent
        parent = self.head.get("parent_id")
        return parent if isinstance(parent, str) else None

    @property
    def started_at(self) -> str:
        """UTC, as recorded."""
        time = self.head.get("started_at")
        return time if isinstance(time, str) else ""

    @property
    def ended_at(self) -> str | None:
        """UTC, as recorded; None while the call has not ended."""
        time = self.head.get("ended_at")
        return time if isinstance(time, str) and time else None

    @property
    def duration(self) -> float | None:
        """Seconds; None while the call has not ended."""
        value = self.head.get("duration")
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def unfinished(self) -> bool:
        """Whether the end record is missing."""
        return self.raw_output is None

    @property
    def status(self) -> str:
        """`success`, `error`, or `unfinished`."""
        return "unfinished" if self.unfinished else text_of(self.head.get("status")) or "success"

    @property
    def exception(self) -> dict[str, Any] | None:
        """Type, message and traceback of a call that raised."""
        value = self.head.get("exception")
        return value if isinstance(value, dict) else None

    @property
    def streamed(self) -> bool:
        """Whether it was a generator, whose output is what it yielded."""
        return "generator" in self.head

    @property
    def attributes(self) -> dict[str, Any]:
        """The trajectory's attributes."""
        value = self.head.get("attributes")
        return value if isinstance(value, dict) else {}

    @property
    def awaits_text(self) -> bool:
        """Whether a text record was announced that is not there (yet)."""
        return self.text is None and self.head.get("text") is True

    def output(self) -> bytes | None:
        """Raw JSON of the output with decoded text merged in; None when the call has not ended."""
        if self.raw_output is None or self.text is None or self.text == b"{}":
            return self.raw_output
        if not self.raw_output.startswith(b"{") or not self.text.startswith(b"{"):
            return self.raw_output
        if self.raw_output == b"{}":
            return self.text
        return self.raw_output[:-1] + b"," + self.text[1:]


@dataclass(slots=True, eq=False)
class Trajectory:
    """All recorded calls of one trace, in the order in which they started, and what was told of it as a whole.

    `scores`: the latest value of each name (`reward`, `reward_extra_info`, `num_turns`, `tool_rewards`, `turn_scores`,
    and those of `record_score`). `group`: figures of its GRPO group, None while that is not whole.
    """

    trace_id: str
    calls: list[Call] = field(default_factory=list)
    scores: dict[str, Any] = field(default_factory=dict)
    score_status: str | None = None  # of all its records: scored, failed, partial; None: there are none
    group: Group | None = None
    score_expected: bool = False  # its training tells scores
    group_awaited: bool = False  # rewards of its group are still to come

    @property
    def reward(self) -> float | None:
        """The reward; None where it is not known."""
        return number(self.scores.get("reward"))

    @property
    def scored(self) -> bool:
        """Whether nothing more of its reward is to come: it is known, or computing it failed."""
        return self.score_status in ("scored", "failed")

    @property
    def awaits_score(self) -> bool:
        """Whether a reward was announced that is not there yet."""
        return self.score_status == "partial"

    @property
    def root(self) -> Call | None:
        """The call without a parent; None when its records are lost."""
        return next((call for call in self.calls if call.parent_id is None), None)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the root, or of the first call that has some."""
        root = self.root
        calls = self.calls if root is None else [root, *self.calls]
        return next((call.attributes for call in calls if call.attributes), {})

    def children(self) -> dict[str | None, list[Call]]:
        """Parent id -> calls in start order; calls whose parent is lost are under None, beside the root."""
        out: dict[str | None, list[Call]] = {}
        for call in self.calls:
            out.setdefault(None if call.orphan else call.parent_id, []).append(call)
        return out
