"""Whether the verl of this environment will load the plugin, found without importing verl; for `verl-trace doctor`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from .offline import Decision, decide

__all__ = ["Status", "status"]

MODULE = "verl_trace.verl_plugin"
ENTRY_POINT_GROUP = "verl.plugins"
ENTRY_POINT_NAME = "verl_trace"
_POLICY = "VERL_USE_EXTERNAL_PLUGINS"
_MODULES = "VERL_USE_EXTERNAL_MODULES"


@dataclass(frozen=True)
class Status:
    """What is known about verl here.

    `version` is None when verl is not installed. `loaded_by` says how verl will load the plugin, None when it will not;
    `hint` then says what to do. `offline` is the decision about `backend=weave`.
    """

    version: str | None
    loaded_by: str | None
    hint: str
    offline: Decision


def status(environ: Mapping[str, str] | None = None) -> Status:
    """Look at the installed verl, its entry points and the variables in `environ` (default: this process's)."""
    environ = os.environ if environ is None else environ
    offline = decide(environ)
    source = _source_of_verl()
    if source is None:
        return Status(None, None, "verl is not installed in this environment", offline)
    loaded_by, hint = _how(source, environ)
    return Status(_version(), loaded_by, hint, offline)


def _how(source: str, environ: Mapping[str, str]) -> tuple[str | None, str]:
    if _MODULES in source and MODULE in _names(environ.get(_MODULES, "")):
        return f"{_MODULES}={environ[_MODULES]}", ""
    if ENTRY_POINT_GROUP in source:
        policy = environ.get(_POLICY, "auto").strip().lower()
        if policy != "auto" and ENTRY_POINT_NAME not in _names(policy):
            return None, f"{_POLICY}={policy} keeps verl from loading it; unset it or add {ENTRY_POINT_NAME}"
        if not metadata.entry_points(group=ENTRY_POINT_GROUP, name=ENTRY_POINT_NAME):
            return None, "verl-trace is not installed as a package here; run: pip install verl-trace"
        return f"entry point {ENTRY_POINT_GROUP}", ""
    if _MODULES in source:
        return None, f"this verl loads plugins by variable only; set {_MODULES}={MODULE} on the driver and the workers"
    return None, f"this verl loads no plugins; train with: python3 -m {MODULE} verl.trainer.main_ppo …"


def _source_of_verl() -> str | None:
    """The text of verl's `__init__.py`, which says what it loads more reliably than a version number."""
    try:
        spec = importlib.util.find_spec("verl")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    try:
        return Path(spec.origin).read_text(encoding="utf-8")
    except OSError:
        return None


def _version() -> str:
    try:
        return metadata.version("verl")
    except metadata.PackageNotFoundError:
        return "unknown"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]
