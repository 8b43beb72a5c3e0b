"""`verl-trace verify`: is everything there that was recorded?"""

from __future__ import annotations

from typing import Annotated

import orjson
import typer

from ..reader.losses import lost_words
from ..reader.pruned import pruned_notes, pruned_words
from ..reader.scan import FileReport
from ..reader.segments import Damage
from ..reader.verify import DAMAGED, TORN, WHOLE, RunReport
from ..reader.verify import verify as verify_runs
from ..schemas.wording import counted
from ..viewer.text import visible
from .printing import print_json
from .runs import RunArgument, run_path

__all__ = ["EXIT_CODES", "verify"]

# 1 and 2 mean the same as with every other command: something failed, it could not start.
EXIT_CODES = {WHOLE: 0, TORN: 3, DAMAGED: 4}
# Lines of one kind that are printed; --json has all.
_LISTED = 20


def verify(
    run: RunArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a run.")] = False,
) -> None:
    """Read everything in a run and say what is whole, torn or damaged. Changes nothing.

    Torn is the end of a file whose process was killed: normal, and nothing before it is missing. A line that a live
    process is writing is whole.

    Exit codes: 0 whole; 3 torn; 4 damaged; 2 it could not start.

    Example: verl-trace verify runs/exp1
    """
    run = run_path(run)
    reports = verify_runs(run)
    if as_json:
        print_json(orjson.dumps([report.as_json() for report in reports], option=orjson.OPT_INDENT_2).decode())
    else:
        for report in reports:
            typer.echo("\n".join(_text(report)))
        if any(report.state == DAMAGED for report in reports):
            typer.echo(f"→ verl-trace repair {run} --out FOLDER makes a clean copy of all that is readable")
    raise typer.Exit(max(EXIT_CODES[report.state] for report in reports))


def _text(report: RunReport) -> list[str]:
    run = report.run
    lines = [f"{visible(run.project_name)} · {visible(run.experiment_name)} ({run.folder}): {report.state}"]
    for state in (WHOLE, TORN, DAMAGED):
        files = [file for file in report.files if file.state == state]
        if files:
            lines.append(
                f"  {state:<8} {counted(len(files), 'file')}, {counted(sum(file.records for file in files), 'record')}"
            )
            lines += _limited([line for file in files for line in _problems(file)])
    if report.missing:
        lines.append("  missing segments")
        lines += _limited([f"    {name}" for name in report.missing])
    if report.duplicates:
        lines.append(f"  {counted(len(report.duplicates), 'record')} there twice")
        lines += _limited([_place(damage) for damage in report.duplicates])
    lines.append(f"  {counted(report.calls, 'call')}{_remarks(report)}")
    lines += _contents(report)
    lines += [f"  {counted(count, 'record')} of the unknown kind {visible(kind)!r}" for kind, count in _unknown(report)]
    lines += [f"  cannot be read: {visible(folder)}" for folder in report.unreadable]
    lines += [f"  {visible(pruned_words(note))}" for note in pruned_notes(run.folder)]
    return lines


def _contents(report: RunReport) -> list[str]:
    """Side files, and what lines refer to and no file holds."""
    files = [file for of_writer in report.contents for file in of_writer.files]
    lines = []
    if files:
        count = sum(len(file.contents) for file in files)
        lines.append(f"  {counted(len(files), 'side file')}, {counted(count, 'content')}")
        lines += _limited([_place(problem) for file in files for problem in file.problems])
    for of_writer in report.contents:
        if of_writer.missing:
            why = "its process was killed while they waited in memory" if of_writer.killed else "no file has them"
            missing = counted(len(of_writer.missing), "content")
            lines.append(f"  {missing} missing of {visible(of_writer.writer)}: {why}")
    return lines


def _problems(file: FileReport) -> list[str]:
    return [_place(problem) for problem in file.problems] + [f"    {file.path.name}: {note}" for note in file.notes]


def _place(damage: Damage) -> str:
    return (
        f"    {damage.path.name} at byte {damage.offset:,}, {counted(damage.length, 'byte')}: {visible(damage.reason)}"
    )


def _remarks(report: RunReport) -> str:
    counts = {
        "unfinished": report.unfinished,
        "without their start": sum(map(len, report.without_start.values())),
        "without their decoded text": report.without_text,
    }
    parts = [f"{count:,} {words}" for words, count in counts.items() if count]
    if report.lost_records:
        parts.append(visible(lost_words(report.lost_records, report.lost_by)))
    return f" ({'; '.join(parts)})" if parts else ""


def _unknown(report: RunReport) -> list[tuple[str, int]]:
    return sorted(report.unknown_kinds.items())


def _limited(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _LISTED else [*lines[:_LISTED], f"    … and {len(lines) - _LISTED:,} more"]
