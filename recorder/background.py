"""The one background thread of a recording: seals, syncs, watches the disk, decodes text. It belongs to one pid."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from .counters import warn_once
from .sealing import seal, sync_file
from .settings import MIN_SEAL_BYTES, Settings
from .writer import SegmentWriter

__all__ = ["EXIT_PATIENCE", "Background"]

# How soon trouble and an old segment are noticed, in seconds.
TICK = 0.5
# How long a file that could not be sealed waits for its next try, in seconds.
SEAL_AGAIN = 30.0
# Jobs (token ids held for decoding) that may wait; more are counted, their ids are in the files anyway.
MAX_JOBS = 4096
# A process that ends waits at most this long, in seconds; half of it for text still to be decoded.
EXIT_PATIENCE = 10.0


class Background:
    """Started with the recording; in a forked child by its first record.

    `leftovers` are small pieces of work, one a round, for when nothing else is to be done.
    """

    def __init__(self, writer: SegmentWriter, settings: Settings, leftovers: Iterator[object] | None = None):
        self._writer = writer
        self._settings = settings
        self._leftovers = leftovers
        # its put may interrupt itself (signal handlers, finalisers), which an Event's set may not
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._unsealed: deque[Path] = deque()
        self._seal_at = 0.0
        self._synced = 0.0
        self._stopping = False
        self._ends_itself = False
        self._last: Callable[[], object] = writer.close
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs; without one (the interpreter ends) files are not sealed."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = _started("verl-trace", self._run)

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

    def stop(self, last: Callable[[], None]) -> bool:
        """Finish waiting jobs, run `last`, end the thread; False when a sick disk did not let it end in time."""
        self._last = last
        thread = self._thread if self._thread is not None and self._thread.is_alive() else None
        # a thread of its own is not as nice as the other one, and is left behind where the disk hangs
        ending = _started("verl-trace-end", lambda: self._end(thread))
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
            # it may be compressing a large file, which must not keep the last one from being closed
            thread.join(EXIT_PATIENCE / 4)
        self._finish()

    def after_fork(self) -> None:
        """In a forked child the thread is gone, and waiting jobs and old files are the parent's."""
        self.__init__(self._writer, self._settings)  # type: ignore[misc]

    def _run(self) -> None:
        _be_nice()
        self._synced = time.monotonic()
        while not self._stopping:
            self._round()
            job = None
            with contextlib.suppress(queue.Empty):
                job = self._jobs.get(timeout=0.0 if self._leftovers is not None else TICK)
            if job is not None:
                self._guarded("decoding", job)
                self._run_jobs(time.monotonic() + TICK)
        if self._ends_itself:
            self._finish()

    def _round(self) -> None:
        self._guarded("draining", self._writer.drain)
        self._guarded("checking the disk", self._writer.check_health)
        self._guarded("sealing", self.seal_if_due)
        if self._settings.fsync_interval and time.monotonic() - self._synced >= self._settings.fsync_interval:
            self._guarded("syncing", self._writer.sync)
            self._synced = time.monotonic()
        self._guarded("sealing what others left", self._take_leftover)
        self._guarded("telling", self._writer.tell)

    def _finish(self) -> None:
        self._run_jobs(time.monotonic() + EXIT_PATIENCE / 2)
        self._guarded("closing", self._last)
        self._seal_at = 0.0
        self._guarded("sealing", self._seal_waiting)

    def _run_jobs(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                self._guarded("decoding", job)

    def seal_if_due(self) -> None:
        """Rotate a large or old segment and seal what was finished."""
        if self._writer.rotation_due(MIN_SEAL_BYTES):
            finished = self._writer.rotate()
            if finished is not None:
                self._unsealed.append(finished)
                self._seal_at = 0.0
        self._seal_waiting()

    def seal_later(self, finished: Path) -> None:
        """Hand over a finished raw segment."""
        self._unsealed.append(finished)

    def _seal_waiting(self) -> None:
        self._unsealed.extend(self._writer.leftovers())
        if time.monotonic() < self._seal_at:
            return
        for _ in range(len(self._unsealed)):
            # at exit two threads take from it
            with contextlib.suppress(IndexError):
                self._seal(self._unsealed.popleft())

    def _seal(self, raw: Path) -> None:
        try:
            seal(raw)
        except FileNotFoundError:
            # removed by somebody
            return
        except Exception as error:  # noqa: BLE001
            with contextlib.suppress(OSError):
                sync_file(raw)
            self._unsealed.append(raw)
            self._seal_at = time.monotonic() + SEAL_AGAIN
            text = getattr(error, "strerror", None) or str(error)
            warn_once("seal", f"{raw}: not compressed: {text}; the raw file is complete and tried again")

    def _take_leftover(self) -> None:
        if self._leftovers is None:
            return
        try:
            next(self._leftovers)
        except (StopIteration, OSError):
            self._leftovers = None

    def _guarded(self, what: str, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001
            warn_once(
                f"background-{what}", f"{what} failed: {type(error).__name__}: {error}; raw files stay as they are"
            )


def _started(name: str, run: Callable[[], None]) -> threading.Thread | None:
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # while the interpreter ends, or where no more threads are allowed
        return None
    return thread


def _be_nice() -> None:
    """Let training have the processor first; on Linux this is a matter of the thread alone."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
