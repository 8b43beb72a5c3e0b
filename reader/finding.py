"""Traces found by bytes: which may be meant, and their records alone, whatever the size of the run.

Two searches at the speed of the decompressor. The first, over digests where the cache has them, says which traces and
segments a pattern is in; the second takes the records of these traces out of these segments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import zstandard

from .blocks import Block, blocks
from .digest_cache import kept_digests
from .records import trace_id_of
from .runs import Run
from .segments import SegmentLines
from .trees import Source
from .writers import Segment

__all__ = ["SCORE", "Hits", "find", "records_of"]

# More candidates than this are not looked at one by one.
_MOST = 12
# What a score says may belong to any trajectory.
SCORE = b'{"kind":"score"'

_Numbered = tuple[int, bytes]
# f(data, begin, end): the first place, -1 for none
_Search = Callable[[bytes, int, int], int]


@dataclass
class Hits:
    """The traces that a pattern is in, the segments to read for them, and first and last line of the others."""

    trace_ids: set[str] = field(default_factory=set)
    segments: set[Segment] = field(default_factory=set)
    ends: dict[Segment, list[_Numbered]] = field(default_factory=dict)


def find(run: Run, pattern: bytes | re.Pattern[bytes]) -> Hits | None:
    """The traces of whose records one has the bytes, or matches the expression; None where they are too many."""
    hits = Hits()
    wanted = _literal(pattern) if isinstance(pattern, bytes) else _expression(pattern)
    searches = [wanted, _literal(SCORE)]
    for writer in run.writers:
        for segment in writer.segments:
            try:
                found = list(_matching(_searched(segment), searches))
            except (zstandard.ZstdError, OSError):
                # damaged or just sealed: it is read with care when its turn comes
                hits.segments.add(segment)
                found = list(_careful(segment))
            matched = [line for _, line in found if wanted(line, 0, len(line)) >= 0]
            hits.trace_ids |= {trace_id_of(line) for line in matched} - {""}
            if matched or any(line.startswith(SCORE) for _, line in found):
                hits.segments.add(segment)
            hits.ends[segment] = [found[0], found[-1]][: len(found)] if found else []
            if len(hits.trace_ids) > _MOST:
                return None
    return hits


def records_of(hits: Hits) -> Source:
    """A source for `iter_trajectories`: of these traces all, of other traces nothing."""
    names = [b'"trace_id":"%b"' % trace_id.encode("utf-8", "replace") for trace_id in sorted(hits.trace_ids)]
    searches = [_literal(needle) for needle in [*names, SCORE]]
    known: dict[Segment, list[_Numbered]] = {}

    class Few(SegmentLines):
        """First and last line of a segment, and between them those that were searched for."""

        of: Segment

        def __iter__(self) -> Iterator[_Numbered]:
            if self.of not in hits.segments:
                yield from hits.ends.get(self.of, [])
                return
            if self.of not in known:
                try:
                    known[self.of] = list(_matching(blocks(self.path, sealed=self.sealed), searches))
                except (zstandard.ZstdError, OSError):
                    for offset, line in super().__iter__():
                        if trace_id_of(line) in hits.trace_ids or not trace_id_of(line):
                            yield offset, line
                    return
            yield from known[self.of]

    def source(segment: Segment, limit: int | None = None) -> SegmentLines:
        lines = segment.lines(limit, kind=Few)
        assert isinstance(lines, Few)
        lines.of = segment
        return lines

    return source


def _searched(segment: Segment) -> Iterator[Block]:
    kept = kept_digests(segment)
    if kept is not None:
        return iter([Block(kept, 0, len(kept))])
    lines = segment.lines()
    return blocks(lines.path, sealed=lines.sealed)


def _careful(segment: Segment) -> Iterator[_Numbered]:
    try:
        yield from segment.lines()
    except OSError:
        # the reader meets and reports it
        return


def _literal(needle: bytes) -> _Search:
    # far quicker than an expression with alternatives
    return lambda data, begin, end: data.find(needle, begin, end)


def _expression(pattern: re.Pattern[bytes]) -> _Search:
    def search(data: bytes, begin: int, end: int) -> int:
        found = pattern.search(data, begin, end)
        return found.start() if found is not None else -1

    return search


def _matching(found: Iterator[Block], searches: Sequence[_Search]) -> Iterator[_Numbered]:
    """The first line, those that match, the last line; each once, with its place among the bytes that were searched."""
    base, yielded = 0, -1
    last: _Numbered | None = None
    for data, begin, end in found:
        shift = base - begin
        if yielded < 0:
            after = data.find(b"\n", begin) + 1
            yielded = base
            yield base, data[begin:after]
        at = begin
        ahead = [search(data, at, end) for search in searches]
        while (hit := min((place for place in ahead if place >= 0), default=-1)) >= 0:
            line_begin, at = data.rfind(b"\n", begin, hit) + 1 or begin, data.find(b"\n", hit) + 1
            for number, place in enumerate(ahead):
                if 0 <= place < at:
                    ahead[number] = searches[number](data, at, end)
            if line_begin + shift > yielded:
                yielded = line_begin + shift
                yield yielded, data[line_begin:at]
        line_begin = data.rfind(b"\n", begin, end - 1) + 1 or begin
        last = (line_begin + shift, data[line_begin:end])
        base += end - begin
    if last is not None and last[0] > yielded:
        yield last
