"""Follow a run that is still being written: look again and again, and send what has settled meanwhile.

Each look is an ordinary upload, so whoever follows may be killed and started again at any time. It ends when no process
may write any more and nothing has changed between two looks; then the last look syncs the W&B runs, asks the server for
all that was sent, and sends exactly the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ..reader import find_runs
from ..schemas.errors import BadFilter, CannotStart, NoAnswer, NotARun
from .result import UploadResult

__all__ = ["FOLLOW", "Look", "Seen", "follow"]

# Seconds between two looks, by default.
FOLLOW = 30.0
# A look at a long run takes its time: it may take this part of all time at most.
_SHARE = 0.2
# Last looks that may stop half-way, each after an ordinary one that did not: then it is not the server that was away.
_LAST_LOOKS = 3

Progress = Callable[[UploadResult], None]


class Seen(NamedTuple):
    """What one look did. `ended`: when it began, no process could write any more."""

    result: UploadResult
    ended: bool


# One pass over all runs; the last one is `final`.
Look = Callable[[Progress, bool], Seen]
# A file's name -> its size and time of change.
_Files = dict[Path, tuple[int, float]]


def follow(path: Path, look: Look, *, every: float, stop: threading.Event, progress: Progress) -> UploadResult:
    """Look at `path` every so many seconds until its runs have ended or `stop` is set.

    A run that is not there yet is waited for, as long as the folder is there that will hold it. A server that does not
    answer is tried again, however long that takes; one that refuses what is sent to all projects ends it.

    Raises:
        NotARun: there is neither the path nor a folder to hold it.
        CannotStart: before anything was sent.

    Ctrl-C ends it; in the middle of a look, the result is marked as interrupted.
    """
    if not path.exists() and not path.parent.is_dir():
        raise NotARun(f"{path}: no such folder, and none that it could come into", hint="is the path right?")
    following = _Following(look, progress)
    before: _Files | None = None
    while not stop.is_set():
        began = time.monotonic()
        try:
            files = _files(path)
        except KeyboardInterrupt:
            break
        last = bool(files) and following.ended and files == before
        before = files
        if last and following.last_look():
            break
        if files and not last and not following.look():
            break
        try:
            stop.wait(max(every, (time.monotonic() - began) * (1 / _SHARE - 1)))
        except KeyboardInterrupt:
            break
    return following.total


@dataclass
class _Following:
    """All looks so far, as one result."""

    one: Look
    progress: Progress
    began: bool = False
    ended: bool = False

    def __post_init__(self) -> None:
        self.total = UploadResult()
        self._last_looks = 0

    def look(self, *, final: bool = False) -> bool:
        """Look once; False when there is no use in going on."""
        earlier = so_far = self.total

        def tell(result: UploadResult) -> None:
            nonlocal so_far
            so_far = result.since(earlier)
            self.progress(so_far)

        try:
            seen = self.one(tell, final)
        except KeyboardInterrupt:
            self.total = replace(so_far, interrupted=True)
            return False
        except (NotARun, FileNotFoundError):
            # files that have just gone, or hold no record yet
            self.ended = False
            return True
        except BadFilter:
            if not self.began:
                raise
            # a run beside it that does not have that attempt yet
            self.total, self.ended = so_far, False
            return True
        except CannotStart as error:
            if not self.began:
                raise
            self.ended = False
            self._trouble(error)
            return isinstance(error, NoAnswer)
        self.began = True
        self.total = seen.result.since(earlier)
        # what could not be sent is tried again, also of a run that has ended, unless that cannot help
        stopped = [run.for_good for run in seen.result.runs if run.stopped]
        self.ended = seen.ended and all(stopped)
        self.progress(self.total)
        return not stopped or not all(stopped) or len(stopped) < len(seen.result.runs)

    def last_look(self) -> bool:
        """Once more, and everything is checked; False when that could not be done, and may be later."""
        self._last_looks += 1
        going_on = self.look(final=True)
        return not going_on or self.ended or self._last_looks == _LAST_LOOKS

    def _trouble(self, error: CannotStart) -> None:
        self.total = replace(self.total, runs=[replace(report, stopped=str(error)) for report in self.total.runs])


def _files(path: Path) -> _Files:
    try:
        runs = find_runs(path)
    except NotARun:
        return {}
    segments = (segment for run in runs for writer in run.writers for segment in writer.segments)
    return {segment.path: (segment.stored_bytes, segment.modified) for segment in segments}
