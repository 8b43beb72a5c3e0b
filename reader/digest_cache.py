"""Digests of sealed segments, kept in the user's cache, so that a run is decompressed and searched through once.

A sealed segment never changes. Its digest is kept under a name made of the file's path, size and time of change; what
the cache lacks, or does not give back whole, is read from the segment, and nothing else depends on it. It may be
deleted at any time. Nothing is written beside the run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import zstandard

from .digest import DigestLines
from .segments import SegmentLines
from .writers import Segment

__all__ = ["KeptDigests", "cache_folder", "digests", "kept_digests"]

# Part of every name: digests of another form are not found.
_FORM = b"verl-trace digest 1"
_LEVEL = 1
# A digest that is no smaller than this part of its segment is not worth a file: the segment is as quick to read.
_WORTH = 4
# Files of the cache are read whole, and are never larger than this.
_MAX_BYTES = 64 << 20
_SIZE_BYTES = 8


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
    return kept[1] if kept is not None else None


def cache_folder() -> Path:
    """Where digests are kept: `digests` in VERL_TRACE_CACHE, XDG_CACHE_HOME/verl-trace or ~/.cache/verl-trace."""
    named = os.environ.get("VERL_TRACE_CACHE")
    if named:
        return Path(named) / "digests"
    base = os.environ.get("XDG_CACHE_HOME")
    # of no home at all, the cache is a folder that cannot be made
    return Path(base or os.path.join(os.path.expanduser("~"), ".cache")) / "verl-trace" / "digests"


class KeptDigests(DigestLines):
    """Digests from the cache where it has them, else from the segment, and then for the cache."""

    limited_to: int | None = None

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        file = self.cache_file()
        if file is None:
            yield from super().__iter__()
            return
        kept = _load(file)
        if kept is not None and (self.limited_to is None or self.limited_to >= kept[0]):
            self.size = kept[0]
            # offsets are asked for where something is damaged, and then nothing was kept
            for line in kept[1].splitlines(keepends=True):
                yield 0, line
            return
        if self.limited_to is not None:
            yield from super().__iter__()
            return
        yield from self._keeping(file)

    def _keeping(self, file: Path) -> Iterator[tuple[int, bytes]]:
        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()
        parts: list[bytes] = []
        size = 0
        for offset, line in super().__iter__():
            size += len(line)
            if size <= _MAX_BYTES:
                parts.append(compressor.compress(line))
            yield offset, line
        if not self.damages and self.sealed and size <= min(_MAX_BYTES, self.size // _WORTH):
            _store(file, self.size, b"".join([*parts, compressor.flush()]))

    def cache_file(self) -> Path | None:
        """Where the cache would have this segment's; None of a file that may still grow."""
        if not self.sealed:
            return None
        try:
            status = os.stat(self.path)
            path = os.path.realpath(self.path)
        except OSError:
            return None
        name = b"\0".join([_FORM, os.fsencode(path), b"%d %d" % (status.st_size, status.st_mtime_ns)])
        return cache_folder() / hashlib.sha256(name).hexdigest()[:40]


def _load(file: Path) -> tuple[int, bytes] | None:
    """Size of the segment and its digests; None where the cache has none, or a broken one."""
    try:
        data = file.read_bytes()
        lines = zstandard.ZstdDecompressor().decompress(data[_SIZE_BYTES:], max_output_size=_MAX_BYTES)
    except (OSError, zstandard.ZstdError):
        return None
    return (int.from_bytes(data[:_SIZE_BYTES], "little"), lines) if lines.endswith(b"\n") else None


def _store(file: Path, size: int, data: bytes) -> None:
    """Keep it, whole or not at all; a full disk or a cache that is not ours is no trouble."""
    tmp = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            tmp.write_bytes(size.to_bytes(_SIZE_BYTES, "little") + data)
            os.replace(tmp, file)
        finally:
            tmp.unlink(missing_ok=True)
    except OSError:
        return
