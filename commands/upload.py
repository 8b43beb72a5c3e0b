"""`verl-trace upload`: replay recorded runs into Weave."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from ..schemas.errors import MissingExtra
from ..viewer.text import visible

if TYPE_CHECKING:
    from ..uploader.result import RunReport, UploadResult

__all__ = ["upload"]

# 2, could not start, is the whole command line's: `cli.py`.
ALL_SENT, SOME_LEFT, INTERRUPTED = 0, 1, 130
# Failures listed one by one in the report; --json has more.
_LISTED = 10
# Fields of large calls that became files, listed one by one; --json has all.
_MOVED_LISTED = 20

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or of several, or one span file.")]
EntityOption = Annotated[
    str | None, typer.Option(help="W&B entity (user or team) instead of the recorded or default one.")
]
ProjectOption = Annotated[str | None, typer.Option(help="PROJECT or ENTITY/PROJECT instead of the recorded name.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Count calls, trajectories and bytes; use no network.")]
RedactOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Leave out the values of keys like this (a shell glob, any case, any depth); repeatable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")]


def upload(
    run: RunArgument,
    entity: EntityOption = None,
    project: ProjectOption = None,
    dry_run: DryRunOption = False,
    redact: RedactOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a recorded run into its W&B Weave project, with the recorded ids and times.

    Calls that the server has already are not sent again: repeat the command after a failure, or while training goes on.

    Key and target are taken as W&B's tools do: WANDB_API_KEY or netrc, WANDB_BASE_URL, WF_TRACE_SERVER_URL,
    WANDB_ENTITY.

    Exit codes: 0 every call has arrived; 1 some failed, must wait for their process or could not be read; 2 it could
    not start.
    """
    try:
        result = _upload(run, entity, project, dry_run, redact or [])
    except KeyboardInterrupt:
        typer.echo("verl-trace: interrupted; what has arrived stays, run the command again to send the rest", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        typer.echo(orjson.dumps(result.as_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        for report in result.runs:
            typer.echo(_text(report, dry_run))
        for name in result.unreadable:
            typer.echo(f"{visible(name)} cannot be read; what is in it was not counted")
    raise typer.Exit(exit_code(result))


def exit_code(result: UploadResult) -> int:
    """0 when nothing is left to do. A dry run leaves nothing undone that it was asked for, unless it could not read."""
    from ..uploader.result import STILL_OPEN

    left = result.failed or result.unreadable or (result.skipped[STILL_OPEN] and not result.dry_run)
    return SOME_LEFT if left else ALL_SENT


def _upload(run: Path, entity: str | None, project: str | None, dry_run: bool, redact: list[str]) -> UploadResult:
    try:
        from ..uploader.pipeline import upload as replay
        from .upload_progress import showing_progress
    except ImportError as error:
        raise MissingExtra("upload", "upload", error.name or "requests") from None
    with showing_progress(sys.stderr) as progress:
        return replay(run, entity=entity, project=project, dry_run=dry_run, progress=progress, redact=redact)


def _text(report: RunReport, dry_run: bool) -> str:
    """The report of one run, as lines."""
    lines = [f"{report.project_name} · {report.experiment_name} → {report.page or report.target}"]
    lines.append(f"  recorded {report.recorded:>9,} calls in {report.trajectories:,} trajectories")
    if dry_run:
        lines.append(f"  to send  {report.to_send:>9,} calls, {report.bytes / 1e6:,.1f} MB")
    else:
        lines.append(f"  sent     {report.sent:>9,} calls, {report.bytes / 1e6:,.1f} MB")
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(report.skipped.items()))
    lines.append(f"  skipped  {sum(report.skipped.values()):>9,}{f'  ({reasons})' if reasons else ''}")
    lines.append(f"  failed   {report.failed:>9,}")
    for failure in report.failures[:_LISTED]:
        lines.append(f"    {failure.id} {failure.op}: {failure.reason}")
    if report.failed > _LISTED:
        lines.append(f"    … and {report.failed - _LISTED:,} more")
    if report.moved:
        lines.append(f"  moved    {len(report.moved):>9,} fields of calls too large for a row of Weave into files")
    for moved in report.moved[:_MOVED_LISTED]:
        lines.append(f"    {moved.id} {moved.op}: {visible(moved.path)}, {moved.bytes / 1e6:,.1f} MB")
    if len(report.moved) > _MOVED_LISTED:
        lines.append(f"    … and {len(report.moved) - _MOVED_LISTED:,} more; --json lists them all")
    return "\n".join(lines + [f"  note: {note}" for note in [*_remarks(report), *report.notes]])


def _remarks(report: RunReport) -> list[str]:
    """What is special about the calls, in words."""
    from ..uploader.payload import TEXT_MARK

    remarks = []
    if report.interrupted:
        remarks.append(f"{report.interrupted:,} calls never ended; they carry the exception Interrupted")
    if report.orphans:
        remarks.append(
            f"{report.orphans:,} calls have a parent that was not recorded; attributes.verl_trace.orphan marks them"
        )
    if report.marked_texts:
        remarks.append(
            f"{report.marked_texts:,} strings that begin like a Weave reference got {TEXT_MARK!r} before them"
        )
    if report.missing_contents:
        remarks.append(
            f"{report.missing_contents:,} pictures or arrays are missing from the side files; marks say where"
        )
    return remarks
