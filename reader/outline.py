"""A trajectory without its texts: what is asked of it when a run is listed, counted or searched by filters.

It is made of a whole trajectory here, and by `outlines` of what is kept of each segment; both are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .calls import Call, Trajectory
from .counts import count_of
from .figures import END, START, TEXT, Figures, figures_of
from .groups import Group, number
from .kinds import kind_of, tokens_of
from .writers import Segment, Writer

__all__ = ["PLACES", "CallOutline", "Outline", "Place", "call_outline", "outline_of"]

# What the head of a record says of the trajectory.
PLACES = ("step", "sample_index", "rollout_n", "validate", "experiment_name")


class Place(NamedTuple):
    """Whose call it is: fields of the head (those of PLACES that it has), and the attributes."""

    head: dict[str, Any]
    attributes: dict[str, Any]


_NOTHING = Figures("", "", None, Place({}, {}), 0, 0, 0, "success", 0, None, 0, 0, "", "", None, [])


class CallOutline(NamedTuple):
    """One call. `kind` is one of `kinds`; `tokens` is the number of its token ids, `response` of a root's response ids.

    `seen`: which of its records there are, START | END | TEXT. `writer`, `clock_skew`: as in `Call`.
    """

    id: str
    parent_id: str | None
    op: str
    kind: str
    status: str
    duration: float | None
    tokens: int | None
    response: int | None
    started_at: str
    ended_at: str | None
    place: Place
    seen: int
    writer: Writer
    clock_skew: float

    @property
    def unfinished(self) -> bool:
        """Whether the end record is missing."""
        return not self.seen & END


class Outline:
    """A trajectory: its `figures`, and its `calls` in start order, which are put together when they are asked for.

    `segments`: where its records are, where that is known. `last_seen_at`: when the writers of its unfinished calls
    were last heard of, "" without such calls. `scores` and what follows are as in `Trajectory`.
    """

    __slots__ = (
        "_calls", "_figures", "_make", "facts", "group", "group_awaited", "last_seen_at", "orphans", "score_expected",
        "score_status", "scores", "segments", "skewed", "trace_id", "writer",
    )  # fmt: skip

    def __init__(
        self, trace_id: str, writer: Writer | None, make: Callable[[], list[CallOutline]],
        figures: Figures | None = None, segments: Sequence[Segment] = (),
    ) -> None:  # fmt: skip
        self.trace_id = trace_id
        self.writer = writer  # of the root, or of the first call
        self.segments = segments
        self.orphans = 0
        self.skewed = False  # a call began before its parent, by their clocks
        self.last_seen_at = ""
        self.scores: dict[str, Any] = {}
        self.score_status: str | None = None
        self.group: Group | None = None
        self.score_expected = False
        self.group_awaited = False
        self.facts: dict[str, Any] | None = None  # kept by `facts.trajectory_facts`
        self._make = make
        self._figures = figures
        self._calls: list[CallOutline] | None = None

    @property
    def calls(self) -> list[CallOutline]:
        """All of them."""
        if self._calls is None:
            self._calls = self._make()
        return self._calls

    @property
    def figures(self) -> Figures:
        """What the calls come to."""
        if self._figures is None:
            self._figures = figures_of(list(zip(*self.calls, strict=True))) if self.calls else _NOTHING
        return self._figures

    @property
    def attempt(self) -> str:
        """The training start that it belongs to; "" where that is not known."""
        return self.writer.attempt if self.writer is not None else ""

    @property
    def reward(self) -> float | None:
        """The reward; None where it is not known."""
        return number(self.scores.get("reward"))

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the root, or of the first call that has some."""
        place: Place = self.figures.place
        return place.attributes or next((call.place.attributes for call in self.calls if call.place.attributes), {})


def outline_of(trajectory: Trajectory) -> Outline:
    """The outline of a whole trajectory."""
    calls = trajectory.calls
    first = trajectory.root or (calls[0] if calls else None)
    outline = Outline(
        trajectory.trace_id, first.writer if first is not None else None, lambda: list(map(call_outline, calls))
    )
    outline.orphans = sum(call.orphan for call in calls)
    outline.skewed = any(call.clock_skew > 0 for call in calls)
    outline.last_seen_at = max((call.last_seen_at for call in calls if call.unfinished), default="")
    outline.scores, outline.score_status = trajectory.scores, trajectory.score_status
    outline.group, outline.group_awaited = trajectory.group, trajectory.group_awaited
    outline.score_expected = trajectory.score_expected
    return outline


def call_outline(call: Call) -> CallOutline:
    """The outline of a call."""
    head, output = call.head, call.raw_output
    seen = START * (call.inputs is not None) | END * (output is not None) | TEXT * (call.text is not None)
    return CallOutline(
        call.id, call.parent_id, call.op, kind_of(call), call.status, call.duration,
        tokens_of(call),
        None if output is None or call.parent_id is not None else count_of(output, "response_ids"),
        call.started_at, call.ended_at,
        Place({name: head[name] for name in PLACES if name in head}, call.attributes), seen, call.writer,
        call.clock_skew,
    )  # fmt: skip
