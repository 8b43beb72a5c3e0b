"""The trainer's W&B run, noted beside the span files: the workers that trace the rollouts do not know it.

verl's trainer makes the run in `verl.utils.tracking.Tracking`. When that has made one, and rollouts of the same
experiment are recorded, its id is written to `.wandb-<attempt>-<run id>.json` in the run's folder. wandb is not
imported for it and no network is used.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ..recorder.counters import warn_once
from ..recorder.identity import Identity
from ..recorder.ids import timestamp
from ..schemas.files import TMP_SUFFIX, WANDB_PREFIX, run_folder_name
from .folder import span_folder
from .offline import decide

__all__ = ["replace"]

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def replace(module: ModuleType) -> None:
    """Wrap `Tracking.__init__` in `verl.utils.tracking`, which has just been executed."""
    original: Callable[..., None] = module.Tracking.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            _note(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001
            warn_once("wandb-run", f"the W&B run is not noted: {type(error).__name__}: {error}; say upload --run-id")

    module.Tracking.__init__ = init


def _note(
    tracking: Any,
    project_name: Any = None,
    experiment_name: Any = None,
    default_backend: Any = None,
    config: Any = None,
    **_: Any,
) -> None:
    run = getattr(sys.modules.get("wandb"), "run", None)
    if "wandb" not in tracking.logger or run is None or not _is_recorded(config):
        return
    now, attempt = time.time_ns(), Identity().attempt
    note = {
        "attempt": attempt,
        "run_id": str(run.id),
        "entity": str(run.entity or ""),
        "project": str(run.project or ""),
        "display_name": str(run.name or ""),
        "folder": str(run.dir or ""),
        "project_name": str(project_name),
        "experiment_name": str(experiment_name),
        "noted_at": timestamp(now),
    }
    folder = span_folder() / run_folder_name(str(experiment_name))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{WANDB_PREFIX}{attempt}-{_UNSAFE.sub('_', note['run_id'])}.json"
    scratch = path.with_name(f"{path.name}.{os.getpid()}{TMP_SUFFIX}")
    scratch.write_text(json.dumps(note) + "\n", encoding="utf-8")
    os.replace(scratch, path)


def _is_recorded(config: Any) -> bool:
    """Whether the rollouts of this training go to span files."""
    trace: Any = config
    for name in ("actor_rollout_ref", "rollout", "trace"):
        trace = trace.get(name) if isinstance(trace, Mapping) or hasattr(trace, "get") else None
    backend = trace.get("backend") if trace is not None else None
    return backend == "jsonl" or (backend == "weave" and decide().offline)
