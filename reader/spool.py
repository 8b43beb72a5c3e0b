"""Lines with their times, put aside in a temporary file: for merges of more files than may be open at once."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

import zstandard

__all__ = ["spooled"]

# A small window: what is read back takes little memory.
_PARAMETERS = zstandard.ZstdCompressionParameters.from_level(1, window_log=19)


def spooled(lines: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """The same `(time, line)` pairs, all of them read and put aside before this returns. Times hold no space.

    Raises:
        OSError: TMPDIR has no room for them.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the iterator
    with zstandard.ZstdCompressor(compression_params=_PARAMETERS).stream_writer(file, closefd=False) as out:
        for time, line in lines:
            out.write(time.encode("utf-8", "surrogateescape") + b" " + line)
    file.seek(0)
    return _read_back(file)


def _read_back(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    with file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        for entry in io.BufferedReader(stream):
            time, _, line = entry.partition(b" ")
            yield time.decode("utf-8", "surrogateescape"), line
