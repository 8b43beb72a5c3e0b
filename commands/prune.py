"""`verl-trace prune`: delete from a run what the server holds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from ..reader import Filters, Run, find_runs
from ..reader.places import archive_at
from ..reader.runs import UNKNOWN
from ..schemas.errors import CannotStart, MissingExtra
from ..schemas.files import parse_segment_name
from ..schemas.redaction import KeyPatterns
from ..schemas.wording import counted
from ..viewer.text import human_bytes, visible
from .filters import check_names, with_filters
from .printing import print_json
from .runs import run_path
from .upload_options import EntityOption, ProjectOption, SettleOption, seconds

if TYPE_CHECKING:
    from ..uploader.prune import Pruning

__all__ = ["prune"]

_DONE, _DECLINED = 0, 1


@with_filters
def prune(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Folder of a run, or of several, or a run's whole name in VERL_TRACE_DIR or runs."
        ),
    ],
    filters: Filters,
    uploaded: Annotated[
        bool, typer.Option("--uploaded", help="What the server holds as it is recorded: must be said.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
    entity: EntityOption = None,
    project: ProjectOption = None,
    settle: SettleOption = "10m",
    redact: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="As it was uploaded with; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Delete from a run the trajectories that its Weave project holds, and leave a note of what was there.

    Every call is read back from the server and compared with the files, as `upload --check deep` does. Then it says
    what would go and asks. What is still being written, is damaged, differs on the server or was stored without some
    of its fields stays, and so do the other rollouts of its group.

    The note, pruned-….jsonl, lies beside the files: when, which project, and a line for every trajectory.

    Exit codes: 0 done, or nothing to delete; 1 the answer was no; 2 it could not start, or not end.

    Example: verl-trace prune runs/exp1 --uploaded --step 0:500
    """
    if not uploaded:
        raise CannotStart("prune deletes nothing but what the server holds", hint="say so: --uploaded")
    run = run_path(run, whole=True)
    if archive_at(run) is not None:
        raise CannotStart(f"{run} is a packed run, of which no part can be deleted", hint="remove the file itself")
    if parse_segment_name(run) is not None and run.is_file():
        raise CannotStart(f"{run} is one file of a run, and what belongs to it is beside it", hint="give its folder")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise CannotStart("prune asks before it deletes, and nobody is here to answer", hint="say --yes")
    plans = _plan(find_runs(run), filters, entity, project, seconds(settle), redact)
    # also while they go on: what is deleted does not come back when the name does
    check_names(filters, [])
    deleting = any(plan.anything for plan in plans) and not dry_run
    if not as_json:
        for line in _lines(plans):
            typer.echo(visible(line))
    declined = deleting and not yes and not typer.confirm(_question(plans), err=True)
    if deleting and not declined:
        for plan in plans:
            plan.delete()
    if as_json:
        told = {"deleted": deleting and not declined, "runs": [plan.as_json() for plan in plans]}
        print_json(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
    elif deleting and not declined:
        for plan in plans:
            if plan.note is not None:
                typer.echo(visible(f"deleted; {plan.note} says what was there"))
    raise typer.Exit(_DECLINED if declined else _DONE)


def _plan(
    runs: list[Run],
    filters: Filters,
    entity: str | None,
    project: str | None,
    settle: float,
    redact: list[str] | None,
) -> list[Pruning]:
    try:
        from ..uploader.client import Client
        from ..uploader.network import one_network
        from ..uploader.prune import plan_pruning
        from ..uploader.target import resolve
    except ImportError as error:
        raise MissingExtra("prune", "upload", error.name or "requests") from None
    plans = []
    with one_network():
        for run in runs:
            recorded = None if run.project_name == UNKNOWN else run.project_name
            target = resolve(recorded, entity=entity, project=project, make=False)
            if not target.exists:
                raise CannotStart(
                    f"there is no project {target.project_id} on the server, so it holds nothing of this run",
                    hint="are --entity and --project right? nothing was deleted",
                )
            Client(target).check()
            patterns = KeyPatterns(redact) if redact else None
            plans.append(plan_pruning(run, target, filters=filters, settle=settle, redact=patterns))
    return plans


def _question(plans: list[Pruning]) -> str:
    count = sum(plan.trajectories for plan in plans)
    if not count:
        return "Delete what an interrupted prune has left here?"
    return f"Delete {counted(count, 'trajectory')} here? The server will have the only copy"


def _lines(plans: list[Pruning]) -> Iterator[str]:
    for plan in plans:
        yield f"{plan.run.project_name} · {plan.run.experiment_name} ({plan.run.folder})"
        held = f"{counted(plan.trajectories, 'trajectory')}, {counted(plan.calls, 'call')}"
        yield f"  to delete  {held}, read back from {plan.page or plan.project_id} and compared"
        if plan.files is not None and plan.anything:
            removed, anew = counted(len(plan.files.files), "file"), len(plan.files.rewritten)
            yield f"             {removed} removed, {anew:,} written anew, of {_size(plan)}"
        for reason, count in sorted(plan.kept.items()):
            yield f"  kept       {count:,} {reason}"
        for call_id in plan.differing:
            yield f"             call {call_id}"


def _size(plan: Any) -> str:
    return human_bytes(plan.bytes)
