"""Start verl's trainer without anything that it needs: what is told before it fails, in `async` and in its own mode."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

MODE = "actor_rollout_ref.rollout.mode"


def start(mode: str | None) -> dict[str, Any]:
    """A trainer with that mode, or verl's default; our lines on stderr, and what verl raised."""
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
        config = compose("ppo_trainer")
    OmegaConf.set_struct(config, False)
    OmegaConf.update(config, "actor_rollout_ref.rollout.trace.backend", "jsonl", force_add=True)
    if mode is not None:
        OmegaConf.update(config, MODE, mode, force_add=True)
    trainer = RayPPOTrainer.__new__(RayPPOTrainer)
    trainer.config = config
    said, raised = io.StringIO(), None
    with contextlib.redirect_stderr(said):
        try:
            trainer.init_workers()
        except Exception as error:
            raised = type(error).__name__
    ours = [line for line in said.getvalue().splitlines() if "verl-trace" in line]
    return {"mode": OmegaConf.select(config, MODE), "said": ours, "raised": raised}


if __name__ == "__main__":
    print(json.dumps([start("async"), start(None)]))
