"""What of a run is stored, and how, and what is still to be sent: from the files and the ledgers, or by asking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from ..reader import Filters, iter_trajectories
from ..reader.score_names import flat_scores
from ..reader.trees import Reading
from .ledger import Ledger, Place, known_places
from .payload import protect_references
from .settle import SETTLE, HasScore, Settling, has_score

if TYPE_CHECKING:
    from ..reader import Run, Trajectory

__all__ = ["PlaceStatus", "Rows", "RunStatus", "run_status"]

EVERYTHING = Filters()
# Call ids -> what a server holds of them.
Rows = Callable[[list[str]], list[dict[str, Any]]]
# Calls that the server is asked for at once.
_ASKED = 2000


@dataclass
class PlaceStatus:
    """One project that a run was uploaded to: calls known to be stored there, and calls still to be sent.

    `otherwise`: of those that are stored, with another end or other attributes than the files have now. Weave changes
    no stored call: they are not pending.
    """

    server: str
    project_id: str
    stored: int = 0
    pending: int = 0
    otherwise: int = 0


@dataclass
class RunStatus:
    """`waiting`: calls that are not settled yet, by reason. Without `places` no upload of the run is known here."""

    project_name: str
    experiment_name: str
    folder: Path
    trajectories: int = 0
    recorded: int = 0
    waiting: Counter[str] = field(default_factory=Counter)
    places: list[PlaceStatus] = field(default_factory=list)

    @property
    def settled(self) -> int:
        """Calls that can be sent, or were."""
        return self.recorded - sum(self.waiting.values())

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be done for one of the places."""
        return not self.waiting and any(not place.pending for place in self.places)

    def as_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "project_name": self.project_name,
            "experiment_name": self.experiment_name,
            "folder": str(self.folder),
            "trajectories": self.trajectories,
            "recorded": self.recorded,
            "waiting": dict(sorted(self.waiting.items())),
            "complete": self.complete,
            "places": [vars(place) for place in self.places],
        }


def run_status(
    run: Run,
    folder: Path,
    *,
    filters: Filters = EVERYTHING,
    settle: float = SETTLE,
    partial: bool = False,
    has_score: HasScore = has_score,
    ask: Sequence[tuple[Place, Rows]] = (),
) -> RunStatus:
    """Read the run once, without payloads, and hold it against the ledgers in `folder`.

    `filters`: only these trajectories count. `ask`: places whose servers are asked instead of the ledger: each with a
    function that gives, of some call ids, what the server holds of them: id, `ended_at` and `attributes`.
    """
    status = RunStatus(run.project_name, run.experiment_name, run.folder)
    settling = Settling(run, settle, has_score=has_score, partial=partial)
    asked = [_Asked(place, stored) for place, stored in ask]
    known = [place for place in known_places(folder, run) if place not in [one.place for one in asked]]
    remembering = [_Remembered(place, Ledger(folder, place), has_score) for place in known]
    sources: list[_Asked | _Remembered] = [*asked, *remembering]
    reading = Reading()
    settling.watch(reading.damages)
    for trajectory in iter_trajectories(run, reading, payloads=False):
        if not filters.trajectory(trajectory):
            continue
        status.trajectories += 1
        status.recorded += len(trajectory.calls)
        reason = settling.waits(trajectory)
        if reason is not None:
            status.waiting[reason] += len(trajectory.calls)
            continue
        for source in sources:
            source.take(trajectory)
    for one in asked:
        one.flush()
    status.places = [source.status for source in sources]
    return status


class _Remembered:
    def __init__(self, place: Place, ledger: Ledger, has_score: HasScore) -> None:
        self.status = PlaceStatus(place.server, place.project_id)
        self._ledger = ledger
        self._has_score = has_score

    def take(self, trajectory: Trajectory) -> None:
        mark = self._ledger.mark(trajectory, self._has_score(trajectory))
        otherwise = self._ledger.otherwise(mark)
        self.status.otherwise += otherwise
        if otherwise or self._ledger.remembers(mark):
            self.status.stored += len(trajectory.calls)
        else:
            self.status.pending += len(trajectory.calls)


class _Asked:
    def __init__(self, place: Place, rows: Rows) -> None:
        self.place = place
        self.status = PlaceStatus(place.server, place.project_id)
        self._rows = rows
        # id -> its end and its attributes, as they would be sent
        self._calls: dict[str, tuple[str | None, bytes]] = {}

    def take(self, trajectory: Trajectory) -> None:
        for call in trajectory.calls:
            # a call of a killed process ends when that was last heard of
            ended_at = max(call.last_seen_at, call.started_at) if call.unfinished else call.ended_at
            scores = flat_scores(trajectory, call.attributes) if call is trajectory.root else {}
            attributes, _ = protect_references(orjson.dumps({**call.attributes, **scores}))
            self._calls[call.id] = ended_at, attributes
        if len(self._calls) >= _ASKED:
            self.flush()

    def flush(self) -> None:
        # needs what only the upload has to have installed
        from .check import same_as_recorded

        rows = self._rows(list(self._calls)) if self._calls else []
        stored = {row["id"]: row for row in rows if row.get("ended_at") is not None and row["id"] in self._calls}
        self.status.stored += len(stored)
        self.status.pending += len(self._calls) - len(stored)
        self.status.otherwise += sum(not same_as_recorded(*self._calls[key], row) for key, row in stored.items())
        self._calls.clear()
