"""Which trajectories to take when there is no room for all: the same choice for the same run and seed.

What belongs together stays together: the rollouts of one prompt (a GRPO group) are taken or left as one. Groups are
taken in four rounds, each spread evenly over the steps, until the room is used up:

1. one group of every step, a failed one where there is one, else the one with the best reward;
2. groups in which something failed or never ended;
3. the groups with the best and with the worst reward of each step;
4. all others, in an order that the seed shuffles.

A group that does not fit is passed over; smaller ones behind it may still be taken.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Candidate", "Selection", "group_key", "is_sampled", "select"]

GroupKey = tuple[Any, ...]


def group_key(facts: Mapping[str, Any]) -> GroupKey:
    """What the rollouts of one prompt share: verl's `uid` where it is recorded, else the sample's index."""
    uid = facts.get("uid")
    name = ("uid", str(uid)) if uid is not None else ("sample", repr(facts.get("sample_index")))
    return (facts.get("attempt"), repr(facts.get("step")), bool(facts.get("validate")), *name)


def is_sampled(key: GroupKey, rate: float, seed: int) -> bool:
    """Whether a group belongs to the share `rate` of all groups. The choices at two rates hold one another."""
    digest = hashlib.blake2b(repr((seed, key)).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < rate * 2**64


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trajectory that may be taken: what the choice looks at, and no more, since there may be millions."""

    trace_id: str
    group: GroupKey
    step: Any
    failed: bool
    reward: float | None
    size: int

    @classmethod
    def of(cls, facts: Mapping[str, Any], size: int) -> Candidate:
        """From the facts of a trajectory and the room in bytes that it takes."""
        reward = facts.get("reward")
        is_number = isinstance(reward, (int, float)) and reward == reward
        return cls(
            trace_id=str(facts["trace_id"]),
            group=group_key(facts),
            step=facts.get("step"),
            failed=facts.get("status") != "success",
            reward=float(reward) if is_number and reward is not None else None,
            size=size,
        )


@dataclass
class Selection:
    """What was taken. Counts of trajectories, groups, steps and bytes: taken of all."""

    chosen: set[str] = field(default_factory=set)
    trajectories: int = 0
    groups: int = 0
    groups_taken: int = 0
    steps: int = 0
    steps_taken: int = 0
    failed: int = 0
    failed_taken: int = 0
    size: int = 0
    size_taken: int = 0

    @property
    def left_out(self) -> int:
        """Trajectories that were not taken."""
        return self.trajectories - len(self.chosen)


@dataclass(slots=True)
class _Group:
    """What is known of a group. Its members' candidates are let go: there may be millions."""

    step: str
    trace_ids: list[str] = field(default_factory=list)
    size: int = 0
    failures: int = 0
    best: float | None = None
    worst: float | None = None

    def add(self, member: Candidate) -> None:
        self.trace_ids.append(member.trace_id)
        self.size += member.size
        self.failures += member.failed
        if member.reward is not None:
            self.best = member.reward if self.best is None else max(self.best, member.reward)
            self.worst = member.reward if self.worst is None else min(self.worst, member.reward)


def select(
    candidates: Iterable[Candidate], *, budget: int | None = None, limit: int | None = None, seed: int = 0
) -> Selection:
    """Choose whole groups within `budget` bytes and `limit` trajectories; without either, all."""
    groups: dict[GroupKey, _Group] = {}
    for candidate in candidates:
        group = groups.get(candidate.group)
        if group is None:
            group = groups[candidate.group] = _Group(repr(candidate.step))
        group.add(candidate)
    selection = Selection(groups=len(groups))
    taken: set[int] = set()
    # by name, so that the order in which files were read does not count
    ordered = [groups[key] for key in sorted(groups, key=repr)]
    groups.clear()
    for group in _in_order(ordered, seed):
        if id(group) in taken or not _fits(selection, group, budget, limit):
            continue
        taken.add(id(group))
        selection.chosen.update(group.trace_ids)
        selection.size_taken += group.size
        selection.groups_taken += 1
    _count(selection, ordered, taken)
    return selection


def _fits(selection: Selection, group: _Group, budget: int | None, limit: int | None) -> bool:
    if budget is not None and selection.size_taken + group.size > budget:
        return False
    return limit is None or len(selection.chosen) + len(group.trace_ids) <= limit


def _count(selection: Selection, groups: Iterable[_Group], taken: Container[int]) -> None:
    steps: dict[str, bool] = {}
    for group in groups:
        is_in = id(group) in taken
        selection.trajectories += len(group.trace_ids)
        selection.size += group.size
        selection.failed += group.failures
        selection.failed_taken += group.failures if is_in else 0
        steps[group.step] = steps.get(group.step, False) or is_in
    selection.steps = len(steps)
    selection.steps_taken = sum(steps.values())


def _in_order(groups: list[_Group], seed: int) -> Iterator[_Group]:
    """All groups, the ones to take first in front; some of them more than once."""
    chance = random.Random(seed)
    chance.shuffle(groups)
    by_step: dict[str, list[_Group]] = {}
    for group in groups:
        by_step.setdefault(group.step, []).append(group)
    steps = _spread([by_step[step] for step in sorted(by_step, key=lambda step: (len(step), step))])
    yield from (_representative(groups) for groups in steps)
    yield from _in_turn([[group for group in groups if group.failures] for groups in steps])
    yield from _in_turn([_extremes(groups) for groups in steps])
    yield from _in_turn(steps)


def _representative(groups: Sequence[_Group]) -> _Group:
    failed = [group for group in groups if group.failures]
    if failed:
        return failed[0]
    return max(groups, key=lambda group: float("-inf") if group.best is None else group.best)


def _extremes(groups: Sequence[_Group]) -> list[_Group]:
    """Where the best and the worst reward of a step are."""
    best = max(groups, key=lambda group: float("-inf") if group.best is None else group.best)
    worst = min(groups, key=lambda group: float("inf") if group.worst is None else group.worst)
    return [group for group in (best, worst) if group.best is not None]


def _in_turn(lists: Sequence[Sequence[_Group]]) -> Iterator[_Group]:
    """The first of each list, then the second of each, and so on."""
    for position in range(max(map(len, lists), default=0)):
        yield from (items[position] for items in lists if position < len(items))


def _spread(steps: list[list[_Group]]) -> list[list[_Group]]:
    """Reordered so that every beginning of the list is spread over the whole: first, middle, quarters, …"""
    width = max(1, (len(steps) - 1).bit_length())
    order = sorted(range(len(steps)), key=lambda index: int(f"{index:0{width}b}"[::-1], 2))
    return [steps[index] for index in order]
