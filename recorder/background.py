"""The thread of a recording that must not be late: rotates, syncs, watches the disk, decodes text. It belongs to one
pid. Compressing is left to a nicer one (`sealer`)."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from ..schemas import repeats, sha256
from .counters import warn_once
from .loading import loading
from .sealer import Sealer, started
from .settings import MIN_SEAL_BYTES, Settings
from .writer import SegmentWriter

try:
    # what `queue` adds loads two modules more, at every start
    from _queue import Empty, SimpleQueue
except ImportError:
    from queue import Empty, SimpleQueue

__all__ = ["EXIT_PATIENCE", "Background"]

# How soon trouble and an old segment are noticed, in seconds.
TICK = 0.5
# What is not urgent begins this much after the recording, in seconds: a training that starts has the interpreter first.
CALM = 0.05
# Jobs (token ids held for decoding) that may wait; more are counted, their ids are in the files anyway.
MAX_JOBS = 4096
# A process that ends waits at most this long, in seconds; half of it for text still to be decoded.
EXIT_PATIENCE = 10.0


class Background:
    """Started with the recording; in a forked child by its first record. `leftovers`: see `Sealer`."""

    def __init__(self, writer: SegmentWriter, settings: Settings, leftovers: Iterator[object] | None = None) -> None:
        self.sealer = Sealer(leftovers)
        self._writer = writer
        self._settings = settings
        # Its put may interrupt itself (signal handlers, finalisers), which an Event's set may not. Where `queue` is
        # loaded, its own: gevent puts another one there, and waiting with C's would stop all of its threads.
        make: Callable[[], SimpleQueue[Callable[[], None] | None]]
        make = getattr(sys.modules.get("queue"), "SimpleQueue", SimpleQueue)
        self._jobs = make()
        self._synced = 0.0
        self._stopping = False
        self._ends_itself = False
        self._last: Callable[[], object] = writer.close
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs; without one (the interpreter ends) files are not sealed."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = started("verl-trace", self._run)

    def submit(self, job: Callable[[], None]) -> bool:
        """Queue a job; False when too many wait."""
        if self._jobs.qsize() >= MAX_JOBS:
            return False
        self._jobs.put(job)
        if self._thread is None:
            self.start()
        return True

    def wake(self) -> None:
        """Look at the segment's size now."""
        self._jobs.put(None)

    def stop(self, last: Callable[[], object]) -> bool:
        """Finish waiting jobs, run `last`, seal, end; False when not all of it was done in time."""
        self._last = last
        thread = self._thread if self._thread is not None and self._thread.is_alive() else None
        # a thread of its own can be left behind where the disk hangs
        ending = started("verl-trace-end", lambda: self._end(thread))
        self._ends_itself = ending is None
        self._stopping = True
        self.wake()
        ending = ending or thread
        if ending is None:
            self._finish()
            return True
        ending.join(EXIT_PATIENCE)
        return not ending.is_alive()

    def _end(self, thread: threading.Thread | None) -> None:
        if thread is not None:
            thread.join()
        self._finish()

    def after_fork(self) -> None:
        """In a forked child the threads are gone, and waiting jobs and old files are the parent's."""
        self.__init__(self._writer, self._settings)  # type: ignore[misc]

    def _run(self) -> None:
        self._synced = time.monotonic()
        if not self._writer.is_stalled:
            self._be_calm()
        if not self._stopping:
            self.sealer.start()
            with loading():
                repeats.prepare()
                sha256.prepare()
        while not self._stopping:
            self._round()
            self._take_jobs(TICK)
        if self._ends_itself:
            self._finish()

    def _be_calm(self) -> None:
        """Wait, also with the jobs that come, unless a segment is full or the process ends."""
        end, jobs = time.monotonic() + CALM, []
        with contextlib.suppress(Empty):
            while (job := self._jobs.get(timeout=max(0.0, end - time.monotonic()))) is not None:
                jobs.append(job)
        for job in jobs:
            self._jobs.put(job)

    def _take_jobs(self, patience: float) -> None:
        job = None
        with contextlib.suppress(Empty):
            job = self._jobs.get(timeout=patience)
        if job is not None:
            self._guarded("decoding", job)
            self._run_jobs(time.monotonic() + TICK)

    def _round(self) -> None:
        self._guarded("draining", self._writer.drain)
        self._guarded("checking the disk", self._writer.check_health)
        self._guarded("rotating", self.rotate_if_due)
        if self._settings.fsync_interval and time.monotonic() - self._synced >= self._settings.fsync_interval:
            self._guarded("syncing", self._writer.sync)
            self._synced = time.monotonic()
        self._guarded("telling", self._writer.tell)

    def _finish(self) -> None:
        self._run_jobs(time.monotonic() + EXIT_PATIENCE / 2)
        self.sealer.stop()
        self._guarded("closing", self._last)
        self._guarded("sealing", self.sealer.finish)

    def _run_jobs(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if job is not None:
                self._guarded("decoding", job)

    def rotate_if_due(self) -> None:
        """Go on in a new segment when the open one is large or old; hand over what is finished."""
        if self._writer.rotation_due(MIN_SEAL_BYTES):
            finished = self._writer.rotate()
            if finished is not None:
                self.sealer.put(finished)
        for left in self._writer.leftovers():
            self.sealer.put(left)
        self.sealer.try_again()

    def _guarded(self, what: str, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001
            warn_once(
                f"background-{what}", f"{what} failed: {type(error).__name__}: {error}; raw files stay as they are"
            )
