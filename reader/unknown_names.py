"""Names in `--where` that no trajectory has: mistyped, most of the time, and then the expression means nothing.

What trajectories are asked for differs from one to the next (attributes, extras of the reward), so that a name is known
as soon as one of all that were read has it. That is known when they have been read, in passing (`Where.note`).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ..schemas.errors import BadFilter
from .facts import trajectory_facts
from .filters import Filters
from .outlines import iter_outlines
from .runs import Run
from .score_names import SCORE_NAMES

__all__ = ["look_for_names", "unknown_names"]

# Rightly typed everywhere, but not every run has them.
_WELL_KNOWN = frozenset({"node", "rank", *SCORE_NAMES})
# More names than this help nobody.
_LISTED = 40


def look_for_names(filters: Filters, runs: Sequence[Run]) -> None:
    """Read these runs, in outline, until every name was seen: for what can only be asked before it is done."""
    where = filters.where
    if where is None or not where.missing:
        return
    for run in runs:
        for outline in iter_outlines(run):
            where.note(trajectory_facts(outline))
            if not where.missing:
                return


def unknown_names(filters: Filters, *, ended: bool) -> str:
    """What is to be said, as a warning, of names that none of the trajectories had; "" where there is none.

    To be asked when all of them were read. `ended`: nothing is added to these runs any more. A name that may still
    come, or that verl-trace itself gives to runs with scores, is no error.

    Raises:
        BadFilter: a name that is neither.
    """
    where = filters.where
    if where is None or not where.missing or not where.seen:
        # without any trajectory nothing is known of names
        return ""
    # of `extra` and `extra.depth`, the first one says it
    names = [name for name in sorted(where.missing) if not any(name.startswith(f"{one}.") for one in where.missing)]
    said = f"--where {where.text!r}: no trajectory has {' or '.join(map(repr, names))}"
    if _WELL_KNOWN.issuperset(names):
        return said
    hint = _hint(names, where.seen)
    if not ended:
        return f"{said} so far; the run is still being written ({hint})"
    raise BadFilter(said, hint=hint)


def _hint(names: list[str], seen: set[str]) -> str:
    """What may have been meant by each of the names, and what there is in the places of them all."""
    places = {name.rpartition(".")[0] for name in names}
    there = sorted(name for name in seen if name.rpartition(".")[0] in places and _can_be_typed(name))
    possible = [*there, *(_WELL_KNOWN - seen)]
    near = [match for name in names for match in _near(name, possible) if match not in names]
    more = f" and {len(there) - _LISTED:,} more" if len(there) > _LISTED else ""
    listed = f"there are {', '.join(there[:_LISTED])}{more}" if there else "there is nothing below it"
    return f"did you mean {' or '.join(dict.fromkeys(near))}? {listed}" if near else listed


def _near(name: str, possible: list[str]) -> list[str]:
    """Names in the same place that look like it."""
    place, _, last = name.rpartition(".")
    beside = {word: other for other in possible for way, _, word in [other.rpartition(".")] if way == place}
    return [beside[match] for match in difflib.get_close_matches(last, beside, 2)]


def _can_be_typed(name: str) -> bool:
    return all(map(str.isidentifier, name.split(".")))
