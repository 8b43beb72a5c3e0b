"""The calls of one trace put in order: parents found, orphans marked, clocks that disagree noticed."""

from __future__ import annotations

from datetime import datetime

from ..schemas.lines import PARTIAL_PARENT
from .calls import Call

__all__ = ["arrange"]


def arrange(calls: dict[str, Call]) -> list[Call]:
    """The calls in start order, each behind its parent whatever the clocks of their hosts say."""
    _resolve(calls)
    skewed = False
    begun = {call_id: call.started_at for call_id, call in calls.items()}
    for call_id, call in calls.items():
        parent = call.parent_id
        if parent is None:
            call.orphan = False
            continue
        before = begun.get(parent)
        call.orphan = before is None
        if before is not None and (own := begun[call_id]) and own < before:
            call.clock_skew = _seconds_between(own, before)
            skewed = True
    in_order = sorted(calls.values(), key=lambda call: (begun[call.id], call.id))
    return _behind_parents(in_order, calls) if skewed else in_order


def _resolve(calls: dict[str, Call]) -> None:
    """Find the parents of which a call's process knew half of the id."""
    partial = [call for call in calls.values() if (call.parent_id or "").startswith(PARTIAL_PARENT)]
    if not partial:
        return
    by_half = {call_id[len(PARTIAL_PARENT) :]: call_id for call_id in calls}
    for call in partial:
        call.resolved_parent = by_half.get((call.parent_id or "")[len(PARTIAL_PARENT) :])


def _behind_parents(in_order: list[Call], calls: dict[str, Call]) -> list[Call]:
    out: list[Call] = []
    placed: set[str] = set()
    for call in in_order:
        above: list[Call] = []
        at: Call | None = call
        # a damaged file may even hold a cycle
        while at is not None and at.id not in placed:
            placed.add(at.id)
            above.append(at)
            at = None if at.parent_id is None else calls.get(at.parent_id)
        out += reversed(above)
    return out


def _seconds_between(earlier: str, later: str) -> float:
    try:
        begin, end = (datetime.fromisoformat(time.replace("Z", "+00:00")) for time in (earlier, later))
    except ValueError:
        return 0.0
    return (end - begin).total_seconds()
