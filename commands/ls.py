"""`verl-trace ls`: the runs of a folder."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import orjson
import typer

from ..reader import closed_folders, find_runs, summarise
from ..recorder import read_settings
from ..viewer.listing import listing, run_facts
from ..viewer.text import visible

__all__ = ["ls"]


def ls(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A folder of runs or one run; default: VERL_TRACE_DIR, else ./runs.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a run.")] = False,
) -> None:
    """List recorded runs: project, attempts, steps, trajectories, calls, errors, size, state.

    Example: verl-trace ls /mnt/local/verl-trace
    """
    folder = folder if folder is not None else read_settings().folder
    runs = find_runs(folder)
    facts = [run_facts(run, summarise(run)) for run in runs]
    if as_json:
        typer.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
    else:
        # what is piped on stays one line a run, for grep and awk
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        typer.echo(listing(facts, columns=columns))
    for name in closed_folders(folder):
        typer.echo(f"verl-trace: {visible(name)} cannot be read; it is not listed", err=True)
