"""A path -> all its calls on a Weave server: find runs, resolve where they go, read, encode, ask, send, count."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..reader import Run, find_runs, iter_trajectories
from ..reader.runs import UNKNOWN
from ..reader.trees import Reading
from ..schemas.errors import Rejected
from .client import Client, Unreachable
from .ops import OBJECT_DIGEST, Ops, op_object_id
from .payload import Encoded
from .plan import batches
from .result import ALREADY_STORED, Failure, RunReport, UploadResult
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
) -> UploadResult:
    """Replay every run at `path` into its Weave project. Calls that the server has already are not sent again.

    `progress` is called, from any thread, with the result so far. `max_wait`: seconds that the server may fail without
    one success between. Memory is bounded by a few requests of 8 MiB, whatever the run's size.

    Raises:
        NotARun: there are no span files.
        MissingExtra, CannotStart: nothing was sent.
    """
    began = time.monotonic()
    result = UploadResult(dry_run=dry_run)
    tell = progress or (lambda _: None)
    # every target is resolved before the first call is sent: a second run with a bad name must not surprise half-way
    runs = find_runs(path)
    for writer in (writer for run in runs for writer in run.writers):
        # looked at before reading: a process that ends meanwhile must not look as if it had left its calls unfinished
        _ = writer.state
    planned = [(run, _plan(run, entity, project, dry_run)) for run in runs]
    for run, target in planned:
        report = _report(run, target, entity, project)
        result.runs.append(report)
        if target is None:
            _measure(run, report, lambda: tell(result))
        else:
            _replay(run, report, Client(target, max_wait=max_wait), workers, lambda: tell(result))
        result.seconds = time.monotonic() - began
    return result


def _plan(run: Run, entity: str | None, project: str | None, dry_run: bool) -> Target | None:
    if dry_run:
        return None
    target = resolve(_project_of(run), entity=entity, project=project)
    Client(target).check()
    return target


def _project_of(run: Run) -> str | None:
    """The recorded name; None where damage has taken it."""
    return None if run.project_name == UNKNOWN else run.project_name


def _report(run: Run, target: Target | None, entity: str | None, project: str | None) -> RunReport:
    if target is not None:
        return RunReport(run.project_name, run.experiment_name, target.project_id, target.page)
    name = split_project(_project_of(run), entity, project)
    return RunReport(run.project_name, run.experiment_name, f"{name.entity or '(default entity)'}/{name.project}")


def _measure(run: Run, report: RunReport, tell: Callable[[], None]) -> None:
    """A dry run: everything but the network."""

    def op_ref(name: str) -> str:
        return f"weave:///{report.target}/op/{op_object_id(name)}:{OBJECT_DIGEST}"

    reading = Reading()
    for batch in batches(iter_trajectories(run, reading), report, report.target, op_ref):
        for call in batch:
            _count(report, call)
        tell()
    _note(report, reading)


def _replay(run: Run, report: RunReport, client: Client, workers: int, tell: Callable[[], None]) -> None:
    ops = Ops(client)
    sender = _Sender(client, report, tell)

    def op_ref(name: str) -> str:
        try:
            return ops.ref(name)
        except Unreachable as error:
            sender.give_up(str(error))
            return op_object_id(name)

    reading = Reading()
    with sender.running(workers):
        for batch in batches(iter_trajectories(run, reading), report, client.project_id, op_ref):
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
    for damage in reading.damages[:DAMAGES_NOTED]:
        report.note(f"damaged: {damage.path.name} at byte {damage.offset}, {damage.length} bytes: {damage.reason}")
    if len(reading.damages) > DAMAGES_NOTED:
        report.note(f"{len(reading.damages) - DAMAGES_NOTED:,} more damaged places")


def _count(report: RunReport, call: Encoded) -> None:
    report.count(size=call.size, interrupted=call.interrupted, orphan=call.orphan, marked_texts=call.escaped)


class _Sender:
    """Worker threads that ask and send. They are daemons: Ctrl-C does not wait for a request under way."""

    def __init__(self, client: Client, report: RunReport, tell: Callable[[], None]) -> None:
        self._client = client
        self._report = report
        self._tell = tell
        self._lock = threading.Lock()
        self._work: queue.Queue[list[Encoded] | None] = queue.Queue(maxsize=2)
        self._given_up = ""
        self._bug: BaseException | None = None

    @contextlib.contextmanager
    def running(self, workers: int) -> Iterator[None]:
        """Everything put inside the block is dealt with when it ends."""
        threads = [threading.Thread(target=self._run, name=f"upload-{i}", daemon=True) for i in range(workers)]
        for thread in threads:
            thread.start()
        yield
        for _ in threads:
            self._work.put(None)
        for thread in threads:
            thread.join()
        if self._bug is not None:
            raise self._bug

    def put(self, batch: list[Encoded]) -> None:
        """Hand over a request; waits while enough are under way."""
        self._work.put(batch)

    def give_up(self, why: str) -> None:
        """Send nothing more; what comes is counted as failed."""
        self._given_up = self._given_up or why

    def _run(self) -> None:
        while True:
            batch = self._work.get()
            if batch is None:
                return
            try:
                self._deal_with(batch)
            except BaseException as error:  # noqa: BLE001
                # shown by the thread that started the upload; the work goes on so that it does not block
                self._bug = self._bug or error
                self.give_up(f"{type(error).__name__}: {error}")

    def _deal_with(self, batch: list[Encoded]) -> None:
        left = {call.id: call for call in batch}
        try:
            if not self._given_up:
                self._ask_and_send(left)
        except Unreachable as error:
            if error.outcome is not None:
                self._settle(left, [call.id for call in error.outcome.stored], error.outcome.refused)
            self.give_up(str(error))
        except Rejected as error:
            self.give_up(str(error))
        if left:
            self._settle(left, [], [(call, f"not sent: {self._given_up}") for call in list(left.values())])
        self._tell()

    def _ask_and_send(self, left: dict[str, Encoded]) -> None:
        known = self._client.existing(list(left))
        stored = [key for key, ended in known.items() if ended and key in left]
        with self._lock:
            self._report.skipped.update([ALREADY_STORED] * len(stored))
        for key in stored:
            del left[key]
        if not left:
            return
        outcome = self._client.store(list(left.values()), frozenset(known) & frozenset(left))
        self._settle(left, [call.id for call in outcome.stored], outcome.refused)

    def _settle(self, left: dict[str, Encoded], stored: list[str], refused: list[tuple[Encoded, str]]) -> None:
        with self._lock:
            for key in stored:
                self._report.sent += 1
                _count(self._report, left.pop(key))
            for call, words in refused:
                self._report.fail(Failure(call.id, call.trace_id, call.op, words))
                left.pop(call.id, None)
