"""Outlines of segments, kept in the user's cache, so that a run is decompressed and searched through once.

A sealed segment never changes. What is kept of it has a name made of the file's path, size, time of change and last
bytes, among which is zstd's checksum of the content. What the cache lacks, or does not give back whole, is made of the
segment; nothing else depends on it. It may be deleted at any time, and nothing is written beside the run.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import orjson
import zstandard

from .outline_lines import FORM, outline_lines
from .places import open_file, status
from .writers import Segment

__all__ = ["cache_folder", "is_kept", "kept_outline", "opened", "segment_outline"]

# The head of what is kept, and the lines behind it.
Opened = tuple[dict[str, Any], list[bytes]]

_TAIL = 64
# Of 64 MiB of records, some 1 MiB is kept; a file of the cache is never larger than this.
_MAX_BYTES = 256 << 20


def cache_folder() -> Path:
    """Where outlines are kept: `outlines` in VERL_TRACE_CACHE, XDG_CACHE_HOME/verl-trace or ~/.cache/verl-trace."""
    named = os.environ.get("VERL_TRACE_CACHE")
    if named:
        return Path(named) / "outlines"
    base = os.environ.get("XDG_CACHE_HOME")
    # of no home at all, the cache is a folder that cannot be made
    return Path(base or os.path.join(os.path.expanduser("~"), ".cache")) / "verl-trace" / "outlines"


def is_kept(segment: Segment) -> bool:
    """Whether the cache seems to have this segment's."""
    file = _file_of(segment)
    return file is not None and file.is_file()


def kept_outline(segment: Segment) -> tuple[bytes, Opened] | None:
    """What the cache has of a segment; None where it is still open, or the cache lacks it or has it broken."""
    file = _file_of(segment)
    if file is None:
        return None
    try:
        data = file.read_bytes()
    except OSError:
        return None
    found = opened(data)
    return (data, found) if found is not None else None


def opened(data: bytes) -> Opened | None:
    """The head of what is kept, and the lines behind it; None where it is broken or of another form."""
    try:
        whole = zstandard.ZstdDecompressor().decompress(data, max_output_size=_MAX_BYTES)
        first, *rest = whole.split(b"\n")
        head = orjson.loads(first)
        if head["form"] != FORM or len(rest) != head["scores"] + 2 * len(head["traces"]):
            return None
    except (zstandard.ZstdError, ValueError, KeyError, TypeError, MemoryError):
        return None
    return head, rest


def segment_outline(segment: Segment, *, being_written: bool) -> bytes:
    """Made of the segment, and kept where it is sealed and could be read."""
    file = _file_of(segment)
    # whether its writer lives is nothing that may be kept; `outlines` thinks of it
    data, for_good = outline_lines(segment, being_written=being_written and file is None)
    if for_good and file is not None:
        _store(file, data)
    return data


def _file_of(segment: Segment) -> Path | None:
    """Where the cache would have this segment's; None of a file that may still grow."""
    path = segment.path
    if not path.name.endswith(".zst"):
        return None
    try:
        found = status(path)
        with open_file(path) as file:
            file.seek(max(0, found.size - _TAIL))
            tail = file.read(_TAIL) or b""
        place = os.path.realpath(path)
    except OSError:
        return None
    name = b"\0".join([b"%d %d %r" % (FORM, found.size, found.modified), tail, os.fsencode(place)])
    return cache_folder() / hashlib.sha256(name).hexdigest()[:40]


def _store(file: Path, data: bytes) -> None:
    """Keep it, whole or not at all; a full disk or a cache that is not ours is no trouble."""
    tmp = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            tmp.write_bytes(data)
            os.replace(tmp, file)
        finally:
            tmp.unlink(missing_ok=True)
    except OSError:
        return
