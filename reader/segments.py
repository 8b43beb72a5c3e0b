"""The whole lines of one span file, raw or sealed, live, torn or damaged.

A raw file is read up to its last newline; what follows is a line being written, or torn off by a kill. In a sealed
file, bytes that zstd refuses are damage: all that decompresses before them is read, and reading goes on at the next
frame.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

__all__ = ["Damage", "SegmentLines"]

_CHUNK = 1 << 20
_FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
# A window above this is not ours, and a hostile file must not take the reader's memory.
_MAX_WINDOW = 1 << 27


@dataclass(frozen=True)
class Damage:
    """Bytes that could not be read as records.

    `offset` and `length` count bytes of the file as stored for `zstd` damage, of the decompressed stream otherwise.
    `kind`: `torn` (the end of a file that was being written), `line` (no record), `zstd` (the
    compressed form is broken).
    """

    path: Path
    offset: int
    length: int
    kind: str
    reason: str


class SegmentLines:
    """Iterates `(offset, line)` of one file, lines with newline; then `damages` tells what was wrong.

    `size` is the number of decompressed bytes seen. Memory: one chunk and the longest line.

    Raises:
        OSError: the file cannot be opened or read.
    """

    def __init__(self, path: Path, *, sealed: bool) -> None:
        self.path = path
        self.sealed = sealed
        self.damages: list[Damage] = []
        self.size = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        with open(self.path, "rb", buffering=0) as file:
            chunks = self._decompressed(file) if self.sealed else iter(lambda: file.read(_CHUNK), b"")
            yield from self._lines(chunks)

    def _lines(self, chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
        offset = 0
        rest: list[bytes] = []
        rest_size = 0
        for chunk in chunks:
            self.size += len(chunk)
            if b"\n" not in chunk:
                # an empty chunk marks a place where bytes are missing: what was begun there has no end
                if not chunk and rest:
                    self._torn(offset, rest_size, "cut off by damage")
                    offset += rest_size
                    rest, rest_size = [], 0
                rest.append(chunk)
                rest_size += len(chunk)
                continue
            first = chunk.index(b"\n") + 1
            line = b"".join([*rest, chunk[:first]])
            yield offset, line
            offset += len(line)
            end = chunk.rindex(b"\n") + 1
            if end > first:
                for line in io.BytesIO(chunk[first:end]):
                    yield offset, line
                    offset += len(line)
            rest = [chunk[end:]]
            rest_size = len(chunk) - end
        if rest_size:
            self._torn(offset, rest_size, "the last line has no end")

    def _torn(self, offset: int, length: int, reason: str) -> None:
        self.damages.append(Damage(self.path, offset, length, "torn", reason))

    def _decompressed(self, file: BinaryIO | io.FileIO) -> Iterator[bytes]:
        position = 0
        size = os.fstat(file.fileno()).st_size
        while position < size:
            file.seek(position)
            frame = _Frame(file)
            try:
                yield from frame
                position += frame.consumed
                continue
            except zstandard.ZstdError as error:
                reason = str(error)
            if frame.ended_early:
                self.damages.append(Damage(self.path, position, size - position, "zstd", "the last frame is cut off"))
                return
            following = _next_frame(file, position + 4, size)
            self.damages.append(Damage(self.path, position, following - position, "zstd", reason))
            yield b""
            position = following


class _Frame:
    """Decompresses one frame; `consumed` is its stored length once it was read to its end."""

    def __init__(self, file: BinaryIO | io.FileIO) -> None:
        self._file = file
        self.consumed = 0
        self.ended_early = False

    def __iter__(self) -> Iterator[bytes]:
        head = self._file.read(_CHUNK) or b""
        if 0x184D2A50 <= int.from_bytes(head[:4], "little") <= 0x184D2A5F and len(head) >= 8:
            self.consumed = 8 + int.from_bytes(head[4:8], "little")
            return
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj(write_size=_CHUNK)
        data = head
        while data:
            out = decompressor.decompress(data)
            if out:
                yield out
            self.consumed += len(data) - len(decompressor.unused_data)
            if decompressor.eof:
                return
            data = self._file.read(_CHUNK) or b""
        self.ended_early = True
        raise zstandard.ZstdError("the frame has no end")


def _next_frame(file: BinaryIO | io.FileIO, position: int, size: int) -> int:
    """Where the next frame may begin, `size` when nowhere."""
    overlap = len(_FRAME_MAGIC) - 1
    while position < size:
        file.seek(position)
        data = file.read(_CHUNK) or b""
        found = data.find(_FRAME_MAGIC)
        if found >= 0:
            return position + found
        if len(data) <= overlap:
            break
        position += len(data) - overlap
    return size
