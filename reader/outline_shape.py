"""Whether what the cache keeps of a segment has the form of an outline, so that whoever uses it need not ask.

A checksum says that these are the bytes that were written. It does not say by whom: another version may have, or
somebody else who may write into that folder. The columns of calls, by far the most of it, are looked at where they
are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import orjson

from .figures import END, START, TEXT

__all__ = ["NOT_WHOLE", "are_calls", "is_outline"]

# In the place of figures, where a trajectory is not whole in the segment.
NOT_WHOLE = b"null"

_Types = frozenset[type]
_NONE = frozenset({type(None)})
_TEXT, _WHOLE, _FLAG, _LIST = frozenset({str}), frozenset({int}), frozenset({bool}), frozenset({list})
_NUMBER = _WHOLE | {float}

# Columns of a call (`outline_lines.Row`).
_CALL = (
    _TEXT, _TEXT | _NONE, _WHOLE, _WHOLE, _WHOLE, _NUMBER | _NONE, _WHOLE | _NONE, _WHOLE | _NONE, _TEXT, _TEXT | _NONE,
    _WHOLE, _WHOLE,
)  # fmt: skip
_WORDS, _PLACE, _SEEN = (2, 3, 4), 10, 11
# `Figures`, and `OpFigures` in them; where they have a place, shares, ops and durations.
_FIGURES = (
    _TEXT, _TEXT, _NUMBER | _NONE, _WHOLE, _WHOLE, _WHOLE, _WHOLE, _TEXT, _WHOLE, _WHOLE | _NONE, _WHOLE, _WHOLE, _TEXT,
    _TEXT, _LIST | _NONE, _LIST,
)  # fmt: skip
_place, _shares, _ops = itemgetter(3), itemgetter(14), itemgetter(15)
_OP = (_TEXT, _TEXT, _WHOLE, _WHOLE, _WHOLE, _WHOLE, _LIST)
_durations = itemgetter(6)
# The head, without its form; and of it `damages`, `lost` and `lost_by`.
_HEAD: dict[str, _Types] = {
    "file": _TEXT, "size": _WHOLE, "ended": _FLAG, "last_seen": _TEXT, "damages": _LIST, "unknown": frozenset({dict}),
    "skipped": _WHOLE, "duplicates": _WHOLE, "lost": _LIST, "lost_by": _LIST, "words": _LIST, "places": _LIST,
    "scores": _WHOLE, "traces": _LIST, "records": _LIST,
}  # fmt: skip
_DAMAGE = (_WHOLE, _WHOLE, _TEXT, _TEXT)
_LOST = (_WHOLE, _WHOLE, _WHOLE)
_LOST_BY = (frozenset({dict}), frozenset({dict}))


def is_outline(head: dict[str, Any], lines: Sequence[bytes], file: str) -> bool:
    """Whether these are the head and the lines (see `outline_lines`) of an outline of the file of that name; of the
    lines, the columns of calls are not looked at."""
    try:
        figures = [orjson.loads(line) for line in lines[head["scores"] :: 2] if line != NOT_WHOLE]
        return _is_head(head, file) and _are_figures(figures, len(head["places"]))
    except (KeyError, TypeError, ValueError):
        return False


def are_calls(columns: Any, words: int, places: int) -> bool:
    """Whether these are the columns of calls, which have so many words and places; [] where there are none."""
    try:
        return columns == [] or (
            len(columns) == len(_CALL)
            and len(set(map(len, columns))) == 1
            and all(map(_are, columns, _CALL))
            and all(_are_below(columns[index], words) for index in _WORDS)
            and _are_below(columns[_PLACE], places)
            and _are_below(columns[_SEEN], (START | END | TEXT) + 1)
        )
    except (KeyError, TypeError):
        return False


def _is_head(head: dict[str, Any], file: str) -> bool:
    return (
        all(type(head[name]) in types for name, types in _HEAD.items())
        and head["file"] == file
        and head["scores"] >= 0
        and _are(head["records"], _WHOLE)
        and _are(chain(head["words"], head["traces"], head["unknown"]), _TEXT)
        and _are(head["unknown"].values(), _WHOLE)
        and _are_rows([head["lost"]], _LOST)
        and _are_rows([head["lost_by"]], _LOST_BY)
        and all(_are(counts, _TEXT) and _are(counts.values(), _WHOLE) for counts in head["lost_by"])
        and _are_rows(head["damages"], _DAMAGE)
        and _are_rows(head["places"], (_TEXT, _TEXT))
        and all(type(orjson.loads(text)) is dict for text in chain.from_iterable(head["places"]))
    )


def _are_figures(figures: Sequence[Any], places: int) -> bool:
    # a column at a time, of all of them: that takes a tenth of what it takes to look at each
    if not _are_rows(figures, _FIGURES) or not _are_below(list(map(_place, figures)), places):
        return False
    shares = list(filter(None, map(_shares, figures)))
    ops = list(chain.from_iterable(map(_ops, figures)))
    return (
        _are_rows(shares, (_NUMBER, _NUMBER, _NUMBER))
        and _are_rows(ops, _OP)
        and _are(chain.from_iterable(map(_durations, ops)), _NUMBER)
    )


def _are(values: Iterable[Any], types: _Types) -> bool:
    return types.issuperset(map(type, values))


def _are_rows(rows: Sequence[Any], types: Sequence[_Types]) -> bool:
    """Whether each row has a value of each of these types."""
    columns = list(zip(*rows, strict=True))
    return not rows or (len(columns) == len(types) and all(map(_are, columns, types)))


def _are_below(numbers: Sequence[int], bound: int) -> bool:
    return not numbers or (min(numbers) >= 0 and max(numbers) < bound)
