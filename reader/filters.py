"""Which trajectories are meant: the same words for every command that reads a run.

A filter is about whole trajectories. What is said of the trajectory (step, sample, rollout, validation, attempt, an
expression) must hold for it; what is said of calls (op, status, duration, node, rank) must hold for one of its calls,
all of it for the same one.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..schemas.errors import BadFilter
from .calls import Call, Trajectory
from .durations import parse_duration
from .facts import trajectory_facts
from .outline import CallOutline, Outline
from .where import Where

__all__ = ["Filters", "Numbers"]

STATUSES = ("success", "error", "unfinished")


class Numbers:
    """`3`, `1:100`, `1:100:10`, `:50`, `1,5,10:20`: numbers and ranges with both ends; with `words` UUIDs and the like.

    Raises:
        BadFilter: what is neither (`1-100`), or a range that ends before it begins.
    """

    def __init__(self, text: str, option: str, *, words: bool = False) -> None:
        self.text = text
        self._words: set[str] = set()
        self._ranges: list[tuple[int | None, int | None, int]] = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            if ":" in part:
                self._ranges.append(_range(part, option))
            elif words or _integer(part) is not None:
                self._words.add(part)
            else:
                raise BadFilter(
                    f"{option} {part!r} is no number", hint=f"e.g. {option} 3, or {option} 1:100 for a range"
                )
        if not self._words and not self._ranges:
            raise BadFilter(f"{option} {text!r} names nothing", hint=f"e.g. {option} 3 or {option} 1:100:10")

    def __contains__(self, value: object) -> bool:
        if value is None:
            return False
        # a sample index may be recorded as 7 or as "7": people type the same
        if str(value) in self._words:
            return True
        number = _integer(value)
        if number is None:
            return False
        if str(number) in self._words:
            return True
        return any(_in_range(number, *bounds) for bounds in self._ranges)


def _range(part: str, option: str) -> tuple[int | None, int | None, int]:
    try:
        numbers = [int(number) if number.strip() else None for number in part.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or (len(numbers) == 3 and (numbers[2] is not None and numbers[2] < 1)):
        raise BadFilter(
            f"{option} {part!r} is no range", hint=f"FIRST:LAST or FIRST:LAST:EVERY, e.g. {option} 1:100:10"
        )
    if numbers[0] is not None and numbers[1] is not None and numbers[0] > numbers[1]:
        raise BadFilter(f"{option} {part!r} ends before it begins", hint=f"{option} {numbers[1]}:{numbers[0]}")
    every = numbers[2] if len(numbers) == 3 and numbers[2] is not None else 1
    return numbers[0], numbers[1], every


def _in_range(number: int, first: int | None, last: int | None, every: int) -> bool:
    if (first is not None and number < first) or (last is not None and number > last):
        return False
    return (number - (first or 0)) % every == 0


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    return None


@dataclass(frozen=True)
class Filters:
    """What was asked for; without anything, all. `ops` and `nodes` are shell patterns, `min_duration` is in seconds.

    `attempts` are numbers from 1 in the order in which they started, `last`, or beginnings of their ids; `of_run` turns
    them into ids.
    """

    steps: Numbers | None = None
    sample_indexes: Numbers | None = None
    rollouts: Numbers | None = None
    validate: bool | None = None
    attempts: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    status: str | None = None
    min_duration: float | None = None
    where: Where | None = None
    nodes: tuple[str, ...] = ()
    ranks: Numbers | None = None

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in STATUSES:
            raise BadFilter(f"--status {self.status!r} is none of {', '.join(STATUSES)}")

    @classmethod
    def of(
        cls,
        *,
        step: str | int | None = None,
        sample_index: str | int | None = None,
        rollout_n: str | int | None = None,
        validate: bool | None = None,
        attempt: str | Sequence[str] | None = None,
        op: str | Sequence[str] | None = None,
        status: str | None = None,
        min_duration: str | float | None = None,
        where: str | None = None,
        node: str | Sequence[str] | None = None,
        rank: str | int | None = None,
    ) -> Filters:
        """From what people type: the options of the commands under their names, `Filters.of(step="1:100:10")`.

        Raises:
            BadFilter: one of them says nothing sensible.
        """

        def numbers(value: str | int | None, option: str, *, words: bool = False) -> Numbers | None:
            return None if value is None else Numbers(str(value), option, words=words)

        def several(value: str | Sequence[str] | None) -> tuple[str, ...]:
            return (value,) if isinstance(value, str) else tuple(value or ())

        return cls(
            steps=numbers(step, "--step"),
            sample_indexes=numbers(sample_index, "--sample-index", words=True),
            rollouts=numbers(rollout_n, "--rollout-n"),
            validate=validate,
            attempts=several(attempt),
            ops=several(op),
            status=status,
            min_duration=None if min_duration is None else parse_duration(str(min_duration), "--min-duration"),
            where=None if where is None else Where(where),
            nodes=several(node),
            ranks=numbers(rank, "--rank"),
        )

    @property
    def words(self) -> str:
        """What was asked for, in one line; the same for the same."""
        said = {name: getattr(value, "text", value) for name, value in vars(self).items() if value not in (None, ())}
        return ", ".join(f"{name}={value!r}" for name, value in sorted(said.items()))

    @property
    def everything(self) -> bool:
        """Whether nothing was asked for."""
        return self == Filters()

    def of_run(self, attempts: Sequence[str]) -> Filters:
        """The same for a run with these attempts, in order: `attempts` are ids now.

        Raises:
            BadFilter: no attempt is meant, or several are.
        """
        if not self.attempts:
            return self
        ids = tuple(_attempt(name, attempts) for name in self.attempts)
        return Filters(**{**vars(self), "attempts": ids})

    def trajectory(self, trajectory: Trajectory | Outline, facts: dict[str, Any] | None = None) -> bool:
        """Whether the trajectory is meant; `facts`: its `trajectory_facts`, where they are known already."""
        if self.where is not None and self.where.missing:
            # whatever else was asked for: a name is unknown that no trajectory has (`unknown_names`)
            facts = trajectory_facts(trajectory) if facts is None else facts
            self.where.note(facts)
        if self._about_calls and not any(self.call(call) for call in trajectory.calls):
            return False
        if not self._about_trajectories:
            return True
        return self._holds(trajectory_facts(trajectory) if facts is None else facts)

    def op(self, name: str) -> bool:
        """Whether a call of this op is meant."""
        return not self.ops or any(_is_op(name, op) for op in self.ops)

    def call(self, call: Call | CallOutline) -> bool:
        """Whether what was said of calls holds for this one."""
        if not self.op(call.op):
            return False
        if self.status is not None and call.status != self.status:
            return False
        if self.nodes and not any(fnmatch.fnmatchcase(call.writer.node, node) for node in self.nodes):
            return False
        if self.ranks is not None and call.writer.rank not in self.ranks:
            return False
        return self.min_duration is None or (call.duration is not None and call.duration >= self.min_duration)

    @property
    def _about_calls(self) -> bool:
        said = (self.status, self.min_duration, self.ranks)
        return bool(self.ops or self.nodes) or any(value is not None for value in said)

    @property
    def _about_trajectories(self) -> bool:
        numbers = (self.steps, self.sample_indexes, self.rollouts)
        return any(said is not None for said in (*numbers, self.validate, self.where)) or bool(self.attempts)

    def _holds(self, facts: dict[str, Any]) -> bool:
        if self.steps is not None and facts["step"] not in self.steps:
            return False
        if self.sample_indexes is not None and facts["sample_index"] not in self.sample_indexes:
            return False
        if self.rollouts is not None and facts["rollout_n"] not in self.rollouts:
            return False
        if self.validate is not None and bool(facts["validate"]) != self.validate:
            return False
        if self.attempts and facts["attempt"] not in self.attempts:
            return False
        return self.where is None or self.where(facts)


def _is_op(op: str, pattern: str) -> bool:
    """A whole name, its last part (`generate`), or a shell pattern of it."""
    return op == pattern or op.rpartition(".")[2] == pattern or fnmatch.fnmatchcase(op, pattern)


def _attempt(name: str, attempts: Sequence[str]) -> str:
    if name == "last" and attempts:
        return attempts[-1]
    if name.isdecimal() and 1 <= int(name) <= len(attempts):
        return attempts[int(name) - 1]
    found = [attempt for attempt in attempts if attempt.startswith(name)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{number} ({attempt})" for number, attempt in enumerate(attempts, 1))
    raise BadFilter(
        f"--attempt {name}: {'no' if not found else 'more than one'} attempt is meant", hint=f"there are {known}"
    )
