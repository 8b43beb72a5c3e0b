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

__all__ = ["RunArgument", "WholeRunArgument", "is_one_run", "report_damage", "run_path", "runs_named"]

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
# Of commands that send or delete for good: a run whose name begins alike is not to be met by a slip.
WholeRunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Folder of a run, or of several, a packed run (X.tar), a span file, or a run's whole name in"
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
    exact, begun = _of_that_name(name)
    # where there is none, this says that there is no such path
    return _one_folder(name, exact or begun) if exact or begun else find_runs(name)


def run_path(name: Path, *, whole: bool = False, awaited: bool = False) -> Path:
    """The path that `name` means, as `runs_named` has it: itself, or the folder of the run of that name.

    `whole`: the beginning of a name is not enough. `awaited`: nor is it an error, since the run may still come.

    Raises:
        NotFound: several runs begin so, or one does and is meant by its `whole` name only; or its folder holds others.
    """
    exact, begun = _of_that_name(name)
    if whole and not exact and begun and not awaited:
        details = [f"{run.folder}  {run.project_name}" for run in begun]
        raise NotFound(f"{str(name)!r} is only the beginning of a name", hint="say the whole of it", details=details)
    found = exact or ([] if whole else begun)
    if not found:
        return name
    folder = _one_folder(name, found)[0].folder
    if len(find_runs(folder)) > len(found):
        raise NotFound(f"{folder} holds other runs beside {str(name)!r}", hint=f"name {folder} for all of them")
    return folder


def _of_that_name(name: Path) -> tuple[list[Run], list[Run]]:
    """Runs in the folder of runs that are called `name`, and those whose names begin so; a path names none."""
    if os.path.lexists(name) or len(name.parts) != 1:
        return [], []
    try:
        runs = find_runs(read_settings().folder)
    except NotARun:
        return [], []
    word = str(name)
    exact = [run for run in runs if word in (run.experiment_name, run.folder.name)]
    begun = [run for run in runs if run.experiment_name.startswith(word) or run.folder.name.startswith(word)]
    return exact, begun


def _one_folder(name: Path, found: list[Run]) -> list[Run]:
    if len({run.folder for run in found}) > 1:
        details = [f"{run.folder}  {run.project_name}" for run in found]
        text = f"{str(name)!r} means {len(found)} runs of {read_settings().folder}"
        raise NotFound(text, hint="name one of these", details=details)
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
