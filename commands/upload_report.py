"""What an upload did, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..schemas.wording import counted, plural
from ..viewer.text import human_seconds, visible

if TYPE_CHECKING:
    from ..uploader.forecast import Estimate
    from ..uploader.result import RunReport, UploadResult

__all__ = ["report_lines"]

# Failures and differences listed one by one; --json has more.
_LISTED = 10
# Fields of large calls that became files, listed one by one; --json has all.
_MOVED_LISTED = 20


def report_lines(result: UploadResult) -> Iterator[str]:
    """The report of all runs, and what could not be uploaded at all. Names and servers' words are shown as text."""
    for report in result.runs:
        for line in _run(report, result.estimate):
            yield visible(line)
    if result.estimate is not None:
        for line in _estimate(result.estimate, len(result.runs)):
            yield visible(line)
    for unopened in result.unopened:
        yield visible(f"{unopened.name} was not uploaded: {unopened.reason}")
    if result.interrupted:
        yield "interrupted while it read: the counts are of what it had read; run the command again for the rest"
    for name in result.unreadable:
        yield f"not all counted, since it cannot be read: {visible(name)}"


def _estimate(plan: Estimate, runs: int) -> Iterator[str]:
    """What a dry run comes to: all runs together, and how long it takes."""
    from ..uploader.size import size_words

    if runs > 1:
        yield (
            f"in all     {plan.calls:>9,} {plural(plan.calls, 'call')} in {counted(plan.trajectories, 'trajectory')},"
            f" {size_words(plan.bytes)};"
            f" {size_words(plan.stored_bytes)} by the server, {_share(plan.share, plan.quota)}"
        )
    rate = plan.rate
    if rate is None:
        yield (
            f"time       at least {human_seconds(plan.seconds)}, which reading and encoding took now;"
            " no upload from here has measured a server yet"
        )
        return
    speed = f"{rate.calls / rate.seconds:,.0f} calls/s, {size_words(round(rate.bytes / rate.seconds))}/s"
    yield (
        f"time       about {human_seconds(plan.seconds)}, as fast as the last upload from here:"
        f" {speed} to {rate.server} ({rate.at})"
    )


def _share(share: float, quota: int) -> str:
    from ..uploader.size import size_words

    words = size_words(quota) if quota % 10**9 else f"{quota // 10**9:,} GB"
    return f"{100 * share:,.1f} % of {words} a month"


def _run(report: RunReport, plan: Estimate | None) -> Iterator[str]:
    from ..uploader.size import size_words

    yield f"{report.project_name} · {report.experiment_name} → {report.page or report.target}"
    calls, trajectories = plural(report.recorded, "call"), counted(report.trajectories, "trajectory")
    yield f"  recorded {report.recorded:>9,} {calls} in {trajectories}"
    for found in report.wandb:
        yield f"  W&B run  {found['run_id']}: {found['state']} ({found['folder']})"
        if found.get("reason"):
            yield f"           {found['reason']}"
        for words in found.get("output", "").splitlines():
            yield f"           | {words}"
    if plan is not None:
        calls, trajectories = plural(report.to_send, "call"), counted(report.trajectories_to_send, "trajectory")
        yield f"  to send  {report.to_send:>9,} {calls} in {trajectories}, {size_words(report.bytes)}"
        number, unit = size_words(report.stored_bytes).split()
        share = _share(report.stored_bytes / plan.quota, plan.quota)
        yield f"  counted  {number:>9} {unit} by the server, {share}"
    else:
        yield f"  sent     {report.sent:>9,} {plural(report.sent, 'call')}, {size_words(report.bytes)}"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(report.skipped.items()) if count)
    yield f"  skipped  {sum(report.skipped.values()):>9,}{f'  ({reasons})' if reasons else ''}"
    yield f"  failed   {report.failed:>9,}"
    # what was left when it stopped has one reason, which is told below
    refused = [failure for failure in report.failures if failure.reason != f"not sent: {report.stopped}"]
    for failure in refused[:_LISTED]:
        field = f" [{failure.field}]" if failure.field else ""
        yield f"    {failure.id} {failure.op}{field}: {failure.reason}"
    if report.failed - report.unsent > _LISTED:
        yield f"    … and {report.failed - report.unsent - _LISTED:,} more"
    if report.unsent:
        yield f"    {counted(report.unsent, 'call')} not sent, since the upload stopped"
    if report.moved:
        fields = plural(len(report.moved), "field")
        yield f"  moved    {len(report.moved):>9,} {fields} of calls too large for a row of Weave into files"
    for moved in report.moved[:_MOVED_LISTED]:
        yield f"    {moved.id} {moved.op}: {moved.path}, {size_words(moved.bytes)}"
    if len(report.moved) > _MOVED_LISTED:
        yield f"    … and {len(report.moved) - _MOVED_LISTED:,} more; --json lists them all"
    if report.feedback:
        yield f"  feedback {report.feedback:>9,} {plural(report.feedback, 'reward')}"
    if plan is None:
        yield f"  stored   {report.stored:>9,}{_checked(report)}"
    if report.compared is not None:
        yield _compared(report)
    for difference in report.differences[:_LISTED]:
        yield f"    {difference.id} {difference.op} {difference.field}: {difference.kind}"
    if sum(report.differing.values()) > _LISTED:
        yield f"    … and {sum(report.differing.values()) - _LISTED:,} more"
    if report.stopped:
        yield f"  stopped: {report.stopped}{_again(report)}"
    yield from (f"  note: {note}" for note in [*_remarks(report), *report.notes])


def _again(report: RunReport) -> str:
    """What to do after a stop, where repeating helps."""
    from ..uploader.storing import ELSEWHERE

    return "" if report.stopped.endswith(ELSEWHERE) else "; run the command again for the rest"


def _checked(report: RunReport) -> str:
    """What the check after sending came to."""
    if report.checked is None:
        return "  (not checked)"
    found = f"  (the server shows {report.checked:,} of them"
    if report.more:
        found += f", and {report.more:,} more of these trajectories"
    return f"{found})"


def _compared(report: RunReport) -> str:
    """What reading everything back came to."""
    from ..uploader.size import size_words

    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.differing.items()))
    found = f"fields: {kinds}" if kinds else "every field is as recorded"
    calls = plural(report.compared or 0, "call")
    return f"  compared {report.compared:>9,} {calls} read back, {size_words(report.compared_bytes)} of JSON; {found}"


def _remarks(report: RunReport) -> list[str]:
    """What is special about the calls, in words."""
    from ..uploader.payload import TEXT_MARK

    remarks = []
    if report.interrupted:
        remarks.append(
            f"{counted(report.interrupted, 'call')} without a recorded end: marked by the exception Interrupted"
        )
    if report.orphans:
        remarks.append(
            f"{counted(report.orphans, 'call')} with a parent that was not recorded, marked by"
            " attributes.verl_trace.orphan"
        )
    if report.marked_texts:
        remarks.append(
            f"{counted(report.marked_texts, 'string')} got {TEXT_MARK!r} in front, so as not to be taken for a"
            " Weave reference"
        )
    if report.fields_left_out:
        remarks.append(
            f"{counted(report.fields_left_out, 'field was', 'fields were')} left out; marks in the calls say which"
        )
    if report.missing_contents:
        remarks.append(
            f"{counted(report.missing_contents, 'picture or array is', 'pictures or arrays are')} missing from the side"
            " files; marks say where"
        )
    if report.lightened:
        calls = counted(report.lightened, "call was", "calls were")
        remarks.append(f"{calls} refused as recorded, and sent with heavy fields moved out")
    return remarks
