"""Digests of sealed segments, kept in the user's cache, so that a run is decompressed and searched through once.

What the cache lacks, or does not give back whole, is read from the segment, and nothing else depends on it. It may be
deleted at any time. Nothing is written beside the run.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import orjson
import zstandard

from . import kept_files
from .digest import DigestLines
from .kept_files import kept_file, load, store
from .segments import SegmentLines
from .writers import Segment

__all__ = ["KeptDigests", "cache_folder", "digests", "kept_digests"]

# Part of every name: digests of another form are not found.
_FORM = "digest 3"
_LEVEL = 1
# A digest that is no smaller than this part of its segment is not worth a file: the segment is as quick to read.
_WORTH = 4
# Files of the cache are read whole, and are never larger than this.
_MAX_BYTES = 64 << 20


def digests(segment: Segment, limit: int | None = None, *, kind: type[KeptDigests] | None = None) -> SegmentLines:
    """A source for `iter_trajectories`: a run without its weight. `kind`: lines of which some are left out."""
    lines = segment.lines(limit, kind=kind or KeptDigests)
    assert isinstance(lines, KeptDigests)
    lines.limited_to = limit
    return lines


def kept_digests(segment: Segment) -> bytes | None:
    """The digests of a sealed segment, line after line, where the cache has them."""
    lines = segment.lines(kind=KeptDigests)
    assert isinstance(lines, KeptDigests)
    file = lines.cache_file()
    kept = _load(file) if file is not None else None
    return kept.lines if kept is not None else None


def cache_folder() -> Path:
    """Where digests are kept: `digests` in the cache."""
    return kept_files.cache_folder("digests")


class KeptDigests(DigestLines):
    """Digests from the cache where it has them, else from the segment, and then for the cache."""

    limited_to: int | None = None

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        file = self.cache_file()
        kept = _load(file) if file is not None else None
        if kept is not None and (self.limited_to is None or self.limited_to >= kept.size):
            self.size = kept.size
            yield from zip(accumulate(kept.lengths, initial=0), io.BytesIO(kept.lines), strict=False)
            return
        if file is None or self.limited_to is not None:
            yield from super().__iter__()
            return
        yield from self._keeping(file)

    def _keeping(self, file: Path) -> Iterator[tuple[int, bytes]]:
        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()
        parts: list[bytes] = []
        offsets: list[int] = []
        size = 0
        for offset, line in super().__iter__():
            size += len(line)
            if size <= _MAX_BYTES:
                parts.append(compressor.compress(line))
                offsets.append(offset)
            yield offset, line
        if self.damages or not self.sealed or not 0 < size <= min(_MAX_BYTES, self.size // _WORTH):
            return
        lengths = [end - begin for begin, end in pairwise([*offsets, self.size])]
        told = compressor.compress(orjson.dumps({"size": self.size, "lengths": lengths}))
        # the file may have been replaced since it was named
        if file == self.cache_file():
            store(file, b"".join([*parts, told, compressor.flush()]))

    def cache_file(self) -> Path | None:
        """Where the cache would have this segment's; None of a file that may still grow, or lies in a packed run."""
        return kept_file(self.path, cache_folder(), _FORM) if self.sealed and self.path.is_file() else None


class _Kept(NamedTuple):
    """Of a segment: its size, the length of each of its lines, and the digests of them."""

    size: int
    lengths: list[int]
    lines: bytes


def _load(file: Path) -> _Kept | None:
    """What the cache has; None where it has none, or a broken one."""
    try:
        data = zstandard.ZstdDecompressor().decompress(load(file), max_output_size=2 * _MAX_BYTES)
        begin = data.rindex(b"\n") + 1
        told = orjson.loads(data[begin:])
        kept = _Kept(told["size"], told["lengths"], data[:begin])
        whole = sum(kept.lengths) == kept.size and len(kept.lengths) == kept.lines.count(b"\n")
    except (OSError, zstandard.ZstdError, ValueError, KeyError, TypeError, MemoryError):
        return None
    return kept if whole else None
