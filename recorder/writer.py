"""The segments of this process: opening, rotating, closing them, and the upkeep that the background thread does.

What happens to a file, in order: `create` with a header, appends, `finish` with a `close` record, sealing by
`sealing.seal`. No lock that `append` needs is held across a system call of these steps.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from ..schemas.interrupts import pass_on
from .appender import OPENING, RETRY_AFTER, SLOW_SECONDS, STALL_SECONDS, Appender
from .backlog import Backlog
from .counters import Counters, Lost
from .identity import Identity
from .limits import Limits
from .locking import within
from .sealing import sync_folder
from .segment import Segment, close_quietly, create, finish
from .settings import Settings
from .side_file import SideFileWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

__all__ = ["SegmentWriter"]


class SegmentWriter(Appender):
    """Appends lines to `<folder>/<writer>.<index>.jsonl`.

    `on_open` is called, in whatever thread, after a segment was opened because there was none.
    """

    def __init__(
        self, folder: str | Path, identity: Identity, about: dict[str, Any], settings: Settings, counters: Counters
    ) -> None:
        super().__init__(folder, settings.segment_bytes, counters)
        self.identity = identity
        self.on_open: Callable[[], None] = lambda: None
        self._about = about
        self._settings = settings
        self._limits = Limits(folder, settings)
        self.side = SideFileWriter(folder, identity, about, settings, counters, lambda: self._paused)
        # held while a file is made, so that no two get one index
        self._opening = threading.RLock()
        self._next_index = 0
        self._rotate_at = 0.0

    @property
    def path(self) -> Path | None:
        """The open segment, None when there is none."""
        segment = self._segment
        return segment.path if segment is not None else None

    @property
    def size(self) -> int:
        """Bytes in the open segment."""
        segment = self._segment
        return segment.size if segment is not None else 0

    # -- opening -----------------------------------------------------------------------------------------------------

    def open(self) -> bool:
        """Open a segment and write its header; False (with one warning) when the folder refuses."""
        opened = not self._ensure_open()
        self.tell()
        return opened

    def _ensure_open(self) -> str:
        opening = self._opening
        for taken in within(opening, STALL_SECONDS):
            try:
                if not taken:
                    return OPENING
                if self._segment is not None:
                    return ""
                reason = self._open_one()
                if reason:
                    return reason
            finally:
                if taken:
                    opening.release()
        self.on_open()
        return ""

    def _open_one(self) -> str:
        """Open a segment, now that no other thread does; "" or why there is none."""
        begun = time.monotonic()
        if begun < self._blocked_until:
            return self._reason
        try:
            segment = self._create()
        except OSError as error:
            pass_on(error)
            self._refused(error, 0)
            return self._reason
        superseded = self._swap(segment)
        if superseded is not None:
            # opened by a finaliser or a signal handler that interrupted us
            self._left.append((superseded, False))
        if time.monotonic() - begun > STALL_SECONDS:
            self._stall()
        return ""

    def _create(self) -> Segment:
        segment, index = create(self.folder, self.identity, self._about, self._next_index)
        self._next_index = index + 1
        return segment

    def _swap(self, segment: Segment | None) -> Segment | None:
        with self._lock:
            if self._writing:
                # we interrupted our own thread inside of a write: its segment has to stay
                return segment
            old, self._segment = self._segment, segment
            if segment is not None:
                self._full_at = self._segment_bytes
                self._blocked_until = 0.0
            self._settle()
        return old

    # -- rotating and closing ----------------------------------------------------------------------------------------

    def rotation_due(self, min_seal_bytes: int) -> bool:
        """Whether the open segment is large, or old and not tiny."""
        segment = self._segment
        if segment is None or time.monotonic() < self._rotate_at:
            return False
        if segment.size >= self._settings.segment_bytes:
            return True
        return segment.size >= min_seal_bytes and time.monotonic() - segment.opened >= self._settings.seal_age

    def rotate(self) -> Path | None:
        """Go on in a new segment; the finished one's path, closed, ready for sealing."""
        with self._opening:
            try:
                segment = self._create()
            except OSError as error:
                # a full disk: the old segment grows meanwhile
                self._rotate_at = time.monotonic() + RETRY_AFTER
                self._say("rotate", f"{self.folder}: no new file: {error.strerror}; going on in the old one")
                return None
            old = self._swap(segment)
        return self._finished(old, "rotated")

    def close(self, patience: float = 0.0) -> Path | None:
        """End the open segment with a `close` record. A later append opens a new one.

        A backlog is written for up to `patience` seconds; what then still waits counts as lost.
        """
        deadline = time.monotonic() + patience
        self.side.close()
        self.drain()
        while self._backlog is not None and time.monotonic() < deadline:
            time.sleep(SLOW_SECONDS)
            self.drain()
        self._abandon_backlog()
        segment = self._segment
        if segment is not None and not segment.is_ours():
            self._forsake(segment)
        self._write_lost()
        path = self._finished(self._swap(None), "exit")
        if self.counters.pending:
            lost = sum(self.counters.dropped.values())
            self._say("", f"warning: {self.folder}: records lost: {lost}, and not all of it could be written there")
        self.tell()
        return path

    def _finished(self, segment: Segment | None, reason: str) -> Path | None:
        if segment is None:
            return None
        trouble = finish(segment, reason, self.counters)
        if trouble:
            self._say("finish", f"{segment.name}: {trouble} while finishing the file; its records are kept as they are")
        return segment.path

    def leftovers(self) -> list[Path]:
        """Files that trouble made this process leave, closed now and ready for sealing."""
        paths = []
        while self._left:
            segment, broken = self._left.popleft()
            if broken:
                close_quietly(segment.take_descriptor())
            else:
                self._finished(segment, "rotated")
            paths.append(segment.path)
        return paths

    # -- upkeep ------------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """fsync the open segment, on a descriptor of its own so that a swap meanwhile does no harm; the side file
        too."""
        self.side.sync()
        with self._lock:
            segment = self._segment
            fd = os.dup(segment.fd) if segment is not None else -1
        if segment is None:
            return
        try:
            os.fsync(fd)
            if not segment.is_durable:
                sync_folder(self.folder)
                segment.is_durable = True
        except OSError as error:
            self._say("fsync", f"{segment.name}: fsync: {error.strerror}; a power loss may cost records")
        finally:
            close_quietly(fd)

    def drain(self) -> None:
        """Write what waits since the disk stalled; direct appends again once that is done and the disk quick."""
        self.side.drain()
        while (backlog := self._backlog) is not None:
            begun = time.monotonic()
            if self._segment is None and self._ensure_open() == OPENING:
                return
            # one lock around taking and writing: a direct append must not overtake the last line that waits
            with self._lock:
                more = self._drain_one(backlog)
            if not more or time.monotonic() - begun > STALL_SECONDS:
                return

    def _drain_one(self, backlog: Backlog) -> bool:
        """Write some lines; False when nothing is left to do now."""
        data, count = backlog.take() if backlog.told else (b"", 0)
        if count:
            self._write_or_lose(data, count)
            return True
        begun = time.monotonic()
        # also finds out whether the disk is quick again
        self._write_note(backlog.record())
        if not backlog.told:
            backlog.told = True
            return True
        if time.monotonic() - begun > SLOW_SECONDS:
            return False
        with self._state:
            if not backlog.end():
                return True
            self._backlog = None
        self.counters.queued += backlog.taken_in
        self._settle()
        self._say("", f"{self.folder}: the disk answers again; writing directly")
        return False

    def _abandon_backlog(self) -> None:
        backlog = self._backlog
        if backlog is None:
            return
        with self._state:
            while (count := backlog.take()[1]) > 0:
                self._lose("stalled at exit", count)
            backlog.end()
            self._backlog = None
        self._settle()

    def _write_note(self, record: bytes) -> bool:
        """Write a record that is no call's, where that is possible just now; the lock is held."""
        if self._writing or self._reason_to_lose():
            return False
        return self._write(record, calls=0)

    def _write_lost(self) -> None:
        """Tell what was lost without waiting for the next call."""
        if not self.counters.pending or self._backlog is not None:
            return
        with self._lock:
            lost: Lost | None = self.counters.take_lost()
            if lost is not None and not self._write_note(lost.line()):
                self.counters.give_back(lost)
            self._settle()

    def check_health(self) -> None:
        """Keep the reserve of the disk and the cap of the run; notice a file that was removed while in use."""
        self.side.check_health()
        segment = self._segment
        if segment is None:
            if self.counters.pending:
                self._ensure_open()
        elif segment.is_removed():
            self._replace(segment)
        elif not segment.is_ours():
            self._forsake(segment)
        else:
            self._pause(self._limits.reason_to_pause(self._total + self.side.total))
        self._write_lost()

    def _pause(self, reason: str) -> None:
        if reason == self._paused:
            return
        self._paused = reason
        self._settle()
        if reason:
            text = f"recording pauses: {self._limits.told(reason)}; calls go on, their records count as lost"
            self._say(f"paused-{reason}", f"{self.folder}: {text}")

    def _begin_anew(self) -> Segment | None:
        """Go on in a new segment, if one can be opened; the one that was open."""
        with self._opening:
            new: Segment | None = None
            try:
                new = self._create()
            except OSError as error:
                pass_on(error)
                self._refused(error, 0)
            return self._swap(new)

    def _replace(self, segment: Segment) -> None:
        self._say("removed", f"{segment.name} was removed while in use; recording goes on in a new file")
        old = self._begin_anew()
        if old is None:
            return
        close_quietly(old.take_descriptor())
        calls = old.records - old.notes
        if calls:
            self.counters.written -= calls
            self._lose("file removed", calls)

    def _forsake(self, segment: Segment) -> None:
        text = "the program closed its descriptor; recording goes on in a new file"
        self._say("descriptor", f"{segment.name}: {text}, what was meant for this one meanwhile is lost")
        old = self._begin_anew()
        if old is None:
            return
        # not closed: it is another's
        old.take_descriptor()
        self._left.append((old, True))
        try:
            missing = old.records - old.lines()
        except OSError:
            missing = 0
        if missing > 0:
            self.counters.written -= missing
            self._lose("descriptor closed", missing)

    def after_fork(self, identity: Identity, counters: Counters) -> None:
        """In a forked child: leave the parent's files alone, start one of our own at the first record."""
        inherited = [segment for segment, _ in self._left]
        if self._segment is not None:
            inherited.append(self._segment)
        on_open, on_full, side = self.on_open, self.on_full, self.side
        self.__init__(self.folder, identity, self._about, self._settings, counters)  # type: ignore[misc]
        self.on_open, self.on_full, self.side = on_open, on_full, side
        side.after_fork(identity, counters)
        for segment in inherited:
            close_quietly(segment.take_descriptor())
