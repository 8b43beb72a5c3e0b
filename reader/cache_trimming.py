"""How large the user's cache may grow: what was not used for long goes, then the oldest where it is still too much.

Once a day, by whichever process keeps a file first on it, and for a second at most: what is left over is dealt with
another day. Nothing is locked. A file that goes while another process reads it is read to its end, and one that is
missed is made anew; so nobody waits, and nothing here is an error.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["MOST_BYTES", "UNUSED_DAYS", "trim_now_and_then", "used"]

# Of each kind: the outlines of runs of 1.6 TB together, where the records have token ids.
MOST_BYTES = 4 << 30
# A run that was not looked at for so long is as quick to read once more as to remember.
UNUSED_DAYS = 60

_DAY = 86_400.0
# Files of a writer that was killed; nobody takes so long to write one.
_UNFINISHED = 3_600.0
# Seconds for all of it: a command waits no longer, and 20,000 files of a local disk take a tenth of that.
_PATIENCE = 1.0
# Names that `kept_files` gives. Whatever else lies there is not ours.
_OURS = re.compile(r"[0-9a-f]{40}(\.\d+\.tmp)?\Z")

# Folder -> when this process asks again whether it is time, by its monotonic clock.
_asked: dict[Path, float] = {}


class _Kept(NamedTuple):
    """A file: when it was last used, its size, its path."""

    used: float
    size: int
    path: str


def used(file: Path, modified: float) -> None:
    """Note that a file was read which was last used at `modified` (seconds since the epoch), a day precisely."""
    if time.time() - modified > _DAY:
        with contextlib.suppress(OSError):
            os.utime(file)


def trim_now_and_then(folder: Path) -> None:
    """Trim `folder`, where that was not done within a day."""
    now = time.monotonic()
    if _asked.get(folder, 0.0) > now:
        return
    _asked[folder] = now + _DAY
    with contextlib.suppress(OSError):
        if _is_due(folder.with_name(f"{folder.name}.trimmed")):
            _trim(folder, time.time())


def _is_due(marker: Path) -> bool:
    """Whether it is time; then no other process finds that it is."""
    try:
        # also where a clock was wrong
        if abs(time.time() - marker.stat().st_mtime) < _DAY:
            return False
    except FileNotFoundError:
        pass
    marker.touch()
    return True


def _trim(folder: Path, now: float) -> None:
    files: list[_Kept] = []
    until = time.monotonic() + _PATIENCE / 2
    with os.scandir(folder) as entries:
        for entry in entries:
            if time.monotonic() > until:
                break
            if _OURS.match(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    files.append(_Kept(found.st_mtime, found.st_size, entry.path))
    # time of its own: where looking takes all there is, nothing would ever go
    until = time.monotonic() + _PATIENCE / 2
    left = sum(file.size for file in files)
    for file in sorted(files):
        most = _UNFINISHED if file.path.endswith(".tmp") else UNUSED_DAYS * _DAY
        if now - file.used <= most and left <= MOST_BYTES:
            continue
        if time.monotonic() > until:
            return
        with contextlib.suppress(OSError):
            os.remove(file.path)
        left -= file.size
