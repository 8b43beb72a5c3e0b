"""`verl-trace doctor`: will this environment record, and if not, what to do."""

from __future__ import annotations

import os
from typing import Annotated

import orjson
import typer

from ..schemas.secrets import hidden
from ..viewer.text import visible
from .checks import run_checks
from .findings import Finding
from .printing import print_json

__all__ = ["doctor"]

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "bright_black"}


def doctor(
    ray: Annotated[
        bool | None,
        typer.Option(
            "--ray/--no-ray",
            help="Look into a Ray worker on every node; default: where a cluster runs already.",
            show_default=False,
        ),
    ] = None,
    upload: Annotated[
        bool | None,
        typer.Option(
            "--upload/--no-upload",
            help="Ask the upload host with your key; default: where the extra is installed, as a warning only.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON object.")] = False,
) -> None:
    """Say whether verl would record here, where to, how fast, what becomes of it, and what to do if not.

    Run it in the environment of the workers, with the variables of the driver, on every node. Some MiB are written to
    the folder and removed. Exit code 1 when a check fails; 0 with warnings.

    Example: verl-trace doctor --ray
    """
    findings = []
    for found in run_checks(ray=ray, upload=upload):
        finding = found._replace(message=_shown(found.message), remedy=_shown(found.remedy))
        findings.append(finding)
        if not as_json:
            # at once: some take seconds
            _print(finding)
    failed = any(finding.state == "fail" for finding in findings)
    if as_json:
        report = {"ok": not failed, "checks": [finding._asdict() for finding in findings]}
        print_json(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode())
    raise typer.Exit(1 if failed else 0)


def _shown(text: str) -> str:
    """Without credentials, and text even where a variable is none."""
    return hidden(text, os.environ.get("WANDB_API_KEY")).encode("utf-8", "backslashreplace").decode()


def _print(finding: Finding) -> None:
    state = typer.style(f"{finding.state:<4}", fg=_COLORS[finding.state])
    typer.echo(f"{state}  {finding.check:<9} {visible(finding.message)}")
    if finding.remedy:
        typer.echo(f"{'':<16}→ {visible(finding.remedy)}")
