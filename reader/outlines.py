"""The outlines of a run: of every segment what the cache keeps, else what the file says, put together.

What is kept of a segment is a head, the lines of its scores, and a line a trace with the columns of its calls
(`outline_lines`). A first pass collects them and the scores, a second yields each trajectory with its last segment.
Segments that the cache lacks are read by as many processes as there are cores for. Memory: what is kept of the run,
compressed (a thousandth of its records), and the trajectories of which a segment is still to come.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..schemas.lines import Line
from .calls import Call
from .cores import on_all_cores
from .losses import Losses
from .order import arrange
from .outline import CallOutline, Outline
from .outline_cache import Opened, is_kept, kept_outline, opened, segment_outline
from .outline_lines import Row, is_whole, merge_rows
from .outline_pieces import Part, Piece
from .records import score_of, text_of
from .runs import Run
from .scores import Scores, merge
from .segments import Damage
from .trees import Reading
from .writers import Segment

__all__ = ["are_at_hand", "iter_outlines"]

# What takes a moment to make, in stored bytes.
_LITTLE = 8 << 20


def iter_outlines(run: Run, reading: Reading | None = None) -> Iterator[Outline]:
    """The trajectories of a run in outline, each once; `reading` collects what else there is."""
    yield from _Outlines(reading if reading is not None else Reading()).of(run)


def are_at_hand(run: Run) -> bool:
    """Whether the cache has nearly all of a run."""
    missing = [segment for writer in run.writers for segment in writer.segments if not is_kept(segment)]
    return sum(segment.stored_bytes for segment in missing) <= _LITTLE


@dataclass
class _Open:
    """A trajectory of which a segment is still to come."""

    pieces: list[Piece] = field(default_factory=list)
    scores: list[Line] = field(default_factory=list)


class _Outlines:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._scores = Scores()
        # segments of each trace that are still to be read
        self._ahead: Counter[str] = Counter()
        self._open: dict[str, _Open] = {}
        self._last_seen: dict[str, str] = {}
        self._losses: defaultdict[str, Losses] = defaultdict(Losses)

    def of(self, run: Run) -> Iterator[Outline]:
        parts = []
        self._reading.damages += run.passed_over
        for part, found in _parts(run):
            self._count(part, *found)
            parts.append(part)
        for losses in self._losses.values():
            self._reading.lost_records += losses.records
            self._reading.lost_by += losses.by_reason
        self._reading.unjoined_scores += self._scores.settle()
        for part in parts:
            yield from self._part(part)
        for trace_id in list(self._open):
            yield from self._take(trace_id)

    def _count(self, part: Part, head: dict[str, Any], lines: list[bytes]) -> None:
        """The first pass."""
        reading, writer = self._reading, part.writer
        for offset, length, kind, reason in head["damages"]:
            # the end of a file that is being written is no damage, nor is one without a header yet
            if not part.being_written or not (kind == "torn" or (kind == "header" and not head["size"])):
                reading.damages.append(Damage(part.segment.folder / head["file"], offset, length, kind, reason))
        for kind, count in head["unknown"].items():
            reading.unknown_kinds[kind] = reading.unknown_kinds.get(kind, 0) + count
        reading.skipped += head["skipped"]
        self._losses[writer.id].add(*head["lost"], *head["lost_by"])
        reading.duplicates += head["duplicates"]
        writer.closed = head["ended"]
        self._last_seen[writer.id] = max(self._last_seen.get(writer.id, writer.started_at), head["last_seen"])
        traces = set(head["traces"])
        for line in lines[: head["scores"]]:
            score = score_of(line)
            if score is not None:
                self._scores.add(writer.attempt, score)
                traces.add(text_of(score.head.get("trace_id")))
        self._ahead.update(traces - {""})

    def _part(self, part: Part) -> Iterator[Outline]:
        """The second pass."""
        scores, pieces = part.scores_and_pieces()
        in_part = dict.fromkeys([*(piece.trace_id for piece in pieces), *self._scores_of(scores)])
        for piece in pieces:
            state = self._open.get(piece.trace_id)
            if state is None:
                state = self._open[piece.trace_id] = _Open()
            state.pieces.append(piece)
        for trace_id in in_part:
            self._ahead[trace_id] -= 1
            if not self._ahead[trace_id]:
                del self._ahead[trace_id]
                yield from self._take(trace_id)

    def _scores_of(self, lines: list[bytes]) -> Iterator[str]:
        """Hand scores to their trajectories; whose they are."""
        for line in lines:
            score = score_of(line)
            trace_id = text_of(score.head.get("trace_id")) if score is not None else ""
            if score is None or not trace_id:
                # joined already, by the first pass
                continue
            known = self._open.setdefault(trace_id, _Open()).scores
            if any(score.head == one.head for one in known):
                self._reading.duplicates += 1
            else:
                known.append(score)
            yield trace_id

    def _take(self, trace_id: str) -> Iterator[Outline]:
        state = self._open.pop(trace_id)
        if len(state.pieces) == 1 and state.pieces[0].is_whole:
            outline = state.pieces[0].outline()
        else:
            rows = self._merged(state.pieces)
            if not rows:
                self._reading.unjoined_scores += len(state.scores)
                return
            outline = _outline(trace_id, rows, [piece.part.segment for piece in state.pieces])
        if outline.figures.unfinished:
            waiting = [call.writer.id for call in outline.calls if call.unfinished]
            outline.last_seen_at = max((self._last_seen[writer] for writer in waiting), default="")
        self._score(outline, state.scores)
        yield outline

    def _merged(self, pieces: list[Piece]) -> dict[str, Row]:
        rows: dict[str, Row] = {}
        for piece in pieces:
            calls = piece.rows()
            for call_id in rows.keys() & calls.keys():
                rows[call_id], twice = merge_rows(rows[call_id], calls[call_id])
                self._reading.duplicates += twice
            rows = calls | rows if rows else calls
        return rows

    def _score(self, outline: Outline, named: list[Line]) -> None:
        lines = named + self._scores.joined(outline.trace_id)
        if lines:
            outline.scores, outline.score_status = merge(lines)
            outline.group = self._scores.group(outline.trace_id, outline.reward)
            outline.group_awaited = self._scores.group_awaited(outline.trace_id)
        outline.score_expected = self._scores.expected(outline.attempt)


def _parts(run: Run) -> Iterator[tuple[Part, Opened]]:
    """Every segment with what is kept of it, in order; what is not is made."""
    # of a writer's last two segments, since the next one is opened before the last line of the one before
    places = [
        (segment, writer, writer.alive and segment in writer.segments[-2:])
        for writer in run.writers
        for segment in writer.segments
    ]
    missing = [(segment, alive) for segment, _, alive in places if not is_kept(segment)]
    made = iter(on_all_cores(_made, missing, sum(segment.stored_bytes for segment, _ in missing)))
    ahead = {id(segment) for segment, _ in missing}
    for segment, writer, alive in places:
        kept = None if id(segment) in ahead else kept_outline(segment)
        if kept is None:
            # made already, or now, since it was broken
            data = next(made) if id(segment) in ahead else _made((segment, alive))
            found = opened(data)
            assert found is not None, "it was just made"
            kept = data, found
        yield Part(segment, writer, alive, kept[0]), kept[1]


def _made(asked: tuple[Segment, bool]) -> bytes:
    segment, being_written = asked
    return segment_outline(segment, being_written=being_written)


def _outline(trace_id: str, rows: dict[str, Row], segments: list[Segment]) -> Outline:
    """Of calls in any order: parents found of which half the id is known, orphans counted, children behind parents."""
    calls = sorted(map(CallOutline._make, rows.values()), key=lambda call: (call.started_at, call.id))
    orphans = 0
    if not is_whole(*zip(*((call.id, call.parent_id, call.started_at) for call in calls), strict=True)):
        arranged = arrange({call.id: _bare(call, trace_id) for call in calls})
        known = {call.id: call for call in calls}
        calls = [known[call.id]._replace(parent_id=call.parent_id, clock_skew=call.clock_skew) for call in arranged]
        orphans = sum(call.orphan for call in arranged)
    first = next((call for call in calls if call.parent_id is None), calls[0])
    outline = Outline(trace_id, first.writer, lambda: calls, segments=segments)
    outline.orphans = orphans
    outline.skewed = any(call.clock_skew > 0 for call in calls)
    return outline


def _bare(call: CallOutline, trace_id: str) -> Call:
    return Call(call.id, trace_id, call.writer, {"parent_id": call.parent_id, "started_at": call.started_at})
