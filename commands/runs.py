"""Which runs a word on the command line means: a path, or the beginning of an experiment's name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..reader import Run, find_runs
from ..reader.trees import Reading
from ..recorder import read_settings
from ..schemas.errors import NotARun, NotFound
from ..schemas.wording import counted
from ..viewer.text import visible

__all__ = ["RunArgument", "is_one_run", "report_damage", "runs_named"]

# Damaged places named on stderr; `verify` has all.
_TOLD = 5

RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Folder of a run, or of several, a packed run (X.tar), a span file, or the beginning of a run's name in"
        " VERL_TRACE_DIR or runs.",
        show_default=False,
    ),
]


def runs_named(name: Path) -> list[Run]:
    """The runs that `name` means: those at this path, else the one of that name in the folder of runs.

    Raises:
        NotARun: it is neither.
        NotFound: several runs begin so.
    """
    if os.path.lexists(name) or len(name.parts) != 1:
        return find_runs(name)
    folder = Path(read_settings().folder)
    try:
        runs = find_runs(folder)
    except NotARun:
        runs = []
    word = str(name)
    exact = [run for run in runs if word in (run.experiment_name, run.folder.name)]
    found = exact or [run for run in runs if run.experiment_name.startswith(word) or run.folder.name.startswith(word)]
    if not found:
        # says that there is no such path
        return find_runs(name)
    if len({run.folder for run in found}) > 1:
        details = [f"{run.folder}  {run.project_name}" for run in found]
        raise NotFound(f"{word!r} means {len(found)} runs of {folder}", hint="name one of these", details=details)
    return found


def is_one_run(name: Path, runs: list[Run]) -> bool:
    """Whether `name` means one run rather than a folder of runs."""
    return len(runs) == 1 and (not name.is_dir() or name.resolve() == runs[0].folder.resolve())


def report_damage(readings: list[Reading]) -> bool:
    """Tell on stderr what could not be read; whether there was more than the torn ends that kills leave."""
    damages = [damage for reading in readings for damage in reading.damages]
    for damage in damages[:_TOLD]:
        place = f"{damage.path.name} at byte {damage.offset:,}, {counted(damage.length, 'byte')}"
        typer.echo(f"verl-trace: passed over: {visible(place)}: {visible(damage.reason)}", err=True)
    if len(damages) > _TOLD:
        more = counted(len(damages) - _TOLD, "more place")
        typer.echo(f"verl-trace: and {more}; `verl-trace verify` lists all", err=True)
    return any(damage.kind != "torn" for damage in damages)
