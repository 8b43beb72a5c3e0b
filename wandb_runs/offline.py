"""W&B's run folders on disk: `wandb/offline-run-20261129_205816-e5wl1oka` and what is known of the run in it.

The folder's name is read first: it is there from the first second. The rest comes from the run's log, which holds
nothing for up to 15 seconds and may end anywhere.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .log import read_log

__all__ = ["OfflineRun", "find_offline_runs", "is_run_id", "read_offline_run"]

_FOLDER = re.compile(r"(?P<mode>offline-run|run)-(?P<time>\d{8}_\d{6})-(?P<id>[^/\\#?%:]+)\Z")
# What W&B allows, and prints as it is.
_ID = re.compile(r"[^/\\#?%:\s\x00-\x1f\x7f](?:[^/\\#?%:\x00-\x1f\x7f]*[^/\\#?%:\s\x00-\x1f\x7f])?\Z")
_SYNCED = ".synced"
# Copying a folder may give log and marker new times, in any order.
_SAME_TIME = 60.0
# The run's own record is among the first; a log may have gigabytes of metrics behind it.
_LOOKED_AT = 4 << 20


@dataclass(frozen=True)
class OfflineRun:
    """One folder of a W&B run; several may have the same `run_id`: segments of one run.

    `project`, `entity` and `display_name` are "" where the log does not tell them (the entity is usually left to the
    server). `started_at`: from the log; from the folder's name, taken as of this machine's zone, unless `is_exact`.
    """

    folder: Path
    run_id: str
    offline: bool
    started_at: datetime
    is_exact: bool = False
    project: str = ""
    entity: str = ""
    display_name: str = ""

    @property
    def log(self) -> Path:
        """The transaction log."""
        return self.folder / f"run-{self.run_id}.wandb"

    @property
    def marker(self) -> Path:
        """What `wandb sync` writes once it has sent the run."""
        return self.log.with_name(self.log.name + _SYNCED)

    @property
    def synced(self) -> bool:
        """Whether it is marked as sent. It must not be sent again then: wandb would append all its rows once more."""
        return self.marker.exists()

    @property
    def grown(self) -> bool:
        """Whether something was added, as it seems, since it was marked as sent."""
        try:
            return os.stat(self.log).st_mtime - os.stat(self.marker).st_mtime > _SAME_TIME
        except OSError:
            return False

    def quiet(self) -> float:
        """Seconds since something was added to the log; wandb adds something every 15 s as long as it lives."""
        try:
            return time.time() - os.stat(self.log).st_mtime
        except OSError:
            return float("inf")


def is_run_id(text: str) -> bool:
    """Whether W&B takes it for the id of a run."""
    return _ID.match(text) is not None


def find_offline_runs(places: Iterable[Path]) -> list[OfflineRun]:
    """The offline runs at these places: a run's folder, a `wandb` folder, or the folder that holds one. By time.

    Places that are not there have no runs; a run that is found twice counts once.
    """
    found: dict[Path, OfflineRun] = {}
    for place in places:
        for folder in _candidates(place):
            real = folder.resolve()
            if real not in found:
                run = read_offline_run(folder)
                if run is not None and run.offline:
                    found[real] = run
    return sorted(found.values(), key=lambda run: (run.started_at, run.run_id, str(run.folder)))


def _candidates(place: Path) -> list[Path]:
    if _FOLDER.match(place.name):
        return [place]
    out = []
    # wandb makes a hidden folder where one of that name is there already
    for parent in (place, place / "wandb", place / ".wandb"):
        try:
            out += [Path(entry.path) for entry in os.scandir(parent) if _FOLDER.match(entry.name) and entry.is_dir()]
        except OSError:
            continue
    return out


def read_offline_run(folder: Path) -> OfflineRun | None:
    """What is known of the run in a folder; None where its name is not that of a run's."""
    match = _FOLDER.match(folder.name)
    if match is None:
        return None
    try:
        begun = datetime.strptime(match["time"], "%Y%m%d_%H%M%S").astimezone()
    except ValueError:
        return None
    run = OfflineRun(folder, match["id"], match["mode"] == "offline-run", begun.astimezone(timezone.utc))
    return _with_log(run)


def _with_log(run: OfflineRun) -> OfflineRun:
    """The same with what the log tells, as far as there is a log and a wandb that knows its records."""
    try:
        messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
        decode_error: Any = importlib.import_module("google.protobuf.message").DecodeError
    except ImportError:
        return run
    try:
        for data in read_log(run.log, _LOOKED_AT):
            record = messages.Record()
            try:
                record.ParseFromString(data)
            except decode_error:
                continue
            if record.WhichOneof("record_type") == "run":
                told = record.run
                started = told.start_time.ToDatetime(tzinfo=timezone.utc) if told.HasField("start_time") else None
                return OfflineRun(
                    run.folder,
                    run.run_id,
                    run.offline,
                    started or run.started_at,
                    is_exact=started is not None,
                    project=told.project,
                    entity=told.entity,
                    display_name=told.display_name,
                )
    except OSError:
        pass
    return run
