"""`verl-trace seal`: compress what dead processes left as plain text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import orjson
import typer

from ..reader import find_runs
from ..reader.durations import parse_duration
from ..recorder.leftovers import RawSegment, seal_dead
from ..viewer.text import visible
from .printing import print_json
from .runs import run_path

__all__ = ["seal"]

_WORDS = {
    "sealed": "compressed",
    "alive": "left alone: the process still runs",
    "unknown": "left alone: recorded on another host or without a header, nobody here can tell whether it still runs",
    "busy": "being compressed by another process",
    "gone": "compressed by another process meanwhile",
    "failed": "failed, the raw file stays as it is",
}


def seal(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="Folder of a run, or of several, or the beginning of a run's name in VERL_TRACE_DIR or runs.",
        ),
    ],
    idle: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Compress files of other hosts, too, that did not change for so long (10m, 1h).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a raw file.")] = False,
) -> None:
    """Compress the raw files of processes that have ended: smaller, with a checksum, and nothing else changes.

    A torn last line is kept byte for byte. Files of running processes are left alone: those seal their own.

    Exit codes: 0 done, also when there was nothing to do; 1 a file could not be compressed; 2 it could not start.

    Example: verl-trace seal runs
    """
    quiet = None if idle is None else parse_duration(idle, "--idle")
    folders = sorted({found.folder for found in find_runs(run_path(run))})
    files = [file for folder in folders for file in seal_dead(folder, idle=quiet)]
    if as_json:
        print_json(orjson.dumps([_as_json(file) for file in files], option=orjson.OPT_INDENT_2).decode())
    else:
        typer.echo("\n".join(_text(files)))
    raise typer.Exit(1 if any(file.outcome == "failed" for file in files) else 0)


def _as_json(file: RawSegment) -> dict[str, str | None]:
    sealed = str(file.sealed) if file.sealed is not None else None
    return {"file": str(file.path), "outcome": file.outcome, "sealed": sealed, "detail": file.detail}


def _text(files: list[RawSegment]) -> list[str]:
    if not files:
        return ["nothing to do: no raw files"]
    counts = Counter[str](file.outcome for file in files)
    lines = [f"{counts[outcome]:>6,}  {words}" for outcome, words in _WORDS.items() if counts[outcome]]
    lines += [f"  {file.path.name}: {visible(file.detail)}" for file in files if file.outcome == "failed"]
    if counts["unknown"]:
        lines.append("→ --idle 1h compresses those, too, that did not change for an hour")
    return lines
