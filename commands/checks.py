"""What `verl-trace doctor` looks at: one short function per question, each gives one finding.

Nothing here imports verl, Ray, weave or wandb: the checks are quick, and work where those are broken.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from ..recorder.settings import disabled, read_settings
from ..verl_plugin import status

__all__ = ["CHECKS", "Finding", "State", "run_checks"]

State = Literal["ok", "warn", "fail"]
UPLOAD_MODULES = ("weave", "wandb", "requests", "rich")
# Below this much free space a long training is likely to meet the recorder's own limit.
COMFORTABLE_SPACE = 10 << 30
GIB = 1 << 30


class Finding(NamedTuple):
    """One line of the report; `remedy` is empty when nothing needs to be done."""

    check: str
    state: State
    message: str
    remedy: str = ""


def run_checks() -> list[Finding]:
    """All findings, in the order in which a reader wants them."""
    return [check() for check in CHECKS]


def check_python() -> Finding:
    """Which interpreter this is, since a login node and a worker image often differ."""
    return Finding("python", "ok", f"{platform.python_version()}, verl-trace {metadata.version('verl-trace')}")


def check_verl() -> Finding:
    """Whether the verl that is installed here will load the plugin."""
    found = status()
    if found.version is None:
        return Finding(
            "verl",
            "warn",
            "not installed here; only code that imports verl_trace itself can record",
            "if you train with verl, run this in the environment of its workers",
        )
    if found.loaded_by is None:
        return Finding("verl", "fail", f"verl {found.version} will not load verl-trace", found.hint)
    return Finding("verl", "ok", f"verl {found.version} loads verl-trace by {found.loaded_by}")


def check_backends() -> Finding:
    """Which values of `trace.backend` record."""
    offline = status().offline
    if offline.offline:
        return Finding("backend", "ok", f"trace.backend=jsonl records, and so does weave: {offline.because}")
    return Finding("backend", "ok", f"trace.backend=jsonl records; weave is verl's own: {offline.because}")


def check_disabled() -> Finding:
    """Whether VERL_TRACE_DISABLED switches recording off."""
    if disabled():
        value = os.environ["VERL_TRACE_DISABLED"]
        return Finding(
            "switch", "fail", f"VERL_TRACE_DISABLED={value} switches all recording off", "unset VERL_TRACE_DISABLED"
        )
    return Finding("switch", "ok", "VERL_TRACE_DISABLED is not set")


def check_settings() -> Finding:
    """Whether every VERL_TRACE_ variable can be read."""
    problems = read_settings().problems
    if problems:
        return Finding("settings", "fail", "; ".join(problems), "correct these variables; README.md lists them")
    found = sorted(name for name in os.environ if name.startswith("VERL_TRACE_"))
    return Finding("settings", "ok", ", ".join(f"{n}={os.environ[n]}" for n in found) or "no VERL_TRACE_ variable set")


def check_folder() -> Finding:
    """Whether a span file can be made where the recorder would make it."""
    folder = read_settings().folder
    made = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding(
            "folder",
            "fail",
            f"{folder}: {error.strerror or error}",
            "set VERL_TRACE_DIR to a folder that every worker can write, e.g. on the node's own disk",
        )
    finally:
        _remove_empty(made)
    return Finding("folder", "ok", f"{folder} can be written")


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def check_space() -> Finding:
    """Whether the disk has room beyond what the recorder leaves to others."""
    settings = read_settings()
    # unlike Path.exists, False also where the name is too long or the way there is closed
    existing = next(path for path in (settings.folder, *settings.folder.parents) if os.path.exists(path))
    free = shutil.disk_usage(existing).free
    text = f"{free / GIB:.1f} GiB free at {existing}"
    remedy = "free some space, or set VERL_TRACE_DIR to another disk"
    if free <= settings.min_free:
        return Finding("space", "fail", f"{text}; nothing is recorded below {settings.min_free / GIB:.1f} GiB", remedy)
    if free < COMFORTABLE_SPACE:
        return Finding("space", "warn", f"{text}; little for a long training", remedy)
    return Finding("space", "ok", text)


def check_upload() -> Finding:
    """Whether `verl-trace upload` has what it needs; GPU nodes do without."""
    missing = [name for name in UPLOAD_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        return Finding(
            "upload",
            "warn",
            f"not installed: {', '.join(missing)}; recording and `ls` work without",
            "where you upload from: pip install 'verl-trace[upload]'",
        )
    return Finding("upload", "ok", f"weave {metadata.version('weave')}, wandb {metadata.version('wandb')}")


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_verl,
    check_backends,
    check_disabled,
    check_settings,
    check_folder,
    check_space,
    check_upload,
)
