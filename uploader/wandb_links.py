"""Before a run's calls are sent: its W&B runs are found and synced, so that every call can say which run it belongs to.

A stored call never changes, so the link must be right, and the run be there, before the call is sent. Calls of an
attempt whose run could not be brought there, or of which there are two to choose from, wait; all others are sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..wandb_runs.match import Link, match_runs, noted_places
from ..wandb_runs.offline import find_offline_runs
from .wandb_options import WandbOptions
from .wandb_syncing import Syncing

if TYPE_CHECKING:
    from ..reader import Run
    from .result import RunReport
    from .settle import Settling
    from .target import Target

__all__ = ["WandbLinks", "links_of"]


@dataclass
class WandbLinks:
    """`links`: attempt -> `entity/project/run_id`. `held`: attempts whose calls must not be sent now, and why."""

    links: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)


def links_of(
    run: Run,
    target: Target | None,
    options: WandbOptions,
    report: RunReport,
    settling: Settling,
    tell: Callable[[], None],
) -> WandbLinks:
    """Find, sync and link the W&B runs of `run`; without a target (a dry run) say what would be done.

    What was found, synced or failed is noted in `report`: `wandb`, `why_without` and `notes`.
    """
    found = WandbLinks()
    if not options.enabled:
        return found
    offline = find_offline_runs(_places(run, options.folders))
    matches = match_runs(run, offline, options.run_id)
    if options.only and not matches.folders:
        report.note("W&B: no offline run was found that belongs to it; --wandb-dir says where they lie")
    found.held |= matches.undecided
    report.why_without |= matches.unmatched
    syncing = Syncing(target, options, settling, report, tell)
    arrived = {
        run_id: syncing.bring([one for one in matches.folders if one.run_id == run_id], matches.attempts_of(run_id))
        for run_id in dict.fromkeys(link.run_id for link in matches.links.values())
    }
    for attempt, link in matches.links.items():
        name = _linked(link, target) if target is not None else ""
        if target is not None and name is None:
            report.why_without[attempt] = (
                f"run {link.run_id} is in {link.entity or target.entity}/{link.project}, the calls go to"
                f" {target.entity}/{target.project}, and Weave links no run of another project; --project, or"
                " trainer.project_name, brings them together"
            )
            continue
        outcome = arrived[link.run_id]
        if outcome.empty:
            report.why_without[attempt] = outcome.empty
            continue
        if name:
            found.links[attempt] = name
        if outcome.missing:
            found.held[attempt] = outcome.missing
    for attempt, why in found.held.items():
        report.note(
            f"W&B: the calls of attempt {attempt} wait, since a stored call cannot be linked later: {why}"
            f"{'' if '--run-id' in why else '; then run the command again'} (--no-wandb sends them without links)"
        )
    for attempt, why in report.why_without.items():
        report.note(f"W&B: attempt {attempt}: {why}")
    return found


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


def _linked(link: Link, target: Target) -> str | None:
    """`entity/project/run_id` where Weave may link it: run and calls are in one project."""
    if (link.entity or target.entity) != target.entity or (link.project or target.project) != target.project:
        return None
    return f"{target.entity}/{target.project}/{link.run_id}"
