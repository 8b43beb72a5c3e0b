"""`verl-trace repair`: a clean copy of a damaged run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

from ..reader.repair import Repair
from ..reader.repair import repair as repair_run
from ..schemas.files import REPAIR_REPORT
from ..schemas.wording import counted
from ..viewer.text import visible
from .printing import print_json
from .runs import RunArgument, run_path

__all__ = ["repair"]

_LISTED = 20


def repair(
    run: RunArgument,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="New folder for the copy, not inside of RUN.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Copy all that is readable of a run into a new folder; the original is only read.

    The copy has the same file names, every good record byte for byte, and says itself what it lacks. It is verified
    before the command ends. The report is kept in it as repair.json.

    Exit codes: 0 nothing is missing but what a kill tore off; 1 something had to be left out; 2 it could not start.

    Example: verl-trace repair runs/exp1 --out repaired
    """
    result = repair_run(run_path(run), out)
    if as_json:
        print_json(orjson.dumps(result.as_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        typer.echo("\n".join(_text(result)))
    raise typer.Exit(0 if result.complete else 1)


def _text(result: Repair) -> list[str]:
    told = f"{counted(result.records, 'record')} in {counted(result.files, 'file')}"
    lines = [f"{result.out}: {told}; the copy is {result.copy}"]
    if result.doubtful:
        lines.append(
            f"  {result.doubtful:,} of them come from files with damaged compression; no checksum vouches for them"
        )
    if result.missing_contents:
        lines.append(f"  in no side file: {counted(result.missing_contents, 'content')} that lines refer to")
    if result.missing:
        lines.append(f"  not in the original: {counted(len(result.missing), 'segment')}")
    lines += [f"  cannot be read: {visible(folder)}" for folder in result.unreadable]
    if result.left_out:
        lines.append(f"  {counted(len(result.left_out), 'place')} left out:")
        for damage in result.left_out[:_LISTED]:
            place = f"{damage.path.name} at byte {damage.offset:,}, {counted(damage.length, 'byte')}"
            lines.append(f"    {damage.kind}: {place}: {visible(damage.reason)}")
        if len(result.left_out) > _LISTED:
            lines.append(f"    … and {len(result.left_out) - _LISTED:,} more, all of them in {REPAIR_REPORT}")
    return lines
