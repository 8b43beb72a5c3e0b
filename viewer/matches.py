"""Matches of `grep` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .search import Found
from .terminal import Line, line
from .text import cell_width, cut_to_width, visible

__all__ = ["match_json", "match_lines", "match_row", "trajectory_name"]


def trajectory_name(found: Found) -> str:
    """Trace id and place, both of which `show` takes."""
    place = ":".join(
        "-" if part is None else visible(part) for part in (found.step, found.sample_index, found.rollout_n)
    )
    return f"{visible(found.trace_id)}  {place}"


def match_row(found: Found) -> str:
    """One line, tabs between trace id, place, op, field and the text."""
    text = visible(found.before + found.match + found.after)
    trace_id, _, place = trajectory_name(found).partition("  ")
    return "\t".join([trace_id, place, visible(found.op), visible(found.field), text])


def match_lines(found: Found, columns: int, *, titled: bool) -> Iterator[Line]:
    """For a terminal: the trajectory once, below it the texts, cut around the match."""
    if titled:
        yield line((trajectory_name(found), "magenta"))
    where = cut_to_width(f"  {visible(found.op)} {visible(found.field)}: ", max(20, columns - 20))
    before, match, after = visible(found.before), visible(found.match), visible(found.after)
    room = columns - cell_width(where)
    match = cut_to_width(match, max(8, room))
    left = max(0, room - cell_width(match))
    # most of the room for what follows, but always some of what comes before
    keep = max(left // 3, left - cell_width(after))
    while cell_width(before) > keep:
        cut = max(1, (cell_width(before) - keep) // 2)
        before = before[cut:]
    after = cut_to_width(after, left - cell_width(before)) if left > cell_width(before) else ""
    yield line((where, "cyan"), before, (match, "bold red"), after)


def match_json(found: Found, *, whole: bool = True) -> dict[str, Any]:
    """A match; not `whole`: only whose it is."""
    fields = found._asdict()
    return fields if whole else {name: fields[name] for name in ("trace_id", "step", "sample_index", "rollout_n")}
