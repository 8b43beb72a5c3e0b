"""`verl-trace export`: a run in other tools' formats."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from ..reader import Run, iter_trajectories
from ..reader.conversation import Decode
from ..reader.filters import Filters
from ..reader.payloads import json_text
from ..reader.trees import Reading
from ..schemas.errors import BadQuery, BadTarget
from ..schemas.wording import counted
from ..viewer.chat import LACKS_TEXT, SEVERAL_ANSWERS, NoChat, chat_lines
from ..viewer.database import open_tables, quoted
from ..viewer.otlp import otlp_request
from ..viewer.timeline import Timeline
from ..viewer.tokenizer import load_tokenizer
from .filters import check_names, with_filters
from .printing import opened, print_json
from .runs import RunArgument, report_damage, runs_named

__all__ = ["export"]

FORMATS = ("parquet", "chat", "chrome", "otlp")
# What is counted, one of it.
_NOUNS = {
    "trajectories": "trajectory", "conversations": "conversation", "calls": "call", "spans": "span", "events": "event",
}  # fmt: skip


@with_filters
def export(
    run: RunArgument,
    format: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", help="parquet, chat (JSONL for SFT), chrome (also Perfetto), otlp (JSONL)."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="PATH",
            help="New file; of parquet a folder, for trajectories.parquet and calls.parquet.",
        ),
    ],
    filters: Filters = Filters(),  # noqa: B008
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="DIR", help="Decode token ids that have no text.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is at --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")] = False,
) -> None:
    """Write a run, or what the filters leave of it, in another format. The run stays as it is.

    chat leaves out trajectories of which a turn has no text, and says how many; a call that gave several answers is a
    conversation for each. What is written appears under its name when it is whole.

    Example: verl-trace export runs/exp1 --format chat --out sft.jsonl --where 'reward > 0.9'
    """
    if format not in FORMATS:
        raise BadQuery(f"--format {format}: none of {', '.join(FORMATS)}")
    if os.path.lexists(out) and not (force or (format == "parquet" and out.is_dir() and not any(out.iterdir()))):
        raise BadTarget(f"{out} exists", hint="another --out, or --force")
    decode = load_tokenizer(tokenizer, "export") if tokenizer is not None else None
    runs = runs_named(run)
    if format == "parquet":
        report, readings = _parquet(runs, filters, out, decode)
    else:
        writers = {"chat": _chat, "chrome": _chrome, "otlp": _otlp}
        with _whole(out) as file:
            report, readings = writers[format](runs, filters, file, decode)
            check_names(filters, runs)
    told = ", ".join(
        counted(count, _NOUNS[what]) if what in _NOUNS else f"{count:,} {what}"
        for what, count in report.items()
        # a conversation a trajectory, as in most runs, needs no words
        if (what != "conversations" or count != report["trajectories"]) and (what != SEVERAL_ANSWERS or count)
    )
    if as_json:
        print_json(json_text({"out": str(out), **report}))
    else:
        typer.echo(f"{out}: {told}")
    report_damage(readings)


@contextmanager
def _whole(out: Path) -> Iterator[IO[bytes]]:
    """A file that is there whole or not at all."""
    tmp = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with opened(tmp, out) as file:
            yield file
        os.replace(tmp, out)
    finally:
        tmp.unlink(missing_ok=True)


def _meant(run: Run, filters: Filters, reading: Reading) -> Iterator[Any]:
    mine = filters.of_run(run.attempts)
    return (trajectory for trajectory in iter_trajectories(run, reading) if mine.trajectory(trajectory))


def _chat(runs: list[Run], filters: Filters, file: IO[bytes], decode: Decode) -> tuple[dict[str, int], list[Reading]]:
    report, readings = {"trajectories": 0, "conversations": 0, LACKS_TEXT: 0, SEVERAL_ANSWERS: 0}, []
    for run in runs:
        readings.append(Reading())
        for trajectory in _meant(run, filters, readings[-1]):
            try:
                rows = chat_lines(trajectory, decode)
            except NoChat as reason:
                report[str(reason)] += 1
                continue
            report["trajectories"] += 1
            report["conversations"] += len(rows)
            for row in rows:
                file.write(json_text(row).encode("utf-8", "surrogatepass") + b"\n")
    return report, readings


def _otlp(runs: list[Run], filters: Filters, file: IO[bytes], _: Decode) -> tuple[dict[str, int], list[Reading]]:
    report, readings = {"trajectories": 0, "spans": 0}, []
    for run in runs:
        readings.append(Reading())
        for trajectory in _meant(run, filters, readings[-1]):
            report["trajectories"] += 1
            report["spans"] += len(trajectory.calls)
            file.write(json_text(otlp_request(run, trajectory)).encode("utf-8", "surrogatepass") + b"\n")
    return report, readings


def _chrome(runs: list[Run], filters: Filters, file: IO[bytes], _: Decode) -> tuple[dict[str, int], list[Reading]]:
    report, readings = {"trajectories": 0, "events": 0}, []
    separator = b'{"displayTimeUnit":"ms","traceEvents":[\n'
    for run in runs:
        readings.append(Reading())
        timeline = Timeline(run)
        events = iter(timeline.names())
        trajectories = _meant(run, filters, readings[-1])
        while True:
            for event in events:
                file.write(separator + json_text(event).encode("utf-8", "surrogatepass"))
                separator = b",\n"
                report["events"] += event["ph"] != "M"
            trajectory = next(trajectories, None)
            if trajectory is None:
                break
            report["trajectories"] += 1
            events = timeline.events(trajectory)
    file.write((separator if not separator.startswith(b",") else b"") + b"\n]}\n")
    return report, readings


def _parquet(runs: list[Run], filters: Filters, out: Path, decode: Decode) -> tuple[dict[str, int], list[Reading]]:
    names = ("trajectories", "calls")
    report: dict[str, int] = {}
    targets = {name: out / f"{name}.parquet" for name in names}
    with open_tables(
        runs,
        set(names),
        filters,
        payloads=True,
        command="export --format parquet",
        decode=decode,
        writable=list(targets.values()),
    ) as tables:
        check_names(filters, runs)
        out.mkdir(parents=True, exist_ok=True)
        for name, target in targets.items():
            found = tables.connection.execute(f"SELECT count(*) FROM {name}").fetchone()
            report[name] = found[0] if found is not None else 0
            tables.connection.execute(
                f"COPY {name} TO {quoted(str(target.absolute()))} (FORMAT parquet, COMPRESSION zstd)"
            )
        readings = tables.readings
    return report, readings
