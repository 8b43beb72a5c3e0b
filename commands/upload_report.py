"""What an upload did, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..viewer.text import visible

if TYPE_CHECKING:
    from ..uploader.result import RunReport, UploadResult

__all__ = ["report_lines"]

# Failures and differences listed one by one; --json has more.
_LISTED = 10
# What W&B's free plan takes in a month.
FREE_MONTH = 10**9
# Fields of large calls that became files, listed one by one; --json has all.
_MOVED_LISTED = 20


def report_lines(result: UploadResult) -> Iterator[str]:
    """The report of all runs, and what could not be uploaded at all. Names and servers' words are shown as text."""
    for report in result.runs:
        for line in _run(report, result.dry_run):
            yield visible(line)
    for unopened in result.unopened:
        yield visible(f"{unopened.name} was not uploaded: {unopened.reason}")
    if result.interrupted:
        yield "interrupted while it read: the counts are of what it had read; run the command again for the rest"
    for name in result.unreadable:
        yield f"not all counted, since it cannot be read: {visible(name)}"


def _run(report: RunReport, dry_run: bool) -> Iterator[str]:
    from ..uploader.size import size_words

    yield f"{report.project_name} · {report.experiment_name} → {report.page or report.target}"
    yield f"  recorded {report.recorded:>9,} calls in {report.trajectories:,} trajectories"
    for found in report.wandb:
        yield f"  W&B run  {found['run_id']}: {found['state']} ({found['folder']})"
    if dry_run:
        yield f"  to send  {report.to_send:>9,} calls, {size_words(report.bytes)}"
        share = 100 * report.stored_bytes / FREE_MONTH
        number, unit = size_words(report.stored_bytes).split()
        yield f"  counted  {number:>9} {unit} by the server, {share:,.1f} % of 1 GB a month"
    else:
        yield f"  sent     {report.sent:>9,} calls, {size_words(report.bytes)}"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(report.skipped.items()) if count)
    yield f"  skipped  {sum(report.skipped.values()):>9,}{f'  ({reasons})' if reasons else ''}"
    yield f"  failed   {report.failed:>9,}"
    for failure in report.failures[:_LISTED]:
        field = f" [{failure.field}]" if failure.field else ""
        yield f"    {failure.id} {failure.op}{field}: {failure.reason}"
    if report.failed > _LISTED:
        yield f"    … and {report.failed - _LISTED:,} more"
    if report.moved:
        yield f"  moved    {len(report.moved):>9,} fields of calls too large for a row of Weave into files"
    for moved in report.moved[:_MOVED_LISTED]:
        yield f"    {moved.id} {moved.op}: {moved.path}, {size_words(moved.bytes)}"
    if len(report.moved) > _MOVED_LISTED:
        yield f"    … and {len(report.moved) - _MOVED_LISTED:,} more; --json lists them all"
    if report.feedback:
        yield f"  feedback {report.feedback:>9,} rewards"
    if not dry_run:
        yield f"  stored   {report.stored:>9,}{_checked(report)}"
    for difference in report.differences[:_LISTED]:
        yield f"    {difference.id} {difference.op} {difference.field}: {difference.kind}"
    if sum(report.differing.values()) > _LISTED:
        yield f"    … and {sum(report.differing.values()) - _LISTED:,} more"
    if report.stopped:
        yield f"  stopped: {report.stopped}; run the command again for the rest"
    yield from (f"  note: {note}" for note in [*_remarks(report), *report.notes])


def _checked(report: RunReport) -> str:
    """What the check after sending came to."""
    if report.checked is None:
        return "  (not checked)"
    kinds = ", ".join(f"{count:,} fields {kind}" for kind, count in sorted(report.differing.items()))
    found = f"  (the server shows {report.checked:,} of them"
    if report.more:
        found += f", and {report.more:,} more of these trajectories"
    return f"{found}{f'; {kinds}' if kinds else ''})"


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
    if report.fields_left_out:
        remarks.append(f"{report.fields_left_out:,} fields were left out; marks in the calls say which")
    if report.missing_contents:
        remarks.append(
            f"{report.missing_contents:,} pictures or arrays are missing from the side files; marks say where"
        )
    if report.lightened:
        remarks.append(f"{report.lightened:,} calls were refused as they are, and sent with heavy fields moved out")
    return remarks
