"""Find one trajectory of a run by a short name, reading no more payloads than its own.

A name is the beginning of a trace id or of a call's id, or numbers as `STEP:SAMPLE:ROLLOUT`, of which the last or the
last two may be left out. Numbers are not unique in verl (attempts, validation, groups that straddle two workers), and
beginnings need not be: then the candidates are told.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..schemas.errors import NotFound
from ..schemas.wording import counted
from .calls import Call, Trajectory
from .digest_cache import KeptDigests, digests, kept_digests
from .facts import trajectory_facts
from .filters import Filters
from .finding import SCORE, Hits, find, records_of
from .outline import Outline
from .outlines import are_at_hand, iter_outlines
from .records import parse_record, trace_id_of
from .runs import Run
from .segments import SegmentLines
from .trees import Reading, Source, iter_trajectories
from .unknown_names import look_for_names, unknown_names
from .writers import Segment

__all__ = ["Picked", "matching", "only", "pick", "raw_lines", "read"]

# Candidates that are listed; more help nobody.
_LISTED = 12
# Numbers and names of which it is known how JSON writes them; True is true, and 1.50 may be 1.5.
_PLAIN_WORD = re.compile(r"(?!True$|False$)(?:-|-?\d*|[A-Za-z_][\w-]*)\Z", re.ASCII)
_ID_LIKE = re.compile(r"[0-9a-fA-F-]{4,36}\Z")


class Picked(NamedTuple):
    """What a name means: a trajectory, and one call of it where the name is the call's own.

    `segments`: where its records are, where that is known. `warning`: what is to be said of the names in `--where`.
    """

    run: Run
    trajectory: Trajectory
    call: Call | None
    reading: Reading
    segments: Sequence[Segment] | None = None
    warning: str = ""


class _OnlyLines(SegmentLines):
    wanted: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for offset, line in super().__iter__():
            trace_id = trace_id_of(line)
            # a score may belong to any trajectory, and a group's figures are made of all its members'
            if not trace_id or trace_id in self.wanted or line.startswith(SCORE):
                yield offset, line


class _OnlyDigests(_OnlyLines, KeptDigests):
    pass


def only(trace_ids: frozenset[str]) -> Source:
    """A source for `iter_trajectories` that passes over the calls of all other traces unread.

    A segment that has none of these traces, as far as the cache knows its digests, is not decompressed.
    """
    whole = type("OnlyLines", (_OnlyLines,), {"wanted": trace_ids})
    light = type("OnlyDigests", (_OnlyDigests,), {"wanted": trace_ids})

    def source(segment: Segment, limit: int | None = None) -> SegmentLines:
        kept = kept_digests(segment)
        if kept is None or any(trace_id_of(line) in trace_ids for line in io.BytesIO(kept)):
            return segment.lines(limit, kind=whole)
        return digests(segment, limit, kind=light)

    return source


def read(run: Run, trace_ids: frozenset[str], reading: Reading | None = None) -> Iterator[Trajectory]:
    """These trajectories of a run, whole."""
    return iter_trajectories(run, reading, source=only(trace_ids))


def raw_lines(picked: Picked) -> Iterator[bytes]:
    """The records of what was picked as they are in the files."""
    run, trace_id = picked.run, picked.trajectory.trace_id
    hits: Hits | None = None
    if picked.segments is not None:
        hits = Hits({trace_id}, set(picked.segments))
    else:
        hits = find(run, b'"trace_id":"%b"' % trace_id.encode("utf-8", "replace"))
    # a whole id is in one trace, but for payloads that quote it
    source = records_of(hits) if hits is not None else only(frozenset({trace_id}))
    for writer in run.writers:
        for segment in writer.segments:
            for _, line in source(segment, None):
                record = parse_record(line) if trace_id_of(line) == trace_id else None
                if record is not None and (picked.call is None or record.head.get("id") == picked.call.id):
                    yield line


def matching(run: Run, filters: Filters, reading: Reading | None = None) -> Iterator[Outline]:
    """The trajectories that are meant, in outline.

    Raises:
        BadFilter: an attempt that the run does not have.
    """
    filters = filters.of_run(run.attempts)
    for outline in iter_outlines(run, reading):
        if filters.trajectory(outline):
            yield outline


def pick(runs: Sequence[Run], selector: str | None, filters: Filters, *, beside: Sequence[Run] = ()) -> Picked:
    """The one trajectory that is meant; without a selector, the only one that the filters leave.

    `beside`: runs that were asked for in the same breath. A name in `--where` that theirs have is known, too.

    Raises:
        NotFound: none is meant, or several are.
        BadFilter: a name that no trajectory has.
    """
    wanted = _Selector(selector) if selector is not None else None
    if wanted is not None and not all(map(are_at_hand, runs)):
        found = _found_by_bytes(runs, wanted, filters)
        # whether a name that none of these has is one of another trajectory, all of them tell
        if found is not None and (filters.where is None or not filters.where.missing):
            if len(found) == 1:
                return found[0]
            raise _unclear(selector, _Candidates.of(found))
    return _among_all(runs, wanted, filters, beside)


def _found_by_bytes(runs: Sequence[Run], wanted: _Selector, filters: Filters) -> list[Picked] | None:
    """The trajectories that the name fits best; None where that takes a look at all of them, or none was found."""
    ranked: dict[int, list[Picked]] = {}
    for run in runs:
        hits = find(run, wanted.pattern) if wanted.pattern is not None else None
        if hits is None:
            return None
        reading, mine = Reading(), filters.of_run(run.attempts)
        for trajectory in iter_trajectories(run, reading, source=records_of(hits)) if hits.trace_ids else ():
            match = wanted.match(trajectory)
            if match is not None and mine.trajectory(trajectory):
                call = next((call for call in trajectory.calls if call.id == match.call_id), None)
                ranked.setdefault(match.rank, []).append(Picked(run, trajectory, call, reading))
    return ranked[min(ranked)] if ranked else None


def _among_all(runs: Sequence[Run], wanted: _Selector | None, filters: Filters, beside: Sequence[Run]) -> Picked:
    found: dict[int, _Candidates] = {}
    readings = []
    for run in runs:
        readings.append(Reading())
        for meant in matching(run, filters, readings[-1]):
            match = wanted.match(meant) if wanted is not None else _Match(1, None)
            if match is not None:
                found.setdefault(match.rank, _Candidates()).add(run, meant, match.call_id)
    best = found[min(found)] if found else _Candidates()
    others = [other for other in beside if all(other is not run for run in runs)]
    look_for_names(filters, others)
    warning = unknown_names(filters, ended=all(run.state != "live" for run in [*runs, *others]))
    if best.count != 1:
        raise _unclear(wanted.text if wanted is not None else None, best, warning)
    run, outline, call_id = best.first[0]
    assert isinstance(outline, Outline), "that is what `matching` gives"
    trajectory = _whole(run, outline)
    call = next((call for call in trajectory.calls if call.id == call_id), None)
    reading = next(reading for one, reading in zip(runs, readings, strict=True) if one is run)
    return Picked(run, trajectory, call, reading, outline.segments, warning)


def _whole(run: Run, outline: Outline) -> Trajectory:
    """The trajectory of an outline: its records are read, of its own segments alone."""
    hits = Hits({outline.trace_id}, set(outline.segments))
    # what is damaged was told when the outlines were read
    for trajectory in iter_trajectories(run, Reading(), source=records_of(hits)):
        if trajectory.trace_id == outline.trace_id:
            trajectory.scores, trajectory.score_status = outline.scores, outline.score_status
            trajectory.group, trajectory.group_awaited = outline.group, outline.group_awaited
            trajectory.score_expected = outline.score_expected
            return trajectory
    raise NotFound(f"trajectory {outline.trace_id} was there a moment ago and is no more", hint="were files removed?")


class _Match(NamedTuple):
    rank: int
    call_id: str | None


class _Candidates:
    """The first few that a name fits, and how many there are."""

    def __init__(self) -> None:
        self.first: list[tuple[Run, Trajectory | Outline, str | None]] = []
        self.count = 0

    @classmethod
    def of(cls, found: Sequence[Picked]) -> _Candidates:
        """These."""
        candidates = cls()
        for run, trajectory, *_ in found:
            candidates.add(run, trajectory, None)
        return candidates

    def add(self, run: Run, trajectory: Trajectory | Outline, call_id: str | None) -> None:
        self.count += 1
        if len(self.first) < _LISTED:
            self.first.append((run, trajectory, call_id))


class _Selector:
    """A name. `pattern`: what is in a record of whatever it fits, as bytes or an expression; None: unknown."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        self._id = self.text.lower() if _ID_LIKE.match(self.text) else None
        parts = self.text.split(":")
        self._numbers = parts if 2 <= len(parts) <= 3 else None
        self.pattern: bytes | re.Pattern[bytes] | None = None
        if self._id is not None:
            self.pattern = b'id":"' + self._id.encode()
        elif self._numbers is not None and all(_PLAIN_WORD.match(part) for part in self._numbers):
            names = (b"step", b"sample_index", b"rollout_n")
            pairs = zip(names, self._numbers, strict=False)
            fields = [b'"%b":%b,' % (name, _as_written(part)) for name, part in pairs]
            self.pattern = re.compile(b"".join(fields))

    def match(self, trajectory: Trajectory | Outline) -> _Match | None:
        """How well the name fits, 1 is best; None where it does not. A trajectory's name comes before its calls'."""
        if self._numbers is not None:
            facts = trajectory_facts(trajectory)
            names = ("step", "sample_index", "rollout_n")
            fits = all(
                not wanted or _word(facts[name]) == wanted for name, wanted in zip(names, self._numbers, strict=False)
            )
            return _Match(1, None) if fits else None
        if self._id is None:
            return None
        if trajectory.trace_id.startswith(self._id):
            # the root's id and the trace's are one
            return _Match(1, None)
        calls = [call.id for call in trajectory.calls if call.id.startswith(self._id)]
        return _Match(2, calls[0] if len(calls) == 1 else None) if calls else None


