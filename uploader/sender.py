"""Worker threads between reading and the server: ask what is there, send what is not, check, count what it came to."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator

from ..schemas.errors import Rejected
from .check import DIFFERS, compare, count_traces, same_in_brief
from .client import Client, Unreachable
from .heavy import Lightener
from .ledger import Ledger
from .ops import Ops, expected_ref
from .outcome import Outcome, Refused
from .payload import Encoded
from .plan import MAX_TRACES, Batch, Trace
from .result import ALREADY_STORED, STORED_OTHERWISE, Difference, Failure, MovedField, RunReport

__all__ = ["Sender", "count_call"]

# Requests that may wait for a thread: with those under way, and the one being made, the bound of our memory.
QUEUED = 2
# Calls read back in one question when they are compared, and bytes of them.
COMPARED_CALLS = 100
COMPARED_BYTES = 8 << 20
_VANISHED = "the server confirmed the call and does not show it"


def count_call(report: RunReport, call: Encoded) -> None:
    """Note what is special about a call that was sent, or would be."""
    report.count(size=call.size, interrupted=call.interrupted, orphan=call.orphan, marked_texts=call.escaped)
    report.missing_contents += call.missing
    report.fields_left_out += call.left_out
    if call.wandb_run is None and call.attempt in report.why_without:
        report.without_link[call.attempt] += 1
    for field in call.moved:
        report.moved.append(MovedField(call.id, call.op, field.path, field.bytes))


class Sender:
    """Worker threads that ask and send. They are daemons: Ctrl-C does not wait for a request under way.

    `check` is one of `check.CHECKS`. `trusting`: what the ledger remembers is not checked. `disowned`: trace ids that
    the ledger remembers and the server does not have.
    """

    def __init__(
        self,
        client: Client,
        ops: Ops,
        report: RunReport,
        tell: Callable[[], None],
        *,
        ledger: Ledger | None,
        check: str,
        trusting: bool = False,
    ) -> None:
        self._client = client
        self._ops = ops
        # op name -> what calls refer to unless the server says otherwise
        self._op_refs: dict[str, str] = {}
        self._lightener = Lightener(client)
        client.lighten = self._lightener.refused
        self._report = report
        self._tell = tell
        self._ledger = ledger
        self._check = check
        self._trusting = trusting
        self._lock = threading.Lock()
        # requests, and names of ops to be published before them
        self._work: queue.SimpleQueue[Batch | str | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(QUEUED)
        self._given_up = ""
        self._bug: BaseException | None = None
        # trajectories that are dealt with, and of which the server was not asked yet
        self._unchecked: list[Trace] = []
        self.disowned: set[str] = set()

    @contextlib.contextmanager
    def running(self, workers: int) -> Iterator[None]:
        """Everything put inside the block is dealt with when it ends. An exception inside lets go of what is left."""
        threads = [threading.Thread(target=self._run, name=f"upload-{i}", daemon=True) for i in range(workers)]
        for thread in threads:
            thread.start()
        try:
            yield
        except BaseException:
            self.give_up("stopped")
            raise
        finally:
            for _ in threads:
                self._work.put(None)
        for thread in threads:
            thread.join()
        if self._bug is not None:
            raise self._bug
        self._check_what_is_due(at_least=1)
        self._report.stopped = self._report.stopped or self._given_up
        self._report.for_good = bool(self._report.stopped) and self._client.refused_for_good

    def op_ref(self, name: str) -> str:
        """What calls of this op refer to; it is published while more is read, and before any of them is sent."""
        ref = self._op_refs.get(name)
        if ref is None:
            ref = self._op_refs[name] = expected_ref(self._client.project_id, name)
            self._work.put(name)
        return ref

    def put(self, batch: Batch) -> None:
        """Hand over a request; waits while enough are under way."""
        self._room.acquire()
        self._work.put(batch)

    def give_up(self, why: str) -> None:
        """Send nothing more; what comes is counted as failed. Who waits for the server waits no longer."""
        self._given_up = self._given_up or why
        self._client.stop.set()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            try:
                if isinstance(work, str):
                    self._publish(work)
                else:
                    self._room.release()
                    self._deal_with(work)
            except BaseException as error:  # noqa: BLE001
                # shown by the thread that started the upload; the work goes on so that it does not block
                self._bug = self._bug or error
                self.give_up(f"{type(error).__name__}: {error}")

    def _publish(self, op: str) -> None:
        if self._given_up:
            return
        try:
            self._ops.ref(op)
        except Unreachable as error:
            self.give_up(str(error))

    def _deal_with(self, batch: Batch) -> None:
        left = {call.id: call for call in batch.calls}
        if not batch.calls:
            self._remembered(batch)
        try:
            if left and not self._given_up:
                self._ask_and_send(batch, left)
        except Unreachable as error:
            if error.outcome is not None:
                self._settle(batch, left, error.outcome)
            self.give_up(str(error))
        except Rejected as error:
            self.give_up(str(error))
        if left:
            unsent = [Refused(call, f"not sent: {self._given_up}", "") for call in left.values()]
            self._settle(batch, left, Outcome(refused=unsent))
            with self._lock:
                self._report.unsent += len(unsent)
        self._check_what_is_due(at_least=MAX_TRACES)
        self._tell()

    def _remembered(self, batch: Batch) -> None:
        traces = list(batch.traces.values())
        with self._lock:
            self._report.skipped[ALREADY_STORED] += sum(len(trace.ids) for trace in traces)
            self._unchecked += [] if self._trusting else traces

    def _ask_and_send(self, batch: Batch, left: dict[str, Encoded]) -> None:
        rows = self._client.rows(list(left), ("id", "ended_at", "attributes", "wb_run_id"))
        known = {row["id"]: row for row in rows}
        self._refer_to_ops(left)
        there = [left.pop(key) for key, row in known.items() if row.get("ended_at") is not None and key in left]
        same = {call.id for call in there if same_in_brief(call, known[call.id])}
        with self._lock:
            for call in there:
                if call.wandb_run is not None and not known[call.id].get("wb_run_id"):
                    self._report.lacks_link(call.id, call.op, call.wandb_run)
                self._report.skipped[ALREADY_STORED if call.id in same else STORED_OTHERWISE] += 1
                batch.traces[call.trace_id].otherwise += call.id not in same
                self._done(batch, call)
        if self._check == "deep":
            # in the form in which they were sent
            self._compare([self._lightener.ready(call) for call in there])
        if not left:
            return
        self._lighten(batch, left)
        outcome = self._client.store(list(left.values()), frozenset(known) & frozenset(left))
        self._settle(batch, left, outcome)
        if self._check == "deep":
            self._compare(outcome.stored)

    def _refer_to_ops(self, left: dict[str, Encoded]) -> None:
        """Wait until the ops are published; where the server has another reference than expected, calls get that."""
        refs = {name: self._ops.ref(name) for name in {call.op for call in left.values()}}
        other = {name: ref for name, ref in refs.items() if ref != self._op_refs.get(name)}
        for key, call in left.items() if other else ():
            if call.op in other:
                left[key] = call.referring_to(other[call.op])

    def _lighten(self, batch: Batch, left: dict[str, Encoded]) -> None:
        """Files for what is too large for a row; a call whose files are refused is failed, its neighbours go on."""
        for key, call in list(left.items()):
            try:
                left[key] = self._lightener.ready(call)
            except Rejected as error:
                refused = Refused(call, f"a file of it is refused: {error}", "")
                self._settle(batch, left, Outcome(refused=[refused]))

    def _settle(self, batch: Batch, left: dict[str, Encoded], outcome: Outcome) -> None:
        with self._lock:
            for call in outcome.stored:
                self._report.sent += 1
                count_call(self._report, call)
                batch.traces[call.trace_id].sent.add(call.id)
                self._done(batch, left.pop(call.id))
            for call, words, field in outcome.refused:
                self._report.fail(Failure(call.id, call.trace_id, call.op, words, field))
                batch.traces[call.trace_id].failed.add(call.id)
                self._done(batch, left.pop(call.id))
            self._report.lightened += outcome.lightened

    def _done(self, batch: Batch, call: Encoded) -> None:
        trace = batch.traces[call.trace_id]
        trace.left -= 1
        if not trace.left:
            self._unchecked.append(trace)

    def _compare(self, calls: list[Encoded]) -> None:
        for piece in _pieces(calls):
            rows = {row["id"]: row for row in self._client.rows([call.id for call in piece])}
            found = [
                difference
                for call in piece
                for difference in (
                    compare(call, rows[call.id])
                    if call.id in rows
                    else [Difference(call.id, call.op, "(the whole call)", DIFFERS)]
                )
            ]
            read_back = [call for call in piece if call.id in rows]
            with self._lock:
                self._report.compared = (self._report.compared or 0) + len(read_back)
                self._report.compared_bytes += sum(call.size for call in read_back)
                for difference in found:
                    self._report.differ(difference)

    def _check_what_is_due(self, *, at_least: int) -> None:
        """Check trajectories once there are enough of them, and then remember them."""
        while True:
            with self._lock:
                if len(self._unchecked) < at_least:
                    return
                traces, self._unchecked = self._unchecked[:MAX_TRACES], self._unchecked[MAX_TRACES:]
            if self._check != "none" and not self._given_up:
                try:
                    self._count(traces)
                except Unreachable as error:
                    self.give_up(f"while checking what was sent: {error}")
                except Rejected as error:
                    with self._lock:
                        self._report.note(f"the server does not count calls, so it was not checked: {error}")
            # what was not checked because the server is gone is asked for again the next time
            if self._given_up:
                continue
            with self._lock:
                if self._ledger is not None:
                    # what is stored otherwise is to be told each time
                    whole = [trace for trace in traces if not trace.failed]
                    self._ledger.add(trace.mark for trace in whole if not trace.otherwise)
                    self._ledger.add_otherwise((trace.mark, trace.otherwise) for trace in whole if trace.otherwise)

    def _count(self, traces: list[Trace]) -> None:
        counted = count_traces(self._client, traces)
        with self._lock:
            for trace, key in counted.missing:
                trace.failed.add(key)
                if trace.remembered:
                    continue
                if key in trace.sent:
                    self._report.sent -= 1
                else:
                    self._report.skipped[ALREADY_STORED] -= 1
                self._report.fail(Failure(key, trace.trace_id, "", _VANISHED))
            for trace in traces:
                if trace.remembered and trace.failed:
                    self.disowned.add(trace.trace_id)
                    self._report.skipped[ALREADY_STORED] -= len(trace.ids)
                else:
                    self._report.checked = (self._report.checked or 0) + trace.expected
            self._report.more += counted.more


def _pieces(calls: list[Encoded]) -> Iterator[list[Encoded]]:
    piece: list[Encoded] = []
    size = 0
    for call in calls:
        if piece and (len(piece) == COMPARED_CALLS or size + call.size > COMPARED_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(call)
        size += call.size
    if piece:
        yield piece
