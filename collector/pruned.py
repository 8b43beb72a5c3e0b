"""What `prune` did on either side. There: what was deleted is not brought again. Here: what was deleted is not thereby
deleted there, and a note comes along only where something that it tells of is missing.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import zstandard

from ..schemas.files import PRUNED_PREFIX, SEALED_SUFFIX, TMP_SUFFIX

__all__ = ["Note", "has_all_of", "is_rewritten", "notes_in", "notes_to_bring", "pruned_files", "stays"]

# A header is a few hundred bytes.
_MAX_HEADER = 1 << 20
# What a segment says of itself, not what was recorded.
_OF_FILE = (b'{"kind":"header"', b'{"kind":"close"')


@dataclass(frozen=True)
class Note:
    """A note of `prune`. `removed`, `rewritten`: names of files."""

    pruned_at: str
    name: str
    removed: frozenset[str]
    rewritten: frozenset[str]


def notes_in(folder: Path, *, lenient: bool = False) -> list[Note]:
    """The notes in a folder, in the order in which they were written; none of a folder that is not there.

    `lenient`: one that cannot be read names no files.

    Raises:
        OSError: the folder cannot be listed, or a note not read.
    """
    try:
        names = [name for name in os.listdir(folder) if name.startswith(PRUNED_PREFIX)]
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        if name.endswith(TMP_SUFFIX):
            continue
        head: dict[str, Any] = {}
        try:
            if not stat.S_ISREG(os.stat(folder / name).st_mode):
                # a pipe would keep us waiting
                continue
            with open(folder / name, "rb") as file:
                head = _parsed(file.readline())
        except FileNotFoundError:
            continue
        except OSError:
            if not lenient:
                raise
        removed, rewritten = (_names(head.get(key)) for key in ("removed", "rewritten"))
        found.append(Note(str(head.get("pruned_at", "")), name, removed, rewritten))
    return sorted(found, key=_time)


def pruned_files(target: Path, here: list[Note] | None = None) -> set[str]:
    """Files that were deleted at the target, or written anew with less in them, since a Weave project holds what they
    held: what is left of them here is not to be brought again.

    `here`: the notes at the source. What they tell was done here, also where they were brought to the target.
    """
    ours = {note.name for note in here or ()}
    found = {file for note in notes_in(target) if note.name not in ours for file in note.removed | note.rewritten}
    # a raw form of what was deleted sealed, and the other way round
    return found | {name.removesuffix(".zst") for name in found} | {f"{name}.zst" for name in found}


def is_rewritten(sealed: Path) -> bool:
    """Whether `prune` has written this sealed segment anew; False of what cannot be read."""
    return "pruned" in _header(sealed)


def notes_to_bring(here: list[Note], target: Path) -> set[str]:
    """Names of those notes of the source without which a reader at the target would miss trajectories and not know why:
    a file that one names is not there, or as the pruning has left it. Those that are there may have grown.

    Raises:
        FileNotFoundError: the target is not there.
    """
    there = set(os.listdir(target))
    return {note.name for note in here if note.name in there or _tells_of_missing(note, here, target, there)}


def _tells_of_missing(note: Note, here: list[Note], target: Path, there: set[str]) -> bool:
    if not note.removed and not note.rewritten:
        return True
    if any(name not in there and f"{name}.zst" not in there for name in note.removed):
        return True
    for name in note.rewritten:
        # of an open segment's copy nobody knows whether it is all
        sealed = name if name.endswith(SEALED_SUFFIX) else f"{name}.zst"
        if sealed not in there:
            return True
        said = _header(target / sealed).get("pruned")
        last = said.get("note") if isinstance(said, dict) else None
        # what was written anew lacks what that note tells of, and all before it
        if any(other.name == last and _time(note) <= _time(other) for other in here):
            return True
    return False


def stays(there: Path, raw: Path, here: Path) -> bool:
    """Whether what is at the target of a sealed segment stays: `prune` has written the segment anew here, and there is
    a sealed one, or a copy of the open one (`raw`) in which all of this is.

    Raises:
        OSError: `raw`, or `here`, cannot be read.
    """
    return is_rewritten(here) and (there.exists() or (raw.exists() and has_all_of(raw, here)))


def has_all_of(there: Path, here: Path) -> bool:
    """Whether every record of the sealed segment `here` is, in the same order, in the segment at `there`.

    Raises:
        OSError: one cannot be read.
    """
    whole = _lines(there)
    try:
        return all(line in whole for line in _lines(here) if not line.startswith(_OF_FILE))
    except zstandard.ZstdError:
        return False


def _lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        if not path.name.endswith(SEALED_SUFFIX):
            yield from file
            return
        content = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        yield from io.BufferedReader(content)


def _header(sealed: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, zstandard.ZstdError), open(sealed, "rb") as file:
        content = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return _parsed(io.BufferedReader(content).readline(_MAX_HEADER))
    return {}


def _time(note: Note) -> tuple[str, str]:
    return note.pruned_at, note.name


def _parsed(line: bytes) -> dict[str, Any]:
    with contextlib.suppress(orjson.JSONDecodeError):
        value = orjson.loads(line)
        return value if isinstance(value, dict) else {}
    return {}


def _names(files: Any) -> frozenset[str]:
    return frozenset(map(str, files)) if isinstance(files, list) else frozenset()
