"""Records -> call trees, one per trace id, streaming.

Two passes. The first counts the records of every trace, without parsing (`first_pass`): about 150 bytes of memory a
trace. Scores are parsed there already (`scores`, 230 bytes more): the trainer's have to find their trajectories, and
groups to become whole. In the second pass a trajectory is yielded as soon as its last record was read, so that its
calls may lie in any order in the files of any writers, and memory holds what is open at a time and not the run. The
second pass reads no further than the first did: a file that grows meanwhile does no harm.

Writers are read one after another, each in the order of its segments. What a kill or damage took away is a mark on the
call, never an exception.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..schemas.lines import Line
from .calls import Call, Trajectory
from .first_pass import first_pass, kept_first_pass
from .losses import Losses
from .order import arrange
from .records import CALL_KINDS, is_exit, read_records, text_of
from .runs import Run
from .scores import Scores, merge
from .segments import Damage, SegmentLines
from .writers import Segment, Writer

__all__ = ["Call", "Reading", "Source", "Trajectory", "iter_trajectories"]

# Where the lines of a segment come from, up to a number of bytes: the file itself, or a part of it (`digest`, `pick`).
Source = Callable[[Segment, "int | None"], SegmentLines]


@dataclass
class Reading:
    """What a pass over a run found beside the trajectories."""

    damages: list[Damage] = field(default_factory=list)
    unknown_kinds: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    skipped: int = 0
    lost_records: int = 0
    lost_by: Counter[str] = field(default_factory=Counter)  # the same by reason, where one is told
    unjoined_scores: int = 0  # of which nothing says whose they are, or whose calls are not there


def iter_trajectories(
    run: Run, reading: Reading | None = None, *, payloads: bool = True, source: Source | None = None
) -> Iterator[Trajectory]:
    """The trajectories of a run, each once; `reading` collects what else there is.

    Without `payloads`, inputs and outputs are empty bytes: for counting, in less memory. Without a `source`, of
    segments whose outline the cache keeps the first pass reads that instead.
    """
    builder = _Builder(reading if reading is not None else Reading(), payloads, source or Segment.lines)
    return builder.run(run, whole=source is None)


class _Builder:
    def __init__(self, reading: Reading, payloads: bool, source: Source) -> None:
        self._reading = reading
        self._payloads = payloads
        self._lines = source
        self._open: dict[str, _Open] = {}
        # records of each trace that are still to be read
        self._ahead: Counter[str] = Counter()
        self._sizes: dict[Segment, int] = {}
        # those that could not be read to their end
        self._refused: set[Segment] = set()
        # traces whose records were all read, with calls that never end; the order is what counts
        self._unended: dict[str, None] = {}
        self._scores = Scores()
        self._losses = Losses()
        self._last_seen = ""

    def run(self, run: Run, *, whole: bool) -> Iterator[Trajectory]:
        """The trajectories; `whole`: the source leaves out nothing that outlines count."""
        self._reading.damages += run.passed_over
        for writer in run.writers:
            for segment in writer.segments:
                self._count(segment, writer, whole)
        self._reading.unjoined_scores += self._scores.settle()
        for writer in run.writers:
            yield from self._writer(writer)
        for trace_id in list(self._open):
            yield from self._take(trace_id)

    def _count(self, segment: Segment, writer: Writer, whole: bool) -> None:
        found = kept_first_pass(segment) if whole else None
        if found is None:
            lines = self._lines(segment, None)
            found = first_pass(lines)
            if any(damage.kind == "zstd" for damage in lines.damages):
                writer.damaged.add(segment)
        self._ahead.update(found.records)
        for score in found.scores:
            self._scores.add(writer.attempt, score)
        if found.size is not None:
            self._sizes[segment] = found.size
        if found.refused is not None:
            self._reading.damages.append(found.refused)
            self._refused.add(segment)

    def _writer(self, writer: Writer) -> Iterator[Trajectory]:
        self._last_seen, self._losses = writer.started_at, Losses()
        record: Line | None = None
        for segment in writer.segments:
            record = None
            for record in self._records(writer, segment):
                kind = record.kind
                done = self._call_record(kind, record, writer) if kind in CALL_KINDS else self._other(kind, record)
                if done is not None:
                    yield from self._take(done)
        writer.closed = record is not None and is_exit(record)
        writer.closed_itself = record is not None and writer.closed and "repaired" not in record.head
        self._reading.lost_records += self._losses.records
        self._reading.lost_by += self._losses.by_reason
        for state in self._open.values():
            state.leave(writer, self._last_seen)
        for trace_id in self._unended:
            yield from self._take(trace_id)
        self._unended.clear()

    def _records(self, writer: Writer, segment: Segment) -> Iterator[Line]:
        # of the last two segments, since the next one is opened before the last line of the one before
        being_written = writer.alive and segment in writer.segments[-2:]
        limit = self._sizes.get(segment)
        lines = self._lines(segment, limit)
        if segment not in self._refused:
            yield from read_records(lines, self._reading.damages, being_written=being_written)
            return
        found: list[Damage] = []
        if limit:
            yield from read_records(lines, found, being_written=being_written)
        # that it was refused is told already
        self._reading.damages += [damage for damage in found if damage.kind != "unreadable"]

    def _other(self, kind: str, line: Line) -> str | None:
        """Take a record in that is none of a call; the trace id when it completed a trajectory."""
        if kind == "score":
            return self._score_record(line)
        if kind == "skip":
            self._reading.skipped += 1
        elif kind in ("lost", "close"):
            self._losses.take(kind, line.head)
        elif kind not in ("header", "stall"):
            self._unknown(kind)
        return None

    def _unknown(self, kind: str) -> None:
        self._reading.unknown_kinds[kind] = self._reading.unknown_kinds.get(kind, 0) + 1

    def _call_record(self, kind: str, line: Line, writer: Writer) -> str | None:
        """Take a record of a call in; the trace id when it completed a trajectory."""
        head = line.head
        call_id, trace_id = head.get("id"), head.get("trace_id")
        if not isinstance(trace_id, str) or not trace_id:
            self._unknown(f"{kind} without ids")
            return None
        for time in (head.get("ended_at"), head.get("started_at")):
            if isinstance(time, str) and time > self._last_seen:
                self._last_seen = time
        state = self._state(trace_id)
        if not isinstance(call_id, str) or not call_id:
            self._unknown(f"{kind} without ids")
        elif not state.take(kind, call_id, line if self._payloads else Line(head, b""), writer):
            self._reading.duplicates += 1
        return self._counted(trace_id, state)

    def _score_record(self, line: Line) -> str | None:
        trace_id = text_of(line.head.get("trace_id"))
        if not trace_id:
            # joined already, by the first pass
            return None
        state = self._state(trace_id)
        if any(line.head == known.head for known in state.scores):
            self._reading.duplicates += 1
        else:
            state.scores.append(line)
        return self._counted(trace_id, state)

    def _state(self, trace_id: str) -> _Open:
        state = self._open.get(trace_id)
        if state is None:
            state = self._open[trace_id] = _Open()
        return state

    def _counted(self, trace_id: str, state: _Open) -> str | None:
        """One more record of a trace was read; its id when it was the last."""
        left = self._ahead[trace_id] - 1
        if left > 0:
            self._ahead[trace_id] = left
            return None
        del self._ahead[trace_id]
        if not state.waiting:
            # damaged lines may hold more records of a trace than were counted ahead: it may have been put there
            self._unended.pop(trace_id, None)
            return trace_id
        self._unended[trace_id] = None
        return None

    def _take(self, trace_id: str) -> Iterator[Trajectory]:
        state = self._open.pop(trace_id)
        if not state.calls:
            self._reading.unjoined_scores += len(state.scores)
            return
        trajectory = Trajectory(trace_id, arrange(state.calls))
        lines = state.scores + self._scores.joined(trace_id)
        if lines:
            trajectory.scores, trajectory.score_status = merge(lines)
            trajectory.group = self._scores.group(trace_id, trajectory.reward)
            trajectory.group_awaited = self._scores.group_awaited(trace_id)
        trajectory.score_expected = self._scores.expected(trajectory.calls[0].writer.attempt)
        yield trajectory


class _Open:
    """A trajectory that is still being read."""

    __slots__ = ("calls", "scores", "waiting")

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.scores: list[Line] = []
        # calls that have not ended or whose text has not come
        self.waiting: set[str] = set()

    def take(self, kind: str, call_id: str, line: Line, writer: Writer) -> bool:
        """Add a record; False when it was there already."""
        call = self.calls.get(call_id)
        if call is None:
            call = self.calls[call_id] = Call(call_id, text_of(line.head.get("trace_id")), writer, line.head)
        if not call.take(kind, line):
            return False
        if call.raw_output is None or call.awaits_text:
            self.waiting.add(call_id)
        else:
            self.waiting.discard(call_id)
        return True

    def leave(self, writer: Writer, last_seen: str) -> None:
        """All records of `writer` were read: what it has not ended, it was seen at last in `last_seen`."""
        for call_id in self.waiting:
            call = self.calls[call_id]
            if call.writer is writer:
                call.last_seen_at = last_seen
