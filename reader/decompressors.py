"""zstd's decompressors, each used again after it.

The window of one, 32 MiB for files of the recorder, is memory that zstd touches page by page: to have the system give
it anew for every segment takes half as long as the decompression.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import zstandard

__all__ = ["lent_decompressor", "new_decompressor"]

# A window above this is not ours, and a hostile file must not take the reader's memory.
_MAX_WINDOW = 1 << 27
# What is kept between two files: a window of the recorder's, and what zstd has beside it.
_KEPT_BYTES = 40 << 20

_free: list[zstandard.ZstdDecompressor] = []


def new_decompressor() -> zstandard.ZstdDecompressor:
    """One that takes windows of up to 128 MiB."""
    return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)


@contextmanager
def lent_decompressor() -> Iterator[zstandard.ZstdDecompressor]:
    """One that nobody else uses meanwhile. The process keeps one of at most 40 MiB for whoever comes next."""
    try:
        lent = _free.pop()
    except IndexError:
        lent = new_decompressor()
    try:
        yield lent
    finally:
        if not _free and lent.memory_size() <= _KEPT_BYTES:
            _free.append(lent)
