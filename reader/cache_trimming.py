"""How large the user's cache may grow: what was not used for long goes, then the oldest where it is still too much.

Once a day, by whichever process keeps a file first on it, and by one that has kept much; for a second at most. Where a
slow disk leaves no time for all files, a part of them is cut back to its share, and the next part within the hour.
Nothing is locked. A file that goes while another process reads it is read to its end, and one that is missed is made
anew; so nobody waits, and nothing here is an error.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import stat
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["MOST_BYTES", "UNUSED_DAYS", "trim_now_and_then", "used"]

# Of each kind: the outlines of runs of 1.6 TB together, where the records have token ids.
MOST_BYTES = 4 << 30
# A run that was not looked at for so long is as quick to read once more as to remember.
UNUSED_DAYS = 60

_DAY, _HOUR = 86_400.0, 3_600.0
# Files of a writer that was killed; nobody takes so long to write one.
_UNFINISHED = _HOUR
# Seconds for all of it: a command waits no longer, and 20,000 files of a local disk take a tenth of that.
_PATIENCE = 1.0
# Names that `kept_files` gives. Whatever else lies there is not ours.
_OURS = re.compile(r"[0-9a-f]{40}(\.\d+\.tmp)?\Z")

# A process that has kept this part of MOST_BYTES does not wait for the next day.
_MUCH = 64

# Folder -> when this process asks again whether it is time, by its monotonic clock; bytes that it has kept since.
_asked: dict[Path, float] = {}
_stored: dict[Path, int] = {}


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


def trim_now_and_then(folder: Path, stored: int) -> None:
    """Trim `folder`, in which so many bytes were just kept, where it is time for that."""
    now = time.monotonic()
    _stored[folder] = _stored.get(folder, 0) + stored
    much = _stored[folder] >= MOST_BYTES // _MUCH
    if _asked.get(folder, 0.0) > now and not much:
        return
    _asked[folder] = now + _DAY
    with contextlib.suppress(OSError):
        marker = folder.with_name(f"{folder.name}.trimmed")
        if not _is_due(marker, much):
            return
        _stored[folder] = 0
        if not _trim(folder, time.time()):
            _asked[folder] = now + _HOUR
            os.utime(marker, (time.time() - _DAY + _HOUR,) * 2)


def _is_due(marker: Path, much: bool) -> bool:
    """Whether it is time, as it is after `much`; then no other process finds that it is."""
    try:
        # also where a clock was wrong
        if not much and abs(time.time() - marker.stat().st_mtime) < _DAY:
            return False
    except FileNotFoundError:
        pass
    marker.touch()
    return True


def _trim(folder: Path, now: float) -> bool:
    """Whether there was time for all files."""
    with os.scandir(folder) as entries:
        ours = [entry for entry in entries if _OURS.match(entry.name)]
    # where there is no time for all, others come first the next time
    random.shuffle(ours)
    files: list[_Kept] = []
    looked_at = 0
    until = time.monotonic() + _PATIENCE / 2
    for entry in ours:
        if time.monotonic() > until:
            break
        looked_at += 1
        with contextlib.suppress(FileNotFoundError):
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                files.append(_Kept(found.st_mtime, found.st_size, entry.path))
    # time of its own: where looking takes all there is, nothing would ever go
    until = time.monotonic() + _PATIENCE / 2
    left, most = sum(file.size for file in files), MOST_BYTES * looked_at / max(1, len(ours))
    for file in sorted(files):
        longest = _UNFINISHED if file.path.endswith(".tmp") else UNUSED_DAYS * _DAY
        if now - file.used <= longest and left <= most:
            continue
        if time.monotonic() > until:
            return False
        with contextlib.suppress(OSError):
            os.remove(file.path)
        left -= file.size
    return looked_at == len(ours)
