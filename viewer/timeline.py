"""Calls as a timeline: Chrome's trace format, which Perfetto reads too.

A process of the run is a process there. In it, a lane holds one thing at a time: a child lies below its parent in the
parent's lane, and what overlaps gets a lane of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ..reader import Call, Run, Trajectory
from ..reader.kinds import kinds_of

__all__ = ["Timeline"]

# Start times are from the wall clock and durations from another: they disagree by less than this, in seconds.
_MOMENT = 0.001


class Timeline:
    """Makes the events of a run, trajectory by trajectory, in the order in which these come."""

    def __init__(self, run: Run) -> None:
        self._processes = {writer.id: number for number, writer in enumerate(run.writers, 1)}
        # process -> for each lane until when it is taken
        self._lanes: dict[int, list[float]] = {}
        self._run = run

    def names(self) -> Iterator[dict[str, Any]]:
        """The events that name the processes."""
        for writer in self._run.writers:
            number = self._processes[writer.id]
            name = f"{writer.host or 'unknown host'} pid {writer.pid} attempt {writer.attempt}"
            yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}}

    def events(self, trajectory: Trajectory) -> Iterator[dict[str, Any]]:
        """A complete event (`ph` X) for every call; one that never ended begins and does not end (`B`)."""
        spans, kinds = _spans(trajectory), kinds_of(trajectory.calls)
        lane_of: dict[str, int] = {}
        # lane -> the calls that are open in it, the innermost last
        open_in: dict[tuple[int, int], list[Call]] = {}
        for call in sorted(trajectory.calls, key=lambda call: (spans[call.id][0], -spans[call.id][1])):
            process = self._processes.get(call.writer.id, 0)
            begin, end = spans[call.id]
            lane = self._lane(process, call, spans, lane_of, open_in)
            lane_of[call.id] = lane
            lanes = self._lanes.setdefault(process, [])
            lanes[lane] = max(lanes[lane], end)
            event = {
                "name": call.op, "cat": kinds[call.id], "ph": "B" if call.unfinished else "X",
                "ts": round(begin * 1e6, 3), "pid": process, "tid": lane, "args": _arguments(call),
            }  # fmt: skip
            yield event if call.unfinished else {**event, "dur": round((end - begin) * 1e6, 3)}

    def _lane(
        self, process: int, call: Call, spans: dict[str, tuple[float, float]], lane_of: dict[str, int],
        open_in: dict[tuple[int, int], list[Call]],
    ) -> int:  # fmt: skip
        begin, end = spans[call.id]
        parent_lane = lane_of.get(call.parent_id or "")
        if parent_lane is not None:
            inside = open_in.get((process, parent_lane), [])
            while inside and spans[inside[-1].id][1] <= begin:
                inside.pop()
            if inside and inside[-1].id == call.parent_id and end <= spans[inside[-1].id][1]:
                inside.append(call)
                return parent_lane
        lanes = self._lanes.setdefault(process, [])
        lane = next((number for number, taken in enumerate(lanes) if taken <= begin), len(lanes))
        if lane == len(lanes):
            lanes.append(0.0)
        open_in[(process, lane)] = [call]
        return lane


def _spans(trajectory: Trajectory) -> dict[str, tuple[float, float]]:
    """Begin and end of every call; one that ends a moment behind its parent, by the clock, ends with it."""
    spans = {call.id: _span(call) for call in trajectory.calls}
    for call in trajectory.calls:
        parent = spans.get(call.parent_id or "")
        begin, end = spans[call.id]
        if parent is not None and parent[0] <= begin < parent[1] < end < parent[1] + _MOMENT:
            spans[call.id] = (begin, parent[1])
    return spans


def _span(call: Call) -> tuple[float, float]:
    begin = seconds_of(call.started_at)
    if call.duration is not None:
        return begin, begin + max(0.0, call.duration)
    return begin, max(begin, seconds_of(call.last_seen_at))


def seconds_of(time: str) -> float:
    """A recorded time in seconds since the epoch; 0 where there is none, and before it, where no timeline reaches."""
    try:
        return max(0.0, datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp())
    except ValueError:
        return 0.0


def _arguments(call: Call) -> dict[str, Any]:
    names = ("step", "sample_index", "rollout_n")
    exception = call.exception
    return {
        "id": call.id,
        "trace_id": call.trace_id,
        **{name: call.head.get(name) for name in names},
        "status": call.status,
        "duration": call.duration,
        **({"exception": f"{exception.get('type')}: {exception.get('message')}"} if exception else {}),
    }
