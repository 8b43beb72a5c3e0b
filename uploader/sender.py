"""Worker threads between reading and the server: ask what is there, send what is not, count what became of it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator

from ..schemas.errors import Rejected
from .client import Client, Unreachable
from .heavy import Lightener
from .payload import Encoded
from .result import ALREADY_STORED, Failure, MovedField, RunReport

__all__ = ["Sender", "count_call"]

# Requests that may wait for a thread: with those under way, and the one being made, the bound of our memory.
QUEUED = 2


def count_call(report: RunReport, call: Encoded) -> None:
    """Note what is special about a call that was sent, or would be."""
    report.count(size=call.size, interrupted=call.interrupted, orphan=call.orphan, marked_texts=call.escaped)
    report.missing_contents += call.missing
    for field in call.moved:
        report.moved.append(MovedField(call.id, call.op, field.path, field.bytes))


class Sender:
    """Worker threads that ask and send. They are daemons: Ctrl-C does not wait for a request under way."""

    def __init__(self, client: Client, report: RunReport, tell: Callable[[], None]) -> None:
        self._client = client
        self._lightener = Lightener(client)
        self._report = report
        self._tell = tell
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[list[Encoded] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(QUEUED)
        self._given_up = ""
        self._bug: BaseException | None = None

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
            self._client.stop.set()
            raise
        finally:
            for _ in threads:
                self._work.put(None)
        for thread in threads:
            thread.join()
        if self._bug is not None:
            raise self._bug

    def put(self, batch: list[Encoded]) -> None:
        """Hand over a request; waits while enough are under way."""
        self._room.acquire()
        self._work.put(batch)

    def give_up(self, why: str) -> None:
        """Send nothing more; what comes is counted as failed."""
        self._given_up = self._given_up or why

    def _run(self) -> None:
        while True:
            batch = self._work.get()
            if batch is None:
                self._client.disconnect()
                return
            self._room.release()
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
        self._lighten(left)
        outcome = self._client.store(list(left.values()), frozenset(known) & frozenset(left))
        self._settle(left, [call.id for call in outcome.stored], outcome.refused)

    def _lighten(self, left: dict[str, Encoded]) -> None:
        """Files for what is too large for a row; a call whose files are refused is failed, its neighbours go on."""
        for key, call in list(left.items()):
            try:
                left[key] = self._lightener.ready(call)
            except Rejected as error:
                self._settle(left, [], [(call, f"a file of it is refused: {error}")])

    def _settle(self, left: dict[str, Encoded], stored: list[str], refused: list[tuple[Encoded, str]]) -> None:
        with self._lock:
            for key in stored:
                self._report.sent += 1
                count_call(self._report, left.pop(key))
            for call, words in refused:
                self._report.fail(Failure(call.id, call.trace_id, call.op, words))
                left.pop(call.id, None)
