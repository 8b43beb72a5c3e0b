"""Before a run's calls are sent: its W&B runs are found and synced, so that every call can say which run it belongs to.

A stored call never changes, so the link must be right, and the run be there, before the first call is sent. Where it is
not certain which run it is, calls get no link, and the report says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..wandb_runs.match import Link, Matches, match_runs, noted_places
from ..wandb_runs.offline import OfflineRun, find_offline_runs
from ..wandb_runs.sync import sync

if TYPE_CHECKING:
    from ..reader import Run
    from .result import RunReport
    from .target import Target

__all__ = ["SYNC_PATIENCE", "WandbOptions", "links_of"]

# `wandb sync` may try for ever; a run of days has some hundred MB of metrics.
SYNC_PATIENCE = 600.0


@dataclass(frozen=True)
class WandbOptions:
    """`folders`: where offline runs may lie, beside the usual places. `run_id`: what the user says it is. `only`: sync,
    and send no calls. `patience`: seconds for one `wandb sync`. `later`: link, and sync another time."""

    enabled: bool = True
    only: bool = False
    folders: tuple[Path, ...] = ()
    run_id: str | None = None
    patience: float = SYNC_PATIENCE
    later: bool = False


@dataclass
class _Preparation:
    """Attempt -> `entity/project/run_id`; `stopped`: why the calls must not be sent now."""

    links: dict[str, str] = field(default_factory=dict)
    stopped: str = ""


def links_of(
    run: Run, target: Target | None, options: WandbOptions, report: RunReport, tell: Callable[[], None]
) -> _Preparation:
    """Find, sync and link the W&B runs of `run`; without a target (a dry run) say what would be done.

    What was found, synced or failed is noted in `report.wandb` and `report.notes`.
    """
    preparation = _Preparation()
    if not options.enabled:
        return preparation
    offline = find_offline_runs(_places(run, options.folders))
    matches = match_runs(run, offline, options.run_id)
    if options.only and not matches.folders:
        report.note("W&B: no offline run was found that belongs to it; --wandb-dir says where they lie")
    for problem in matches.problems:
        report.note(f"W&B: {problem}")
    _sync_all(matches, target, options, report, preparation, tell)
    if target is not None and not preparation.stopped:
        for attempt, link in matches.links.items():
            found = _linked(link, target)
            if found is None:
                owner = f"{link.entity or target.entity}/{link.project}"
                report.note(
                    f"W&B: run {link.run_id} is in {owner}, the calls go to {target.entity}/{target.project}: Weave"
                    " links no run of another project; --project, or trainer.project_name, brings them together"
                )
                continue
            preparation.links[attempt] = found
    return preparation


def _places(run: Run, given: Sequence[Path]) -> list[Path]:
    """Where the run's offline folders may lie."""
    # by default `runs` and `wandb` lie side by side where the training was started
    places = [*given, run.folder, run.folder.parent, run.folder.parent.parent]
    if os.environ.get("WANDB_DIR"):
        places.append(Path(os.environ["WANDB_DIR"]))
    for writer in run.writers:
        noted = writer.header.get("wandb")
        if isinstance(noted, dict) and isinstance(noted.get("dir"), str):
            places.append(Path(noted["dir"]))
    return list(dict.fromkeys([*places, *noted_places(run)]))


def _sync_all(
    matches: Matches,
    target: Target | None,
    options: WandbOptions,
    report: RunReport,
    preparation: _Preparation,
    tell: Callable[[], None],
) -> None:
    for found in matches.folders:
        told = {"run_id": found.run_id, "folder": str(found.folder), "state": "synced before" if found.synced else ""}
        report.wandb.append(told)
        if found.synced:
            continue
        if target is None or options.later:
            told["state"] = "would be synced" if target is None else "to be synced when the run has ended"
            continue
        told["state"] = "being synced"
        tell()
        done = sync(found, entity=_entity(found, target), patience=options.patience)
        told["state"] = "synced" if done.done else "failed"
        if not done.done:
            told["reason"] = done.reason
            told["output"] = done.output
            preparation.stopped = f"W&B run {found.run_id} was not synced: {done.reason}"
            last = done.output.splitlines()[-1:] or [""]
            report.note(f"W&B: {found.folder}: {done.reason}; wandb said: {last[0]}")
            report.note("W&B: no call was sent: it could not be linked later. --no-wandb sends them without links")


def _entity(found: OfflineRun, target: Target) -> str:
    return found.entity or target.entity


def _linked(link: Link, target: Target) -> str | None:
    """`entity/project/run_id` where Weave may link it: run and calls are in one project."""
    if (link.entity or target.entity) != target.entity or (link.project or target.project) != target.project:
        return None
    return f"{target.entity}/{target.project}/{link.run_id}"
