"""Records -> call trees, one per trace id, streaming.

Writers are read one after another, each in the order of its segments. A trajectory is yielded as soon as its root and
all its known calls have ended and their announced texts are there, and at the latest at the end, so that memory holds
what is open at a time and not the run. What a kill or damage took away is a mark on the call, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from ..schemas.lines import Line, parse_line
from .runs import Run, Segment, Writer
from .segments import Damage

__all__ = ["Call", "Reading", "Trajectory", "iter_trajectories"]


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

    @property
    def op(self) -> str:
        """Recorded op name."""
        return _text(self.head.get("op")) or "unknown"

    @property
    def parent_id(self) -> str | None:
        """Id of the calling call; None for a root."""
        parent = self.head.get("parent_id")
        return parent if isinstance(parent, str) else None

    @property
    def started_at(self) -> str:
        """UTC, as recorded."""
        return _text(self.head.get("started_at"))

    @property
    def ended_at(self) -> str | None:
        """UTC, as recorded; None while the call has not ended."""
        return _text(self.head.get("ended_at")) or None

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
        return "unfinished" if self.unfinished else _text(self.head.get("status")) or "success"

    @property
    def exception(self) -> dict[str, Any] | None:
        """Type, message and traceback of a call that raised."""
        value = self.head.get("exception")
        return value if isinstance(value, dict) else None

    @property
    def attributes(self) -> dict[str, Any]:
        """The trajectory's attributes."""
        value = self.head.get("attributes")
        return value if isinstance(value, dict) else {}

    @property
    def awaits_text(self) -> bool:
        """Whether a text record was announced that is not there (yet)."""
        return self.head.get("text") is True and self.text is None

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
    """All recorded calls of one trace, in the order in which they started."""

    trace_id: str
    calls: list[Call] = field(default_factory=list)

    @property
    def root(self) -> Call | None:
        """The call without a parent; None when its records are lost."""
        return next((call for call in self.calls if call.parent_id is None), None)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the root, or of the first call."""
        return self.calls[0].attributes if self.calls else {}

    def children(self) -> dict[str | None, list[Call]]:
        """Parent id -> calls in start order; calls whose parent is lost are under None, beside the root."""
        out: dict[str | None, list[Call]] = {}
        for call in self.calls:
            out.setdefault(None if call.orphan else call.parent_id, []).append(call)
        return out


@dataclass
class Reading:
    """What a pass over a run found beside the trajectories."""

    damages: list[Damage] = field(default_factory=list)
    unknown_kinds: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    skips: list[dict[str, Any]] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0
    lost_records: int = 0


def iter_trajectories(run: Run, reading: Reading | None = None) -> Iterator[Trajectory]:
    """The trajectories of a run, each once; `reading` collects what else there is."""
    return _Builder(reading if reading is not None else Reading()).run(run)


class _Builder:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._open: dict[str, _Open] = {}
        # ids of what was yielded, to recognise a duplicate that comes later; about 100 bytes a trajectory
        self._done: set[str] = set()
        self._last_seen = ""

    def run(self, run: Run) -> Iterator[Trajectory]:
        self._reading.damages += run.problems
        for writer in run.writers:
            yield from self._writer(writer)
        for trace_id in list(self._open):
            yield self._take(trace_id)

    def _writer(self, writer: Writer) -> Iterator[Trajectory]:
        self._last_seen = _text(writer.header.get("started_at"))
        for segment in writer.segments:
            for line in self._records(segment):
                done = self._record(line, writer)
                if done is not None:
                    yield self._take(done)
        for state in self._open.values():
            for call in state.calls.values():
                if call.writer is writer and call.unfinished and not call.last_seen_at:
                    call.last_seen_at = self._last_seen

    def _records(self, segment: Segment) -> Iterator[Line]:
        try:
            lines = segment.lines()
            for offset, line in lines:
                try:
                    yield parse_line(line)
                except ValueError:
                    self._reading.damages.append(Damage(segment.path, offset, len(line), "line", _reason(line)))
            self._reading.damages += lines.damages
        except OSError as error:
            damage = Damage(segment.path, 0, 0, "unreadable", error.strerror or str(error))
            if damage not in self._reading.damages:
                self._reading.damages.append(damage)

    def _record(self, line: Line, writer: Writer) -> str | None:
        """Take one record in; the trace id when it completed a trajectory."""
        kind = line.kind
        if kind in ("start", "end", "text"):
            return self._call_record(kind, line, writer)
        if kind == "skip":
            self._reading.skips.append(line.head)
            self._reading.skipped += 1
        elif kind == "lost":
            self._reading.lost.append(line.head)
            count = line.head.get("records")
            self._reading.lost_records += count if isinstance(count, int) else 0
        elif kind not in ("header", "close"):
            self._reading.unknown_kinds[kind] = self._reading.unknown_kinds.get(kind, 0) + 1
        return None

    def _call_record(self, kind: str, line: Line, writer: Writer) -> str | None:
        head = line.head
        call_id, trace_id = _text(head.get("id")), _text(head.get("trace_id"))
        if not call_id or not trace_id:
            self._reading.unknown_kinds[f"{kind} without ids"] = (
                self._reading.unknown_kinds.get(f"{kind} without ids", 0) + 1
            )
            return None
        self._last_seen = max(self._last_seen, _text(head.get("ended_at")), _text(head.get("started_at")))
        if call_id in self._done:
            self._reading.duplicates += 1
            return None
        state = self._open.setdefault(trace_id, _Open())
        if not state.take(kind, call_id, trace_id, line, writer):
            self._reading.duplicates += 1
        return trace_id if state.complete(trace_id) else None

    def _take(self, trace_id: str) -> Trajectory:
        state = self._open.pop(trace_id)
        if trace_id in state.calls:
            self._done.add(trace_id)
        calls = sorted(state.calls.values(), key=lambda call: (call.started_at, call.id))
        for call in calls:
            parent = call.parent_id
            # a call that outlives its root comes after the root was yielded; its parent is not lost
            call.orphan = parent is not None and parent not in state.calls and parent not in self._done
        return Trajectory(trace_id, calls)


class _Open:
    """A trajectory that is still being read."""

    __slots__ = ("calls", "waiting")

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        # calls that have not ended or whose text has not come
        self.waiting: set[str] = set()

    def take(self, kind: str, call_id: str, trace_id: str, line: Line, writer: Writer) -> bool:
        """Add a record; False when it was there already."""
        call = self.calls.get(call_id)
        if call is None:
            call = self.calls[call_id] = Call(call_id, trace_id, writer, line.head)
        if kind == "start":
            if call.inputs is not None:
                return False
            call.inputs = line.payload
        elif kind == "end":
            if call.raw_output is not None:
                return False
            call.raw_output = line.payload
            call.head = line.head
        else:
            if call.text is not None:
                return False
            call.text = line.payload
        if call.unfinished or call.awaits_text:
            self.waiting.add(call_id)
        else:
            self.waiting.discard(call_id)
        return True

    def complete(self, trace_id: str) -> bool:
        return not self.waiting and trace_id in self.calls


def _reason(line: bytes) -> str:
    if not line.strip(b"\0\n"):
        return "a block of NUL bytes"
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return f"not JSON: {error}"
    return "not a JSON object"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
