"""When a trajectory is sent: once nothing that is recorded of it can change any more, since a stored call is final.

It is settled when none of its calls may still go on, no segment is missing or refused that may hold a part of it, and

- its root has ended and its score is there, or its process has left the root unfinished, or
- its attempt has ended: no process of that training start may still write, or
- `settle` seconds have passed since its last sign of life.

A process of this host is alive or it is not. Of one on another host nobody here can know: it may be in the middle of a
long call, and counts as alive until its files have been quiet for `settle` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ..schemas.files import parse_segment_name
from .gaps import Gaps, missing_side_file
from .result import STILL_OPEN, WAITS_FOR_SCORE, WAITS_FOR_SEGMENT

if TYPE_CHECKING:
    from ..reader import Call, Run, Trajectory, Writer
    from ..reader.segments import Damage

__all__ = ["SETTLE", "Settling", "has_score"]

# A call of ten minutes during which its process records nothing else is not to be mistaken for a dead one.
SETTLE = 600.0
# How long the first score of a training may take to be told.
SCORE_LAG = 60.0

HasScore = Callable[["Trajectory"], bool]


def has_score(trajectory: Trajectory) -> bool:
    """Whether all is there that its process and the trainer will tell of it: its reward, and those of its group.

    A training that tells no scores has nothing to wait for; but before the first one is told nobody can know.
    """
    if trajectory.scored:
        return not trajectory.group_awaited
    return not trajectory.score_expected and _quiet(trajectory) >= SCORE_LAG


class Settling:
    """Which trajectories of one run may be sent. What it says of processes is as of now, so make it before reading:
    a process that ends meanwhile must not look as if it had left its calls unfinished.

    `settle`: seconds. `has_score`: whether all scores that a trajectory waits for are there. `partial`: do not wait for
    missing segments. `damaged`: nor for a whole copy of sealed segments that are damaged, where it is false.
    """

    def __init__(
        self,
        run: Run,
        settle: float = SETTLE,
        *,
        has_score: HasScore = has_score,
        partial: bool = False,
        damaged: bool = True,
    ) -> None:
        self._settle = settle
        self.has_score = has_score
        began = time.time()
        writing = [writer for writer in run.writers if may_write(writer, began, settle)]
        self._writing = {writer.id for writer in writing}
        # who has closed its recording adds no score any more, and yet the end of a call that goes on
        self._attempts = {writer.attempt for writer in writing if not writer.closed}
        self._partial = partial
        self._missing_side: dict[str, str] = {}
        self._gaps = {} if partial else {writer.id: Gaps(writer, damaged=damaged) for writer in run.writers}
        # what those who read the run are told, how much of each list was looked at, and files refused -> writers
        self._damages: list[Sequence[Damage]] = []
        self._looked_at: list[int] = []
        self._refused: dict[str, str] = {}

    @property
    def ended(self) -> bool:
        """Whether no process may write any more."""
        return not self._writing

    def may_write(self, writer: Writer) -> bool:
        """Whether more may come from this writer."""
        return writer.id in self._writing

    @property
    def missing(self) -> list[str]:
        """Names of the segments and side files that must have been there; of segments without suffix."""
        segments = (name for gaps in self._gaps.values() for name in gaps.names)
        return sorted({*segments, *filter(None, self._missing_side.values()), *self._refused})

    def watch(self, damages: Sequence[Damage]) -> None:
        """Know what whoever reads the run is told: a file that the operating system refuses now may be read later."""
        self._damages.append(damages)
        self._looked_at.append(0)

    def alive(self, attempt: str) -> bool:
        """Whether a process of the attempt may still write."""
        return attempt in self._attempts

    def within(self, quiet: float) -> bool:
        """Whether so many seconds of silence are too few to say that something is over."""
        return quiet < self._settle

    def waits(self, trajectory: Trajectory) -> str | None:
        """Why the trajectory is not sent yet, one of the reasons in `result`; None when it is settled."""
        calls = trajectory.calls
        writers = {call.writer for call in calls}
        going_on = [call for call in calls if call.writer.id in self._writing] if self._writing else ()
        if any(call.unfinished or call.awaits_text for call in going_on):
            return STILL_OPEN
        # a large picture may wait in memory after the line that refers to it; or be lost, which nobody can know
        if any(map(_lacks_contents, going_on)) and _quiet(trajectory) < self._settle:
            return STILL_OPEN
        if not self._partial and self._may_lie_in_refused(trajectory, writers):
            return WAITS_FOR_SEGMENT
        gaps = [self._gaps[writer.id] for writer in writers if writer.id in self._gaps]
        if any(of_writer.may_hold_more(trajectory) for of_writer in gaps):
            return WAITS_FOR_SEGMENT
        # whoever tells scores may be another process
        awaits_score = trajectory.awaits_score or trajectory.group_awaited
        if awaits_score:
            attempts = {writer.attempt for writer in writers}
            if any(of_writer.may_hold_scores(attempts) for of_writer in self._gaps.values()):
                return WAITS_FOR_SEGMENT
        if not self._partial and any(_lacks_contents(call) and self._side_gap(call.writer) for call in calls):
            return WAITS_FOR_SEGMENT
        if not self._attempts or self._attempts.isdisjoint(writer.attempt for writer in writers):
            return None
        root, quiet = trajectory.root, _quiet(trajectory)
        # a root that its process has left unfinished gets neither an end nor a score
        if root is not None and (root.unfinished or self.has_score(trajectory)):
            return None
        if quiet >= self._settle:
            return None
        return STILL_OPEN if root is None else WAITS_FOR_SCORE

    def _may_lie_in_refused(self, trajectory: Trajectory, writers: set[Writer]) -> bool:
        """Whether more of it, or its score, may lie in a file that could not be read."""
        for number, damages in enumerate(self._damages):
            for damage in damages[self._looked_at[number] :]:
                name = parse_segment_name(damage.path)
                if damage.kind == "unreadable" and name is not None:
                    self._refused[damage.path.name] = name.writer
            self._looked_at[number] = len(damages)
        if not self._refused:
            return False
        whose = set(self._refused.values())
        return any(writer.id in whose for writer in writers) or not self.has_score(trajectory)

    def _side_gap(self, writer: Writer) -> str:
        """The first side file of a writer that is not here although others, or lines, say that it was; or ""."""
        if writer.id not in self._missing_side:
            self._missing_side[writer.id] = missing_side_file(writer)
        return self._missing_side[writer.id]


def _lacks_contents(call: Call) -> bool:
    return bool(call.blobs) and not all(map(call.writer.contents.has, call.blobs))


def may_write(writer: Writer, now: float, settle: float) -> bool:
    """Whether more may come from this writer; `now` in seconds since the epoch."""
    if writer.runs_here is not None:
        return writer.runs_here
    # of one that is quiet nobody need know how it ended, which takes decompressing its last segment
    return now - writer.modified < settle and not writer.closed


def _quiet(trajectory: Trajectory) -> float:
    """Seconds since its last sign of life."""
    return time.time() - _last_sign(trajectory)


def _last_sign(trajectory: Trajectory) -> float:
    """The last recorded time, in seconds since the epoch; 0 when there is none."""
    last = max([call.ended_at or call.last_seen_at or call.started_at for call in trajectory.calls], default="")
    try:
        return datetime.fromisoformat(last.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
