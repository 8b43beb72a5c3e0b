"""What to do about the W&B runs that belong to what is uploaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..schemas.errors import CannotStart
from ..wandb_runs.offline import is_run_id

__all__ = ["SYNC_PATIENCE", "WandbOptions"]

# `wandb sync` may try for ever; a run of days has some hundred MB of metrics.
SYNC_PATIENCE = 600.0


@dataclass(frozen=True)
class WandbOptions:
    """`folders`: where offline runs may lie, beside the usual places. `run_id`: what the user says it is. `only`: sync,
    and send no calls. `patience`: seconds for one `wandb sync`. `later`: make runs known, and sync them another time;
    `known`: folders of runs for which that has been done."""

    enabled: bool = True
    only: bool = False
    folders: tuple[Path, ...] = ()
    run_id: str | None = None
    patience: float = SYNC_PATIENCE
    later: bool = False
    known: set[Path] = field(default_factory=set, compare=False)

    def __post_init__(self) -> None:
        if self.run_id is not None and not is_run_id(self.run_id):
            raise CannotStart(
                f"--run-id {self.run_id!r} is no id of a W&B run",
                hint="it is the last part of the run's address: …/runs/ID",
            )