def _unclear(selector: str | None, found: _Candidates, warning: str = "") -> NotFound:
    if not found.count:
        details = [warning] if warning else []
        if selector is None:
            return NotFound(
                "no trajectory is meant", hint="`verl-trace ls RUN --trajectories` lists all", details=details
            )
        return NotFound(
            f"no trajectory is called {selector!r}",
            hint="name it by the beginning of its trace id or of a call's, or as STEP:SAMPLE:ROLLOUT; "
            "`verl-trace ls RUN --trajectories` lists all",
            details=details,
        )
    several_runs = len({id(run) for run, *_ in found.first}) > 1
    lines = [_candidate(run, trajectory, several_runs) for run, trajectory, _ in found.first]
    if found.count > len(lines):
        lines.append(f"… and {found.count - len(lines):,} more")
    what = "here are" if selector is None else f"{selector!r} means"
    hint = "name one of these, or narrow it down by a filter"
    return NotFound(f"{what} {counted(found.count, 'trajectory')}", hint=hint, details=lines)


def _candidate(run: Run, trajectory: Trajectory | Outline, several_runs: bool) -> str:
    facts: dict[str, Any] = trajectory_facts(trajectory)
    attempts = run.attempts
    number = attempts.index(facts["attempt"]) + 1 if facts["attempt"] in attempts else "?"
    place = ":".join(_word(facts[name]) for name in ("step", "sample_index", "rollout_n"))
    words = [facts["trace_id"], place, "validation" if facts["validate"] else "training", facts["status"]]
    if len(attempts) > 1:
        words.append(f"attempt {number}")
    if "reward" in facts:
        words.append(f"reward {facts['reward']}")
    return "  ".join([*map(str, words), *([run.experiment_name] if several_runs else [])])


def _as_written(word: str) -> bytes:
    """A number or a name as the head of a record has it."""
    if not word:
        return rb'(?:[^,{}"]*|"[^"]*")'
    return b"null" if word == "-" else b'(?:%b|"%b")' % (re.escape(word.encode()), re.escape(word.encode()))


def _word(value: object) -> str:
    return "-" if value is None else str(value)
