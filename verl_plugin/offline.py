"""Whether W&B is offline, decided as W&B itself would, from the environment and its settings files alone.

The order is W&B's: VERL_TRACE_OFFLINE is ours and goes first, then WANDB_MODE, then the settings file beside the
program, then the user's. Neither wandb nor weave is imported for it.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["OFFLINE_VARIABLE", "Decision", "decide"]

OFFLINE_VARIABLE = "VERL_TRACE_OFFLINE"
_OFFLINE_MODES = frozenset({"offline", "dryrun"})
_OFF = frozenset({"0", "false", "no", "off"})


class Decision(NamedTuple):
    """The answer and what it rests on, for people to read."""

    offline: bool
    because: str


def decide(environ: Mapping[str, str] | None = None, folder: str | Path | None = None) -> Decision:
    """Whether `backend=weave` is to be recorded instead of sent; `folder` is the program's, by default the current."""
    environ = os.environ if environ is None else environ
    own = environ.get(OFFLINE_VARIABLE, "").strip().lower()
    if own:
        return Decision(own not in _OFF, f"{OFFLINE_VARIABLE}={own}")
    mode = environ.get("WANDB_MODE", "").strip().lower()
    if mode:
        return Decision(mode in _OFFLINE_MODES, f"WANDB_MODE={mode}")
    for path in _settings_files(environ, folder):
        mode = _mode_of(path)
        if mode:
            return Decision(mode in _OFFLINE_MODES, f"mode = {mode} in {path}")
    return Decision(False, "nothing says that W&B is offline")


def _settings_files(environ: Mapping[str, str], folder: str | Path | None) -> list[Path]:
    """The settings files that W&B reads, the one that wins first."""
    root = Path(environ.get("WANDB_DIR") or folder or ".").expanduser()
    workspace = root / (".wandb" if (root / ".wandb").exists() else "wandb") / "settings"
    user = Path(environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser() / "settings"
    return [workspace, user]


def _mode_of(path: Path) -> str:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path, encoding="utf-8")
        return parser.get("default", "mode", fallback="").strip().lower()
    except (OSError, UnicodeDecodeError, configparser.Error):
        return ""
