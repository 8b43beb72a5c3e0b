"""Scores, found in a first pass over a run: which trajectory each belongs to, and the groups they make.

A score that names its trajectory is read with it, in the second pass. One of the trainer names a group and a place in
it; the agent loop's own score of the same rollout says which trajectory that is. Memory: some 230 bytes for every
trajectory that has a score, and the whole record only of those that still look for theirs.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import orjson

from ..schemas.lines import Line
from .groups import Group, figures, number
from .records import text_of

__all__ = ["Scores", "merge"]

_Key = tuple[Hashable, ...]


class _Members:
    """A group: how many it is to have, and its trajectories' rewards, None where unknown."""

    __slots__ = ("rewards", "size")

    def __init__(self) -> None:
        self.size: int | None = None
        self.rewards: dict[str, float | None] = {}


class Scores:
    """Takes every score of a run in; then `settle`; then asked once for each trajectory."""

    def __init__(self) -> None:
        # what a trajectory may be found by -> the trajectories, in the order of their records
        self._places: dict[_Key, list[str]] = {}
        self._loose: list[tuple[str, Line]] = []
        self._found: dict[str, list[Line]] = {}
        self._groups: dict[_Key, _Members] = {}
        self._group_of: dict[str, _Members] = {}
        self._size_of: dict[str, int] = {}
        self._attempts: set[str] = set()

    def add(self, attempt: str, line: Line) -> None:
        """Take one record in."""
        if line.head.get("source") != "user":
            self._attempts.add(attempt)
        trace_id = text_of(line.head.get("trace_id"))
        if not trace_id:
            self._loose.append((attempt, line))
            return
        if line.head.get("status") == "partial":
            for key in _keys(attempt, line.head):
                known = self._places.setdefault(key, [])
                if trace_id not in known:
                    known.append(trace_id)
        self._group(attempt, trace_id, line)

    def settle(self) -> int:
        """Join what names no trajectory; how many records found none."""
        unjoined = 0
        taken: set[tuple[_Key, str]] = set()
        for attempt, line in sorted(self._loose, key=_order):
            trace_id = self._find(attempt, line.head, taken)
            if trace_id is None:
                unjoined += 1
                continue
            self._found.setdefault(trace_id, []).append(line)
            self._group(attempt, trace_id, line)
        self._loose.clear()
        self._places.clear()
        return unjoined

    def _find(self, attempt: str, head: dict[str, Any], taken: set[tuple[_Key, str]]) -> str | None:
        batch = text_of(head.get("recorded_at"))
        for key in _keys(attempt, head):
            places = self._places.get(key, ())
            # equal answers of one group are taken in turn; the trainer's records of one batch have one time
            for trace_id in places:
                if (claim := ((*key, batch), trace_id)) not in taken:
                    taken.add(claim)
                    return trace_id
            if places:
                return places[-1]
        return None

    def joined(self, trace_id: str) -> list[Line]:
        """The records of a trajectory that do not name it."""
        return self._found.pop(trace_id, [])

    def group(self, trace_id: str, reward: float | None) -> Group | None:
        """The figures of a trajectory's group; None while a member's reward is missing, or its size is not known."""
        members = self._group_of.get(trace_id)
        if members is None or reward is None or members.size is None or len(members.rewards) < members.size:
            return None
        known = [value for value in members.rewards.values() if value is not None]
        return figures(known, reward) if len(known) == len(members.rewards) else None

    def expected(self, attempt: str) -> bool:
        """Whether this training tells its scores."""
        return attempt in self._attempts

    def group_awaited(self, trace_id: str) -> bool:
        """Whether members of the trajectory's group, or their rewards, are still to come."""
        members = self._group_of.get(trace_id)
        if members is None or members.size is None:
            return False
        return len(members.rewards) < members.size or None in members.rewards.values()

    def _group(self, attempt: str, trace_id: str, line: Line) -> None:
        head = line.head
        members, uid, size = self._group_of.get(trace_id), head.get("uid"), head.get("group_size")
        if members is None and isinstance(uid, str):
            # a data set may give its prompts lasting names
            key = (attempt, uid, _scalar(head.get("step")), head.get("validate") is True)
            members = self._group_of[trace_id] = self._groups.setdefault(key, _Members())
        if members is None:
            if isinstance(size, int):
                # whoever tells the group's name later knows no size
                self._size_of[trace_id] = size
            return
        size = self._size_of.pop(trace_id, size)
        if isinstance(size, int):
            members.size = size
        members.rewards.setdefault(trace_id, None)
        try:
            reward = number(orjson.loads(line.payload or b"{}").get("reward"))
        except (orjson.JSONDecodeError, AttributeError):
            return
        if reward is not None:
            members.rewards[trace_id] = reward


def merge(lines: list[Line]) -> tuple[dict[str, Any], str | None]:
    """The latest value of each name, and what the records say together: `scored`, `failed`, `partial` or None.

    A record that knows no reward takes none away.
    """
    scores: dict[str, Any] = {}
    statuses: set[str] = set()
    for line in sorted(lines, key=lambda line: (text_of(line.head.get("recorded_at")), text_of(line.head.get("id")))):
        try:
            told = orjson.loads(line.payload or b"{}")
        except orjson.JSONDecodeError:
            continue
        if not isinstance(told, dict):
            continue
        scores |= {name: value for name, value in told.items() if value is not None or name not in scores}
        # what a user tells beside the reward says nothing of whether that is still to come
        if line.head.get("source") != "user" or line.head.get("status") != "partial":
            statuses.add(text_of(line.head.get("status")))
    return scores, next((status for status in ("scored", "failed", "partial") if status in statuses), None)


def _keys(attempt: str, head: dict[str, Any]) -> list[_Key]:
    """What a record can be joined by, the surest first: with step and validation where known, then without."""
    named = _names(head)
    step = head.get("step")
    within = [(attempt, step, head.get("validate") is True, *name) for name in named] if isinstance(step, int) else []
    return [*within, *((attempt, *name) for name in named)]


def _names(head: dict[str, Any]) -> list[_Key]:
    uid, session, row, response = (head.get(name) for name in ("uid", "session", "row", "response"))
    names: list[_Key] = []
    if isinstance(uid, str) and isinstance(session, int):
        names.append(("session", uid, session))
    if isinstance(uid, str) and isinstance(row, int):
        # verl's ReMax baseline has the row's number, too, but another answer
        names += [("row", uid, row, response)] if isinstance(response, str) else []
        names.append(("row", uid, row))
    if isinstance(uid, str) and isinstance(response, str):
        names.append(("response", uid, response))
    if isinstance(response, str):
        names.append(("response", response))
    return names


def _order(item: tuple[str, Line]) -> tuple[str, str]:
    head = item[1].head
    return text_of(head.get("recorded_at")), text_of(head.get("id"))


def _scalar(value: Any) -> Hashable:
    return value if isinstance(value, (int, float, str)) else None
