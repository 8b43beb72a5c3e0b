"""Outlines of segments, kept in the user's cache, so that a run is decompressed and searched through once.

What the cache lacks, or does not give back whole, is made of the segment; nothing else depends on it. It may be
deleted at any time, and nothing is written beside the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import zstandard

from . import kept_files
from .kept_files import kept_file, load, store
from .outline_lines import FORM, outline_lines
from .outline_shape import is_outline
from .writers import Segment

__all__ = ["cache_folder", "is_kept", "kept_outline", "opened", "segment_outline"]

# The head of what is kept, and the lines behind it.
Opened = tuple[dict[str, Any], list[bytes]]

# Of 64 MiB of records, some 1 MiB is kept; a file of the cache is never larger than this.
_MAX_BYTES = 256 << 20


def cache_folder() -> Path:
    """Where outlines are kept: `outlines` in the cache."""
    return kept_files.cache_folder("outlines")


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
        data = load(file)
    except OSError:
        return None
    found = opened(data)
    return (data, found) if found is not None and is_outline(*found, segment.path.name) else None


def opened(data: bytes) -> Opened | None:
    """The head of what is kept, and the lines behind it; None where it is broken or of another form."""
    try:
        whole = zstandard.ZstdDecompressor().decompress(data, max_output_size=_MAX_BYTES)
        first, *rest = whole.split(b"\n")
        head = orjson.loads(first)
        traces = len(head["traces"])
        if head["form"] != FORM or len(head["records"]) != traces or len(rest) != head["scores"] + 2 * traces:
            return None
    except (zstandard.ZstdError, ValueError, KeyError, TypeError, MemoryError):
        return None
    return head, rest


def segment_outline(segment: Segment, *, being_written: bool) -> bytes:
    """Made of the segment, and kept where it is sealed and could be read."""
    file = _file_of(segment)
    # whether its writer lives is nothing that may be kept; `outlines` thinks of it
    data, for_good = outline_lines(segment, being_written=being_written and file is None)
    # the file may have been replaced since it was named
    if for_good and file is not None and file == _file_of(segment):
        store(file, data)
    return data


def _file_of(segment: Segment) -> Path | None:
    """Where the cache would have this segment's; None of a file that may still grow."""
    path = segment.path
    return kept_file(path, cache_folder(), f"outline {FORM}") if path.name.endswith(".zst") else None
