"""Which W&B run belongs to which training start (attempt) of a recorded run.

In this order, and never by guessing between two:

1. the run that the recorder noted: WANDB_RUN_ID in the workers' headers, or the trainer's note beside the span files;
2. the offline run of the same project whose display name is the experiment's and that began after this attempt began
   and before the next one did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson

from ..reader import Run
from ..reader.places import list_folder, open_file
from ..schemas.files import WANDB_PREFIX
from .offline import OfflineRun, is_run_id

__all__ = ["Link", "Matches", "match_runs", "noted_places"]

# The trainer may make its W&B run a little before the first worker records; clocks of two hosts differ, too.
_BEFORE = timedelta(seconds=120)
# A note is a few hundred bytes.
_MAX_NOTE = 1 << 16


@dataclass(frozen=True)
class Link:
    """The W&B run of an attempt. `entity`, `project`: "" where nothing recorded tells them. `source`: in words."""

    run_id: str
    source: str
    entity: str = ""
    project: str = ""
    folders: tuple[OfflineRun, ...] = ()


@dataclass
class Matches:
    """Attempt -> its W&B run. `undecided`: attempts for which there are several, `unmatched`: those for which there is
    none although there are offline runs; with the reason, in words.
    """

    links: dict[str, Link] = field(default_factory=dict)
    undecided: dict[str, str] = field(default_factory=dict)
    unmatched: dict[str, str] = field(default_factory=dict)

    @property
    def folders(self) -> list[OfflineRun]:
        """All offline folders that belong to the run, by time."""
        found = {run.folder: run for link in self.links.values() for run in link.folders}
        return sorted(found.values(), key=lambda run: run.started_at)

    def attempts_of(self, run_id: str) -> list[str]:
        """The attempts that a W&B run belongs to."""
        return [attempt for attempt, link in self.links.items() if link.run_id == run_id]


def match_runs(run: Run, offline: Sequence[OfflineRun], run_id: str | None = None) -> Matches:
    """Match a recorded run's attempts with W&B runs. `run_id`: what the user says it is, for all attempts."""
    matches = Matches()
    noted = _noted(run)
    starts = _starts(run)
    for attempt in run.attempts:
        if run_id is not None:
            matches.links[attempt] = _link(run_id, "--run-id", {}, offline)
            continue
        own = noted.get(attempt, {})
        if len(own) == 1:
            ((found, note),) = own.items()
            matches.links[attempt] = _link(found, note["source"], note, offline)
            continue
        if len(own) > 1:
            matches.undecided[attempt] = _several(sorted(own))
            continue
        candidates = _by_time(run, attempt, starts, offline)
        ids = sorted({candidate.run_id for candidate in candidates})
        if len(ids) == 1:
            matches.links[attempt] = _link(ids[0], "its name and time", vars(candidates[0]), offline)
        elif ids:
            matches.undecided[attempt] = _several(ids)
        elif offline:
            matches.unmatched[attempt] = f"none of the {len(offline)} offline W&B runs fits"
    return matches


def _several(ids: Sequence[str]) -> str:
    return f"more than one W&B run fits: {', '.join(ids)}; --run-id says which"


def _link(run_id: str, source: str, known: Mapping[str, Any], offline: Sequence[OfflineRun]) -> Link:
    folders = tuple(found for found in offline if found.run_id == run_id)
    told = next((found for found in folders if found.project), None)
    return Link(
        run_id,
        source,
        entity=str(known.get("entity") or (told.entity if told else "") or ""),
        project=str(known.get("project") or (told.project if told else "") or ""),
        folders=folders,
    )


def _noted(run: Run) -> dict[str, dict[str, dict[str, Any]]]:
    """Attempt -> run id -> what was noted of it while it was recorded."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for writer in run.writers:
        noted = writer.header.get("wandb")
        if isinstance(noted, dict) and is_run_id(str(noted.get("run_id") or "")):
            note = {**noted, "source": "WANDB_RUN_ID of the workers"}
            found.setdefault(writer.attempt, {}).setdefault(noted["run_id"], note)
    try:
        names = sorted(name for name in list_folder(run.folder) if name.startswith(WANDB_PREFIX))
    except OSError:
        names = []
    for name in names:
        note = _read_note(run, name)
        if note.get("experiment_name") == run.experiment_name and note.get("project_name") == run.project_name:
            found.setdefault(str(note.get("attempt")), {})[note["run_id"]] = {**note, "source": "the trainer's note"}
    return found


def noted_places(run: Run) -> list[Path]:
    """The folders of W&B runs that trainers have noted, wherever they may be now."""
    notes = (note for found in _noted(run).values() for note in found.values())
    # what W&B calls the run's folder is the one of its files
    return [Path(note["folder"]).parent for note in notes if isinstance(note.get("folder"), str) and note["folder"]]


def _read_note(run: Run, name: str) -> dict[str, Any]:
    try:
        with open_file(run.folder / name) as file:
            note = orjson.loads(file.read(_MAX_NOTE) or b"")
    except (OSError, orjson.JSONDecodeError):
        return {}
    return note if isinstance(note, dict) and is_run_id(str(note.get("run_id") or "")) else {}


def _starts(run: Run) -> list[datetime | None]:
    """When each attempt began; None of one whose files lost their headers."""
    began: dict[str, str] = {}
    for writer in run.writers:
        began[writer.attempt] = min(writer.started_at, began.get(writer.attempt, writer.started_at))
    return [_time(began[attempt]) for attempt in run.attempts]


def _by_time(
    run: Run, attempt: str, starts: Sequence[datetime | None], offline: Sequence[OfflineRun]
) -> list[OfflineRun]:
    index = run.attempts.index(attempt)
    began = starts[index]
    if began is None:
        return []
    later = next((start for start in starts[index + 1 :] if start is not None), None)
    begin = began - _BEFORE
    end = later - _BEFORE if later is not None else datetime.max.replace(tzinfo=timezone.utc)
    project = run.project_name.rpartition("/")[2]
    return [
        found
        for found in offline
        if found.is_exact
        and found.display_name == run.experiment_name
        and found.project == project
        and begin <= found.started_at < end
    ]


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return time if time.tzinfo is not None and time.year > datetime.min.year else None
