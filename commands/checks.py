"""What `verl-trace doctor` looks at: one short function per question, each gives a finding or several.

Nothing here imports verl, Ray, weave or wandb: the checks are quick, and work where those are broken. What has to ask
Ray (`checks_ray`) or W&B (`checks_upload`) is limited in time; `checks_disk` writes some MiB.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib import metadata

from ..recorder.settings import VARIABLES, disabled, mistyped, read_settings
from ..verl_plugin import status
from .checks_disk import disk_findings
from .checks_ray import ray_findings
from .checks_upload import upload_findings
from .findings import Finding

__all__ = ["run_checks"]


def run_checks(*, ray: bool | None = None, upload: bool | None = None) -> Iterator[Finding]:
    """All findings, in the order in which a reader wants them. `ray`, `upload`: whether these are asked; None: where
    that is cheap."""
    yield check_python()
    yield check_verl()
    yield check_backends()
    yield check_disabled()
    yield check_settings()
    yield from check_names()
    yield from disk_findings(read_settings())
    yield from ray_findings(ray)
    yield from upload_findings(upload)


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
        return Finding("settings", "fail", "; ".join(problems), "correct these variables")
    found = sorted(VARIABLES & set(os.environ))
    return Finding("settings", "ok", ", ".join(f"{n}={os.environ[n]}" for n in found) or "no VERL_TRACE_ variable set")


def check_names() -> Iterator[Finding]:
    """Variables that look like settings and are none: what they were meant to say is not heard."""
    for name, meant in mistyped(os.environ).items():
        if meant:
            yield Finding(
                "settings", "fail", f"{name} is no setting: did you mean {meant}?", f"rename it to {meant}, or unset it"
            )
        else:
            known = ", ".join(sorted(VARIABLES))
            yield Finding("settings", "warn", f"{name} is no setting of this version", f"there are {known}")
