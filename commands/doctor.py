"""`verl-trace doctor`: will this environment record, and if not, what to do."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer

from .checks import Finding, run_checks

__all__ = ["doctor"]

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON object.")] = False,
) -> None:
    """Say whether verl would record here, where to, and what to do if not.

    Run it in the environment of the workers, with the variables of the driver. Exit code 1 when a check fails.

    Example: verl-trace doctor
    """
    findings = run_checks()
    failed = any(finding.state == "fail" for finding in findings)
    if as_json:
        report = {"ok": not failed, "checks": [finding._asdict() for finding in findings]}
        typer.echo(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode())
    else:
        for finding in findings:
            _print(finding)
    raise typer.Exit(1 if failed else 0)


def _print(finding: Finding) -> None:
    state = typer.style(f"{finding.state:<4}", fg=_COLORS[finding.state])
    typer.echo(f"{state}  {finding.check:<9} {finding.message}")
    if finding.remedy:
        typer.echo(f"{'':<16}→ {finding.remedy}")
