"""verl before 0.7 generates without agent loops by default (`rollout.mode=sync`): then nothing is traced, by anybody.

Whoever asked for a recording is told so when the trainer starts, instead of looking for files in the evening.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from ..recorder.counters import warn_once
from .offline import decide

__all__ = ["watch_trainer"]


def watch_trainer(module: ModuleType) -> None:
    """Look at the configuration when a trainer of `verl.trainer.ppo.ray_trainer` starts; it has just been executed."""
    trainer = getattr(module, "RayPPOTrainer", None)
    init_workers = getattr(trainer, "init_workers", None)
    if trainer is None or init_workers is None:
        return

    @functools.wraps(init_workers)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        _tell(self)
        return init_workers(self, *args, **kwargs)

    trainer.init_workers = watched


def _tell(trainer: Any) -> None:
    try:
        rollout = trainer.config.actor_rollout_ref.rollout
        backend = (rollout.get("trace") or {}).get("backend")
        if rollout.get("mode") == "sync" and (backend == "jsonl" or (backend == "weave" and decide().offline)):
            warn_once(
                "sync",
                "nothing will be recorded: actor_rollout_ref.rollout.mode=sync calls no agent loop; "
                "set actor_rollout_ref.rollout.mode=async",
            )
    except Exception as error:  # noqa: BLE001
        warn_once("sync-unknown", f"the rollout mode cannot be read: {type(error).__name__}: {error}; verl goes on")
