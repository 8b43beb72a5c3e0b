"""`verl-trace pack`: runs in one file, to be carried over an air gap."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

from ..reader import Filters, Run, closed_folders, find_runs
from ..reader.pack import Packed
from ..reader.pack import pack as pack_runs
from ..reader.pick import matching
from ..schemas.wording import counted
from ..viewer.text import human_bytes, visible
from .filters import check_names, with_filters
from .printing import print_json
from .runs import run_path
from .sizes import parse_size

__all__ = ["pack"]


@with_filters
def pack(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Folders of runs, or of several, or beginnings of runs' names in VERL_TRACE_DIR or runs.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write, X.tar; must not be there yet.")
    ],
    filters: Filters,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="No part larger than this, 4GB or 500MiB, unless a single file of the run is: X.tar, X.part2.tar, …",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Pack runs into one tar, or into parts of a size. Every reading command and `upload` take X.tar as it is.

    Files that are still raw are compressed; a run that is still being written is packed as it is now. The same command
    again goes on where it was interrupted. With filters, only the trajectories that they mean are packed.

    Exit codes: 0 all was packed; 1 something could not be read, or no trajectory is meant (then nothing is written); 2
    it could not start.

    Example: verl-trace pack runs/exp1 -o exp1.tar --split 4GB --step 0:1000:10
    """
    runs = [run_path(path) for path in runs]
    found = [run for path in runs for run in find_runs(path)]
    unreadable = [name for path in runs for name in closed_folders(path)]
    ids = None if filters.everything else _chosen(found, filters)
    check_names(filters, found)
    if ids is not None and not ids:
        typer.echo("verl-trace: no trajectory is meant by these filters; nothing was packed", err=True)
        raise typer.Exit(1)
    size = None if split is None else parse_size(split, "--split")
    packed = pack_runs(found, out, split=size, chosen=None if ids is None else ids.__contains__, choice=filters.words)
    if as_json:
        print_json(orjson.dumps(_json(packed, ids), option=orjson.OPT_INDENT_2).decode())
    else:
        typer.echo("\n".join(_text(packed, ids)))
    for name in unreadable:
        typer.echo(f"verl-trace: not packed, since it cannot be read: {visible(name)}", err=True)
    raise typer.Exit(1 if packed.damages or unreadable else 0)


def _chosen(runs: list[Run], filters: Filters) -> set[str]:
    ids = set()
    for run in runs:
        ids |= {outline.trace_id for outline in matching(run, filters)}
    return ids


def _json(packed: Packed, ids: set[str] | None) -> dict[str, object]:
    return {
        "parts": [str(part) for part in packed.parts],
        "files": packed.files,
        "kept": packed.kept,
        "bytes": packed.size,
        "trajectories": None if ids is None else len(ids),
        "records_left_out": packed.left_out,
        "damages": [
            {"file": damage.path.name, "offset": damage.offset, "length": damage.length, "reason": damage.reason}
            for damage in packed.damages
        ],
    }


def _text(packed: Packed, ids: set[str] | None) -> list[str]:
    lines = [f"{visible(part)}: {human_bytes(part.stat().st_size)}" for part in packed.parts]
    kept = f", {packed.kept:,} of them from an earlier attempt" if packed.kept else ""
    lines.append(f"  {counted(packed.files, 'file')}{kept}")
    if ids is not None:
        lines.append(f"  {counted(len(ids), 'trajectory')}; of others, {counted(packed.left_out, 'record')} left out")
    for damage in packed.damages:
        place = f"{visible(damage.path.name)} at byte {damage.offset:,}, {counted(damage.length, 'byte')}"
        lines.append(f"  damaged, left out: {place}: {visible(damage.reason)}")
    return lines
