"""The one background thread of a recording: seals, syncs, watches the disk, decodes text. It belongs to one pid."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from .counters import warn_once
from .sealing import seal
from .settings import MIN_SEAL_BYTES, Settings
from .writer import SegmentWriter

__all__ = ["Background"]

# How soon trouble and a full segment are noticed, in seconds.
TICK = 0.5
# Jobs (token ids held for decoding) that may wait; more are counted, their ids are in the files anyway.
MAX_JOBS = 4096
# A process that ends waits at most this long, in seconds; half of it for text still to be decoded.
EXIT_PATIENCE = 10.0


class Background:
    """Started with the recording, started again by the first job in a forked child."""

    def __init__(self, writer: SegmentWriter, settings: Settings) -> None:
        self._writer = writer
        self._settings = settings
        self._jobs: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._last: Callable[[], None] = writer.drain
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs; quietly does nothing while the interpreter shuts down."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._run, name="verl-trace", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None

    def submit(self, job: Callable[[], None]) -> bool:
        """Queue a job; False when too many wait."""
        if len(self._jobs) >= MAX_JOBS:
            return False
        self._jobs.append(job)
        if not self._wake.is_set():
            self._wake.set()
        if self._thread is None:
            self.start()
        return True

    def wake(self) -> None:
        """Look at the segment's size now."""
        self._wake.set()

    def stop(self, last: Callable[[], None]) -> bool:
        """Finish waiting jobs, run `last`, end the thread; False when a sick disk did not let it end in time."""
        self._last = last
        self._stopping = True
        self._wake.set()
        thread = self._thread
        if thread is None or not thread.is_alive():
            self._finish()
            return True
        thread.join(EXIT_PATIENCE)
        return not thread.is_alive()

    def after_fork(self) -> None:
        """In a forked child the thread is gone, and waiting jobs are the parent's."""
        self.__init__(self._writer, self._settings)  # type: ignore[misc]

    def _run(self) -> None:
        _be_nice()
        synced = time.monotonic()
        while not self._stopping:
            self._wake.wait(TICK)
            self._wake.clear()
            self._guarded("decoding", lambda: self._run_jobs(time.monotonic() + TICK))
            self._guarded("draining", self._writer.drain)
            self._guarded("checking the disk", self._writer.check_health)
            self._guarded("sealing", self.seal_if_due)
            if self._settings.fsync_interval and time.monotonic() - synced >= self._settings.fsync_interval:
                self._guarded("syncing", self._writer.sync)
                synced = time.monotonic()
        self._finish()

    def _finish(self) -> None:
        self._guarded("decoding", lambda: self._run_jobs(time.monotonic() + EXIT_PATIENCE / 2))
        self._guarded("closing", self._last)

    def _run_jobs(self, deadline: float) -> None:
        while self._jobs:
            self._guarded("decoding", self._jobs.popleft())
            if time.monotonic() > deadline:
                self._wake.set()
                return

    def seal_if_due(self) -> None:
        """Rotate a large or old segment and seal what was finished."""
        if self._writer.rotation_due(MIN_SEAL_BYTES):
            finished = self._writer.rotate()
            if finished is not None:
                seal(finished)

    def _guarded(self, what: str, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001
            warn_once(
                f"background-{what}", f"{what} failed: {type(error).__name__}: {error}; raw files stay as they are"
            )


def _be_nice() -> None:
    """Let training have the processor first; on Linux this is a matter of the thread alone."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
