"""The recording of this process: at most one at a time; `start`, `stop`, `current`."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator

from ..schemas import repeats
from ..schemas.files import ATTEMPT_PREFIX, run_folder_name
from ..schemas.interrupts import pass_on
from ..schemas.redaction import redact_keys
from ..schemas.wording import counted
from . import counters, ids, loading
from .background import EXIT_PATIENCE, Background
from .counters import Counters, announce, warn_once
from .identity import Identity
from .settings import Settings, disabled, mistyped, read_settings
from .writer import SegmentWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Session", "current", "start", "stop"]


class Session:
    """Everything one recording owns. Created by `start`, ended by `stop` or at exit."""

    def __init__(self, about: dict[str, Any], settings: Settings, attempt: str | None = None) -> None:
        self.about = about
        self.settings = settings
        self.counters = Counters()
        self.identity = Identity(attempt)
        self.experiment_name: str = about["experiment_name"]
        # what other processes need to join, put together when first asked for
        self.remembered: dict[str, Any] | None = None
        self.token2text: bool = about["token2text"]
        self.folder = os.path.join(settings.folder, run_folder_name(self.experiment_name))
        self.writer = SegmentWriter(self.folder, self.identity, about, settings, self.counters)
        self.background = Background(self.writer, settings, _raw_of_others(self.folder, self.identity.writer))
        self.append = self.writer.append
        self.side = self.writer.side
        self.writer.on_open = self._opened
        self.writer.on_full = self.side.on_queued = self.background.wake
        redact_keys(settings.redact)

    def open(self) -> None:
        """Put the header on disk, say where, start the background thread."""
        first = self.writer.open() and self._announce()
        self.background.start()
        if first:
            # on the background thread: finding out reads a table of the kernel's, or loads a module
            self.background.submit(self._warn_of_names)
            if not self.settings.collected:
                self.background.submit(self._warn_of_the_place)

    def _opened(self) -> None:
        """A first segment is open: in a forked child its first record, later after trouble."""
        self.background.start()
        if current() is self:
            _close_with_multiprocessing()

    def close(self) -> None:
        """Finish decoding, close and seal the open segment; give up after some seconds on a disk that hangs."""
        if not self.background.stop(self._close):
            self.writer.tell()
            path, waiting = self.writer.path, self.writer.waiting
            if path is not None:
                warn_once("hangs", f"{path}: the disk hangs; leaving with {counted(waiting, 'record')} not written")
            else:
                announce(f"{self.folder}: leaving before all is compressed; the raw files are complete")

    def _close(self) -> None:
        finished = self.writer.close(patience=EXIT_PATIENCE / 4)
        for left in [*self.writer.leftovers(), *([finished] if finished is not None else [])]:
            self.background.sealer.put(left)

    def fork(self) -> None:
        """Called in a forked child."""
        self.counters = Counters()
        self.identity = Identity(self.identity.attempt)
        self.writer.after_fork(self.identity, self.counters)
        self.background.after_fork()

    def _announce(self) -> bool:
        """One line per attempt and folder: the process that creates the marker says it. Whether that is this one."""
        marker = os.path.join(self.folder, f"{ATTEMPT_PREFIX}{self.identity.attempt}")
        try:
            os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        except OSError:
            return False
        announce(f"recording to {self.folder}")
        return True

    def _warn_of_names(self) -> None:
        try:
            with loading.loading():
                found = mistyped()
        except OSError:
            # no descriptor is left
            return
        for name, meant in found.items():
            if meant:
                warn_once(f"name-{name}", f"{name} is no setting and says nothing here: did you mean {meant}?")

    def _warn_of_the_place(self) -> None:
        try:
            with loading.loading():
                from .mounts import ephemeral, mount_of
        except OSError:
            # no descriptor is left, which the table of the kernel's would need as well
            return
        why = ephemeral(self.folder, mount_of(self.folder))
        if why:
            text = "run verl-trace collect beside the training and set VERL_TRACE_COLLECT to its target"
            warn_once("ephemeral", f"{self.folder} may not outlive the node: {why}; {text}")


def _raw_of_others(folder: str, own: str) -> Iterator[object]:
    with loading.loading():
        from .leftovers import iter_raw
    yield from iter_raw(folder, own=own)


running: Session | None = None
# re-entrant: a signal handler may end what its own thread is starting
_change = threading.RLock()
_hooks_installed = False
_finalizer_pid = 0


def current() -> Session | None:
    """The recording of this process, None when there is none."""
    return running


def start(
    project_name: str,
    experiment_name: str,
    backend: str,
    *,
    token2text: bool = False,
    max_samples_per_step_per_worker: int | None = None,
    folder: str | None = None,
    attempt: str | None = None,
) -> Session | None:
    """Begin recording; returns the running one when there is one. Never raises; None when disabled or impossible.

    `folder` counts where VERL_TRACE_DIR is not set; `attempt` is that of the process that this one works for.
    """
    global running
    if running is not None or disabled():
        return running
    try:
        about = {
            "project_name": str(project_name),
            "experiment_name": str(experiment_name),
            "backend": str(backend),
            "token2text": bool(token2text),
            "max_samples_per_step_per_worker": max_samples_per_step_per_worker,
        }
        settings = read_settings()
        if folder is not None and not os.environ.get("VERL_TRACE_DIR"):
            settings.folder = folder
        for problem in settings.problems:
            warn_once(f"setting-{problem}", problem)
        _install_hooks()
        session = Session(about, settings, attempt)
        session.open()
        with _change:
            if running is None:
                running = session
                _close_with_multiprocessing()
                return session
        session.close()
    except Exception as error:  # noqa: BLE001
        pass_on(error)
        warn_once("start", f"recording could not start: {type(error).__name__}: {error}; calls go on unrecorded")
    return running


def stop() -> None:
    """End the recording: everything recorded so far is in closed, sealed files. Never raises."""
    global running
    with _change:
        session, running = running, None
    if session is None:
        return
    try:
        session.close()
    except Exception as error:  # noqa: BLE001
        pass_on(error)
        warn_once("stop", f"ending the recording: {type(error).__name__}: {error}; raw files stay as they are")


def _install_hooks() -> None:
    global _hooks_installed
    with _change:
        if _hooks_installed:
            return
        _hooks_installed = True
        atexit.register(stop)
        loading.install()
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global _change
    _change = threading.RLock()
    counters.after_fork()
    ids.reseed()
    repeats.after_fork()
    if running is not None:
        try:
            running.fork()
        except Exception as error:  # noqa: BLE001
            warn_once("fork", f"after a fork: {type(error).__name__}: {error}; this child does not record")


def _close_with_multiprocessing() -> None:
    """A child of multiprocessing runs no exit handlers but those of multiprocessing itself."""
    global _finalizer_pid
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is None or util is None or process.parent_process() is None or _finalizer_pid == os.getpid():
        return
    _finalizer_pid = os.getpid()
    util.Finalize(None, stop, exitpriority=0)
