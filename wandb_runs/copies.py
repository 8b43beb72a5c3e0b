"""Folders that are copies of one another: their rows must be sent once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..reader.places import open_buffered
from .offline import OfflineRun

__all__ = ["copies_among"]

_CHUNK = 1 << 20


def copies_among(folders: Sequence[OfflineRun]) -> dict[Path, OfflineRun]:
    """Folder -> the run that counts instead: of folders of one name where the log of one begins as that of the other,
    that is the one that was synced before, else the longest."""
    found: dict[Path, OfflineRun] = {}
    kept: list[OfflineRun] = []
    for run in sorted(folders, key=lambda run: (not run.synced, -_size(run.log))):
        original = next((one for one in kept if one.folder.name == run.folder.name and _one_begins(one, run)), None)
        if original is None:
            kept.append(run)
        else:
            found[run.folder] = original
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _one_begins(one: OfflineRun, other: OfflineRun) -> bool:
    """Whether the shorter log is the beginning of the longer."""
    left = min(_size(one.log), _size(other.log))
    try:
        with open_buffered(one.log) as first, open_buffered(other.log) as second:
            while left > 0:
                chunk = first.read(min(left, _CHUNK))
                if not chunk or chunk != second.read(len(chunk)):
                    return False
                left -= len(chunk)
    except OSError:
        return False
    return True
