"""What a segment has of each trajectory, by its outline.

Where what was kept turns out to be none, it is made anew of the segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat, starmap
from typing import Any, NamedTuple

import orjson

from .figures import Figures, OpFigures
from .outline import CallOutline, Outline, Place
from .outline_cache import opened, segment_outline
from .outline_lines import Row
from .outline_shape import NOT_WHOLE, are_calls
from .writers import Segment, Writer

__all__ = ["Part", "Piece"]

_PLACE = Figures._fields.index("place")


@dataclass(eq=False)
class Part:
    """A segment, and what is kept of it, compressed."""

    segment: Segment
    writer: Writer
    being_written: bool
    data: bytes
    anew: dict[str, Piece] | None = None

    def scores_and_pieces(self) -> tuple[list[bytes], list[Piece]]:
        """The lines of its scores, and what there is of each trajectory."""
        found = opened(self.data)
        assert found is not None, "the first pass opened it"
        head, lines = found
        return lines[: head["scores"]], list(self._pieces(head, lines))

    def piece_anew(self, trace_id: str) -> Piece | None:
        """What the segment itself has of a trajectory; None where it has nothing."""
        if self.anew is None:
            # of all of them: the next one is as broken, most likely
            self.data = segment_outline(self.segment, being_written=self.being_written)
            self.anew = {piece.trace_id: piece for piece in self.scores_and_pieces()[1]}
        return self.anew.get(trace_id)

    def _pieces(self, head: dict[str, Any], lines: list[bytes]) -> Iterator[Piece]:
        begin, words, places = head["scores"], head["words"], _Places(head["places"])
        for trace_id, figures, columns in zip(head["traces"], lines[begin::2], lines[begin + 1 :: 2], strict=True):
            yield Piece(trace_id, figures, columns, self, words, places)


class Piece(NamedTuple):
    """What a segment has of a trajectory: its figures (null unless it is whole here), and the columns of its calls."""

    trace_id: str
    figures: bytes
    columns: bytes
    part: Part
    words: Sequence[str]
    places: _Places

    def rows(self) -> dict[str, Row]:
        """Id -> call, with words and places instead of their numbers."""
        columns = _parsed(self.columns)
        if not are_calls(columns, len(self.words), len(self.places.texts)):
            piece = self.part.piece_anew(self.trace_id)
            if piece is not self:
                return piece.rows() if piece is not None else {}
        if not columns:
            return {}
        ids, parents, ops, kinds, statuses, *figures, places, seen = columns
        word = self.words.__getitem__
        words = (map(word, ops), map(word, kinds), map(word, statuses))
        own = (map(self.places.get, places), seen, repeat(self.part.writer), repeat(0.0))
        return dict(zip(ids, zip(ids, parents, *words, *figures, *own, strict=False), strict=True))

    @property
    def is_whole(self) -> bool:
        """Whether the whole trajectory is here."""
        return self.figures != NOT_WHOLE

    def outline(self) -> Outline:
        """Of a trajectory that is whole here."""
        *figures, ops = orjson.loads(self.figures)
        figures[_PLACE] = self.places.get(figures[_PLACE])
        found = Figures._make([*figures, list(starmap(OpFigures, ops))])
        return Outline(self.trace_id, self.part.writer, self._calls, found, [self.part.segment])

    def _calls(self) -> list[CallOutline]:
        return list(map(CallOutline._make, self.rows().values()))


class _Places:
    """Places by number; each is parsed once, when it is asked for."""

    def __init__(self, texts: Sequence[tuple[str, str]]) -> None:
        self.texts = texts
        self._known: dict[int, Place] = {}

    def get(self, number: int) -> Place:
        if number not in self._known:
            self._known[number] = Place(*map(orjson.loads, self.texts[number]))
        return self._known[number]


def _parsed(data: bytes) -> Any:
    """What is JSON, None of what is none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
