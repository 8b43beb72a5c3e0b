"""The bytes of a span file in large pieces, for those who search before they parse.

Ten times as fast as line by line, and without the care for damage of `segments`: where zstd refuses, ZstdError is
raised, and the caller begins again there.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import zstandard

from .decompressors import lent_decompressor
from .places import open_file

__all__ = ["Block", "blocks"]

_READ = 1 << 20
# Compressed bytes at a time: what comes out of 32 KiB still lies in the processor's cache when it is searched.
_PIECE = 32 << 10
_WRITE = 1 << 17


class Block(NamedTuple):
    """Whole lines: those of `data` from `begin` to `end`."""

    data: bytes
    begin: int
    end: int


def blocks(path: Path, *, sealed: bool) -> Iterator[Block]:
    """The whole lines of a file in large pieces; the end of a live or torn file that is none is left out.

    Nothing is copied but the lines that two pieces share.

    Raises:
        ZstdError: the file is damaged, or cut off.
        OSError: it cannot be read.
    """
    rest: list[bytes] = []
    for piece in _pieces(path, sealed=sealed):
        begin = piece.find(b"\n") + 1
        if not begin:
            rest.append(piece)
            continue
        line = b"".join([*rest, piece[:begin]])
        yield Block(line, 0, len(line))
        end = piece.rfind(b"\n") + 1
        if end > begin:
            yield Block(piece, begin, end)
        rest = [piece[end:]]


def _pieces(path: Path, *, sealed: bool) -> Iterator[bytes]:
    with open_file(path) as file:
        if not sealed:
            while data := file.read(_READ):
                yield data
            return
        with lent_decompressor() as decompressor:
            yield from _decompressed(file, decompressor)


def _decompressed(file: io.RawIOBase, decompressor: zstandard.ZstdDecompressor) -> Iterator[bytes]:
    # frames of a sealed file follow each other; a file that ends within one was cut off
    pending = file.read(_PIECE) or b""
    while pending:
        frame = decompressor.decompressobj(write_size=_WRITE)
        while True:
            out = frame.decompress(pending)
            if out:
                yield out
            if frame.eof:
                pending = frame.unused_data or file.read(_PIECE) or b""
                break
            pending = file.read(_PIECE) or b""
            if not pending:
                raise zstandard.ZstdError("the frame is cut off")
