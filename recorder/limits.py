"""When recording pauses by itself: the disk's reserve and the cap of a run."""

from __future__ import annotations

import contextlib
import os
import time

from ..schemas.files import parse_segment_name, parse_side_file_name
from .settings import Settings, size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Limits"]

# Adding up a folder of some thousand files takes milliseconds; in between, own bytes are added to the last sum.
CAP_INTERVAL = 5.0


class Limits:
    """Asked every tick by the background thread."""

    def __init__(self, folder: str | Path, settings: Settings) -> None:
        self._folder = folder
        self._settings = settings
        self._sum = 0
        self._own = 0
        self._summed_at: float | None = None

    def told(self, reason: str) -> str:
        """What that reason means, with the setting and its value."""
        if reason == "MAX_BYTES":
            return f"its files have reached VERL_TRACE_MAX_BYTES ({size_text(self._settings.max_bytes)})"
        return f"its disk has less than VERL_TRACE_MIN_FREE ({size_text(self._settings.min_free)}) free"

    def reason_to_pause(self, own_bytes: int) -> str:
        """The setting that forbids to write on, "" when none does. `own_bytes`: what this process wrote so far."""
        if self._settings.max_bytes and self._run_bytes(own_bytes) >= self._settings.max_bytes:
            return "MAX_BYTES"
        if self._settings.min_free:
            try:
                space = os.statvfs(self._folder)
            except OSError:
                return ""
            if space.f_bavail * space.f_frsize < self._settings.min_free:
                return "MIN_FREE"
        return ""

    def _run_bytes(self, own_bytes: int) -> int:
        now = time.monotonic()
        if self._summed_at is None or now - self._summed_at >= CAP_INTERVAL:
            self._summed_at, self._own = now, own_bytes
            self._sum = _stored_bytes(self._folder)
        return self._sum + own_bytes - self._own


def _stored_bytes(folder: str | Path) -> int:
    total = 0
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    for name in names:
        if parse_segment_name(name) is not None or parse_side_file_name(name) is not None:
            # one that is sealed meanwhile has another name; the next sum is right again
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total
