"""The calls of a trajectory as an indented tree, however deep or wide it is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ..reader import Call, Trajectory
from ..reader.kinds import tokens_of
from ..schemas.wording import counted
from .terminal import Line, line
from .text import cell_width, cut_to_width, human_seconds, visible

__all__ = ["tree_lines"]

# Beyond these a tree is no longer read by eye: `--full` shows all.
_MAX_CALLS = 200
_MAX_CHILDREN = 40
# Deeper levels are told by a number instead of by indentation.
_MAX_INDENT = 8
# Columns that an error gets beside a long name.
_LEAST_TROUBLE = 14
_STYLES = {"error": "bold red", "unfinished": "yellow"}


def tree_lines(trajectory: Trajectory, columns: int, *, full: bool = False, boxes: bool = True) -> Iterator[Line]:
    """One line a call: its place, op, status, duration, tokens, short id, and what went wrong."""
    children = trajectory.children()
    unique = _short_ids(trajectory)
    shown = hidden = 0
    # depth first, without recursion: a chain may be 3,000 levels deep
    stack: list[tuple[Call | None, str, int, int]] = []
    _push(stack, children.get(None, []), "", 0, full)
    while stack:
        call, indent, depth, more = stack.pop()
        if call is None:
            hidden += more
            yield line(("  " + indent + f"… {counted(more, 'more call')} beside these", "dim"))
            continue
        if not full and shown >= _MAX_CALLS:
            hidden += 1
            continue
        shown += 1
        yield _call_line(call, indent, depth, columns, unique, boxes)
        # the children of a call are pushed under its own id; a call can be its own ancestor only in damaged files
        below = children.pop(call.id, [])
        _push(stack, below, _indent_below(indent, depth), depth + 1, full)
    if hidden:
        yield line((f"  … not shown: {hidden:,} of {counted(len(trajectory.calls), 'call')}; --full shows all", "bold"))


def _push(
    stack: list[tuple[Call | None, str, int, int]], calls: list[Call], indent: str, depth: int, full: bool
) -> None:
    kept = calls if full else calls[:_MAX_CHILDREN]
    if len(kept) < len(calls):
        stack.append((None, indent, depth, len(calls) - len(kept)))
    stack += [(call, indent, depth, 0) for call in reversed(kept)]


def _indent_below(indent: str, depth: int) -> str:
    return indent + "  " if depth < _MAX_INDENT else indent


def _call_line(call: Call, indent: str, depth: int, columns: int, unique: int, boxes: bool) -> Line:
    branch = ("└ " if boxes else "- ") if depth else ""
    level = f"{depth}: " if depth > _MAX_INDENT else ""
    name = f"  {indent}{branch}{level}{visible(call.op)}"
    facts = [human_seconds(call.duration)]
    tokens = tokens_of(call)
    if tokens is not None:
        facts.append(f"{tokens:,} tok")
    end = f"{'  '.join(facts)}  {call.id[:unique]}"
    trouble = "" if call.status == "success" else f"  {_trouble(call)}"
    if call.orphan:
        trouble += "  parent not recorded"
    if call.clock_skew > 0:
        trouble += f"  clock {human_seconds(call.clock_skew)} behind its parent's"
    room = columns - cell_width(end) - 2
    name = cut_to_width(name, max(20, room))
    gap = " " * max(2, columns - cell_width(name) - cell_width(end))
    if not trouble:
        return line(name, gap, (end, "dim"))
    if cell_width(name) + cell_width(trouble) <= room:
        gap = " " * max(2, columns - cell_width(name) - cell_width(trouble) - cell_width(end))
        return line(name, (trouble, _STYLES.get(call.status, "")), gap, (end, "dim"))
    name = cut_to_width(name, max(8, room - _LEAST_TROUBLE))
    trouble = cut_to_width(trouble, max(_LEAST_TROUBLE, room - cell_width(name)))
    gap = " " * max(2, columns - cell_width(name) - cell_width(trouble) - cell_width(end))
    return line(name, (trouble, _STYLES.get(call.status, "")), gap, (end, "dim"))


def _trouble(call: Call) -> str:
    if call.exception is None:
        return call.status
    return visible(f"{call.exception.get('type', 'error')}: {call.exception.get('message', '')}".rstrip(": "))


def _short_ids(trajectory: Trajectory) -> int:
    """How much of an id tells the calls of this trajectory apart, at least eight digits."""
    ids = sorted(call.id for call in trajectory.calls)
    longest = 0
    for one, other in pairwise(ids):
        longest = max(longest, next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 36))
    return max(8, longest + 1)
