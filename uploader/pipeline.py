"""A path -> all its calls on a Weave server: find runs, resolve where they go, read, encode, ask, send, count."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..reader import Run, closed_folders, find_runs, iter_trajectories
from ..reader.runs import UNKNOWN
from ..reader.trees import Reading
from ..schemas.redaction import KeyPatterns
from .client import Client, Unreachable
from .ops import OBJECT_DIGEST, Ops, op_object_id
from .plan import batches
from .result import RunReport, UploadResult
from .sender import Sender, count_call
from .target import Target, resolve, split_project

__all__ = ["upload"]

Progress = Callable[[UploadResult], None]
# Requests under way at once. The server's inserts are what takes the time; more would only queue up there.
WORKERS = 4
# A torn end per killed worker is ordinary; more than this says nothing new.
DAMAGES_NOTED = 5


def upload(
    path: str | Path,
    *,
    entity: str | None = None,
    project: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    workers: int = WORKERS,
    max_wait: float = 300.0,
    redact: Sequence[str] = (),
) -> UploadResult:
    """Replay every run at `path` into its Weave project. Calls that the server has already are not sent again.

    `progress` is called, from any thread, with the result so far. `max_wait`: seconds for which a request may fail
    before the upload gives up. `redact`: patterns of keys whose values are left out. Memory is bounded by a few
    requests of 8 MiB, whatever the run's size.

    Raises:
        NotARun: there are no span files.
        MissingExtra, CannotStart: nothing was sent.
    """
    began = time.monotonic()
    result = UploadResult(dry_run=dry_run)
    tell = progress or (lambda _: None)
    patterns = KeyPatterns(redact) if redact else None
    # every target is resolved before the first call is sent: a second run with a bad name must not surprise half-way
    runs = find_runs(path)
    result.unreadable += closed_folders(path)
    for writer in (writer for run in runs for writer in run.writers):
        # looked at before reading: a process that ends meanwhile must not look as if it had left its calls unfinished
        _ = writer.state
    targets: dict[str | None, Target] = {}
    for name in () if dry_run else dict.fromkeys(_project_of(run) for run in runs):
        targets[name] = _reachable(resolve(name, entity=entity, project=project))
    for run in runs:
        target = targets.get(_project_of(run))
        report = _report(run, target, entity, project)
        result.runs.append(report)
        if target is None:
            _measure(run, report, lambda: tell(result), patterns)
        else:
            _replay(run, report, Client(target, max_wait=max_wait), workers, lambda: tell(result), patterns)
        result.seconds = time.monotonic() - began
        result.unreadable += report.unreadable
    return result


def _reachable(target: Target) -> Target:
    client = Client(target)
    client.check()
    client.disconnect()
    return target


def _project_of(run: Run) -> str | None:
    """The recorded name; None where damage has taken it."""
    return None if run.project_name == UNKNOWN else run.project_name


def _report(run: Run, target: Target | None, entity: str | None, project: str | None) -> RunReport:
    if target is not None:
        return RunReport(run.project_name, run.experiment_name, target.project_id, target.page)
    name = split_project(_project_of(run), entity, project)
    return RunReport(run.project_name, run.experiment_name, f"{name.entity or '(default entity)'}/{name.project}")


def _measure(run: Run, report: RunReport, tell: Callable[[], None], redact: KeyPatterns | None) -> None:
    """A dry run: everything but the network."""

    def op_ref(name: str) -> str:
        return f"weave:///{report.target}/op/{op_object_id(name)}:{OBJECT_DIGEST}"

    reading = Reading()
    for batch in batches(iter_trajectories(run, reading), report, report.target, op_ref, redact):
        for call in batch:
            count_call(report, call)
        tell()
    _note(report, reading)


def _replay(
    run: Run, report: RunReport, client: Client, workers: int, tell: Callable[[], None], redact: KeyPatterns | None
) -> None:
    ops = Ops(client)
    sender = Sender(client, report, tell)

    def op_ref(name: str) -> str:
        try:
            return ops.ref(name)
        except Unreachable as error:
            sender.give_up(str(error))
            return op_object_id(name)

    reading = Reading()
    with sender.running(workers):
        for batch in batches(iter_trajectories(run, reading), report, client.project_id, op_ref, redact):
            sender.put(batch)
    _note(report, reading)
    for name, words in ops.refused.items():
        report.note(f"the server refuses the op {name} as an object; its calls carry the plain name: {words}")
    if client.legacy:
        report.note("the server lacks /v2/…/calls/complete (an older version); calls went by /call/upsert_batch")


def _note(report: RunReport, reading: Reading) -> None:
    """What the files say beside calls."""
    if reading.skipped:
        report.note(f"{reading.skipped:,} trajectories were left out by sampling when they were recorded")
    if reading.lost_records:
        report.note(f"{reading.lost_records:,} records could not be written when they were recorded")
    report.unreadable += sorted({str(damage.path) for damage in reading.damages if damage.kind == "unreadable"})
    for damage in reading.damages[:DAMAGES_NOTED]:
        report.note(f"damaged: {damage.path.name} at byte {damage.offset}, {damage.length} bytes: {damage.reason}")
    if len(reading.damages) > DAMAGES_NOTED:
        report.note(f"{len(reading.damages) - DAMAGES_NOTED:,} more damaged places")
