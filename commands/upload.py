"""`verl-trace upload`: replay recorded runs into Weave."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from ..reader import Filters
from ..schemas.errors import CannotStart, MissingExtra
from ..viewer.text import visible
from .filters import with_filters
from .printing import print_json
from .runs import WholeRunArgument, run_path
from .sizes import parse_size
from .upload_choice import (
    BudgetOption,
    CallsOption,
    DropFieldsOption,
    LimitOption,
    MaxFieldOption,
    QuotaOption,
    SampleRateOption,
    SeedOption,
)
from .upload_options import (
    EntityOption,
    NoWandbOption,
    PartialOption,
    ProjectOption,
    RunIdOption,
    SettleOption,
    StateDirOption,
    WandbDirOption,
    WandbOnlyOption,
    checked_seconds,
    seconds,
)
from .upload_report import report_lines

if TYPE_CHECKING:
    from ..uploader.result import UploadResult

__all__ = ["exit_code", "upload"]

# 2, could not start, is the whole command line's: `cli.py`.
ALL_SENT, SOME_LEFT, STOPPED, INTERRUPTED = 0, 1, 5, 130

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Count calls, trajectories and bytes; use no network.")]
RedactOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Leave out the values of keys like this (a shell glob, any case, any depth); repeatable.",
    ),
]
FeedbackOption = Annotated[
    bool, typer.Option("--feedback", help="Give rewards as Weave feedback on the root calls, too.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")]
WorkersOption = Annotated[int, typer.Option(min=1, max=64, metavar="NUMBER", help="Requests under way at once.")]
MaxWaitOption = Annotated[
    str, typer.Option(callback=checked_seconds, metavar="TIME", help="Give up after so long without success.")
]
CheckOption = Annotated[
    str,
    typer.Option(
        metavar="CHECK",
        help="After sending: count what the server holds (counts), read all of it back and compare (deep), or none.",
    ),
]
FollowOption = Annotated[
    bool,
    typer.Option("--follow", help="Go on until the run has ended, or Ctrl-C: send what has settled at each look."),
]
EveryOption = Annotated[
    str, typer.Option(callback=checked_seconds, metavar="TIME", help="With --follow: time between two looks.")
]
FailFastOption = Annotated[
    bool, typer.Option("--fail-fast", help="Send nothing unless every run and folder in RUN can be uploaded.")
]


@with_filters
def upload(
    run: WholeRunArgument,
    filters: Filters,
    entity: EntityOption = None,
    project: ProjectOption = None,
    dry_run: DryRunOption = False,
    settle: SettleOption = "10m",
    partial: PartialOption = False,
    check: CheckOption = "counts",
    workers: WorkersOption = 8,
    max_wait: MaxWaitOption = "5m",
    state_dir: StateDirOption = None,
    fail_fast: FailFastOption = False,
    follow: FollowOption = False,
    every: EveryOption = "30s",
    redact: RedactOption = None,
    feedback: FeedbackOption = False,
    calls: CallsOption = False,
    sample_rate: SampleRateOption = None,
    limit: LimitOption = None,
    budget: BudgetOption = None,
    seed: SeedOption = 0,
    drop_fields: DropFieldsOption = "",
    max_field: MaxFieldOption = None,
    quota: QuotaOption = "1GB",
    no_wandb: NoWandbOption = False,
    wandb_only: WandbOnlyOption = False,
    wandb_dir: WandbDirOption = None,
    run_id: RunIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a recorded run into its W&B Weave project, with the recorded ids and times.

    Calls that the server has already are not sent again: repeat the command after a failure, or while training goes on.
    A trajectory is sent once it can no longer change: its root has ended and its score is there, or its attempt has
    ended, or it has been silent for --settle.

    With filters, --sample-rate, --limit or --budget only some trajectories are sent, each whole; the rest can follow
    later. The same options choose the same ones. --drop-fields and --max-field leave parts of calls out for good.

    --follow keeps up with a run that is still being written, also by copies that arrive now and then: each look sends
    what has settled since, the last one, when every process has ended, exactly the rest.

    Offline W&B runs that belong to it are synced first, by `wandb sync`, and every call is linked to its run and step.

    Key and target are taken as W&B's tools do: WANDB_API_KEY or netrc, WANDB_BASE_URL, WF_TRACE_SERVER_URL,
    WANDB_ENTITY; so are proxies and certificate authorities: HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE, REQUESTS_CA_BUNDLE.

    Exit codes: 0 every call that was asked for has arrived; 1 some failed, must wait, differ, lack a picture or array,
    or could not be read, or a file is damaged, or a W&B run was not synced; 2 it could not start; 5 it had to stop
    before the end: the server was gone for --max-wait or withdrew access.

    Example: verl-trace upload runs/exp1 --dry-run
    """
    for option, given in (("--wandb-only", wandb_only), ("--wandb-dir", wandb_dir), ("--run-id", run_id)):
        if no_wandb and given:
            raise CannotStart(f"--no-wandb leaves nothing to do for {option}", hint="say one of the two")
    choosing = {
        "filters": filters, "calls": calls, "sample_rate": sample_rate, "limit": limit, "seed": seed,
        "budget": None if budget is None else parse_size(budget, "--budget"),
    }  # fmt: skip
    wandb = {
        "enabled": not no_wandb, "only": wandb_only, "folders": tuple(wandb_dir or ()), "run_id": run_id,
    }  # fmt: skip
    options = {
        "entity": entity, "project": project, "dry_run": dry_run, "settle": seconds(settle), "partial": partial,
        "check": check, "workers": workers, "max_wait": seconds(max_wait), "state_dir": state_dir,
        "fail_fast": fail_fast, "redact": redact or (), "feedback": feedback, "drop_fields": drop_fields,
        "max_field": None if max_field is None else parse_size(max_field, "--max-field"),
        "quota": parse_size(quota, "--quota"), "follow": seconds(every) if follow else None,
    }  # fmt: skip
    run = run_path(run, whole=True, awaited=follow)
    if follow:
        # a name that no run has yet may have been meant in the folder of runs
        waits = "" if run.exists() else f" (not there yet; awaited is {run.absolute()})"
        typer.echo(f"verl-trace: following {visible(f'{run}{waits}')}, a look every {every}; Ctrl-C ends it", err=True)
    try:
        result = _upload(run, options, choosing, wandb)
    except KeyboardInterrupt:
        typer.echo("verl-trace: interrupted; what has arrived stays, run the command again to send the rest", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(orjson.dumps(result.as_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        for line in report_lines(result):
            typer.echo(line)
    raise typer.Exit(exit_code(result))


def exit_code(result: UploadResult) -> int:
    """0 when nothing is left to do. A dry run leaves nothing undone that it was asked for, unless it could not read."""
    from ..uploader.check import HARMLESS

    if result.interrupted:
        return INTERRUPTED
    if result.stopped:
        return STOPPED
    differing = any(count for run in result.runs for kind, count in run.differing.items() if kind not in HARMLESS)
    lacking = any(run.missing_contents for run in result.runs)
    wandb_left = any(run.wandb_left for run in result.runs)
    left = result.failed or differing or lacking or ((result.waiting or wandb_left) and not result.dry_run)
    return SOME_LEFT if left or result.unreadable or result.unopened else ALL_SENT


def _upload(run: Path, options: dict[str, Any], choosing: dict[str, Any], wandb: dict[str, Any]) -> UploadResult:
    try:
        from ..uploader.choose import Choosing
        from ..uploader.pipeline import upload as replay
        from ..uploader.wandb_options import WandbOptions
        from .upload_progress import showing_progress
    except ImportError as error:
        raise MissingExtra("upload", "upload", error.name or "requests") from None
    with showing_progress(sys.stderr) as progress:
        return replay(run, progress=progress, choosing=Choosing(**choosing), wandb=WandbOptions(**wandb), **options)
