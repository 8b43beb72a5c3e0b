"""The thread that compresses: as nice as can be, and apart from the one that must not be late.

It runs while there is something to compress and belongs to one pid. A file that could not be sealed is tried again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from .counters import warn_once
from .sealing import seal, sync_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Sealer", "started"]

# How long a file that could not be sealed waits for its next try, in seconds.
SEAL_AGAIN = 30.0


class Sealer:
    """`put` hands over finished raw segments; `leftovers` are small pieces of work for when none waits."""

    def __init__(self, leftovers: Iterator[object] | None = None) -> None:
        self._leftovers = leftovers
        self._waiting: deque[Path] = deque()
        self._failed: deque[tuple[float, Path]] = deque()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def put(self, raw: Path) -> None:
        """Seal a finished raw segment soon."""
        self._waiting.append(raw)
        self.start()

    def start(self) -> None:
        """Start the thread where there is something to do for it."""
        with self._lock:
            if self._thread is None and (self._waiting or self._leftovers is not None) and not self._stopping:
                self._thread = started("verl-trace-seal", self._run)

    def try_again(self) -> None:
        """Hand over once more what failed a while ago."""
        while self._failed and self._failed[0][0] <= time.monotonic():
            self.put(self._failed.popleft()[1])

    def stop(self) -> None:
        """End the thread after the file it is at; what is put from now on waits for `finish`."""
        with self._lock:
            self._stopping = True

    def finish(self) -> None:
        """Seal what waits in the caller's thread, which is not nice; then wait for the file the other one is at."""
        self.stop()
        thread = self._thread
        self._waiting.extend(raw for _, raw in self._failed)
        while self._waiting:
            # two threads take from it
            with contextlib.suppress(IndexError):
                self._seal(self._waiting.popleft())
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        _be_nice()
        while not self._stopping:
            with contextlib.suppress(IndexError):
                self._seal(self._waiting.popleft())
                continue
            if not self._take_leftover():
                with self._lock:
                    if not self._waiting:
                        self._thread = None
                        return

    def _seal(self, raw: Path) -> None:
        try:
            seal(raw)
        except FileNotFoundError:
            # removed by somebody
            return
        except Exception as error:  # noqa: BLE001
            with contextlib.suppress(OSError):
                sync_file(raw)
            if not self._stopping:
                self._failed.append((time.monotonic() + SEAL_AGAIN, raw))
            text = getattr(error, "strerror", None) or str(error)
            warn_once("seal", f"{raw}: not compressed: {text}; the raw file is complete and tried again")

    def _take_leftover(self) -> bool:
        """Do one of them; False when there is none."""
        if self._leftovers is not None:
            try:
                next(self._leftovers)
                return True
            except (StopIteration, OSError, ImportError):
                self._leftovers = None
        return False


def started(name: str, run: Callable[[], None]) -> threading.Thread | None:
    """A daemon thread that runs; None while the interpreter ends, or where no more threads are allowed."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _be_nice() -> None:
    """Let training have the processor first; on Linux this is a matter of the thread alone."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
