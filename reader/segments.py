"""The whole lines of one span file, raw or sealed, live, torn or damaged.

A raw file is read up to its last newline; what follows is a line being written, or torn off by a kill. In a sealed
file, bytes that zstd refuses are damage: every block before them is read, and reading goes on at the next frame.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .frames import ReadFile, decompressed
from .places import open_file

__all__ = ["Damage", "SegmentLines"]

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Damage:
    """Bytes that could not be read as records.

    `offset` and `length` count bytes of the file as stored for `zstd` damage, of the decompressed stream otherwise.
    `kind`: `torn` (the end of a file that was being written), `line` (no record), `zstd` (the compressed form is
    broken), `header` (the file does not say whose it is), `schema` (written by a newer version), `unreadable`.
    """

    path: Path
    offset: int
    length: int
    kind: str
    reason: str


class SegmentLines:
    """Iterates `(offset, line)` of one file, lines with newline; then `damages` tells what was wrong.

    `size` is the number of decompressed bytes seen, the last `rest` of them part of a line; reading stops at `limit` of
    them. A raw file that has gone was sealed: then `sealed_path` is read. `path` is the file that was read. Memory:
    some MiB and the longest line.

    Raises:
        OSError: the file cannot be opened or read.
    """

    def __init__(self, path: Path, *, sealed: bool, sealed_path: Path | None = None, limit: int | None = None) -> None:
        self.path = path
        self.sealed = sealed
        self.damages: list[Damage] = []
        self.size = 0
        self.rest = 0
        self._sealed_path = sealed_path
        self._limit = limit

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        with self._open() as file:
            yield from self._lines(self._limited(self._chunks(file)))

    def _open(self) -> io.RawIOBase:
        try:
            return open_file(self.path)
        except FileNotFoundError:
            if self.sealed or self._sealed_path is None:
                raise
        self.path, self.sealed = self._sealed_path, True
        return open_file(self.path)

    def _chunks(self, file: io.RawIOBase) -> Iterator[bytes]:
        """The content in pieces; an empty one marks a place where bytes are missing."""
        if not self.sealed:
            while chunk := file.read(_CHUNK):
                yield chunk
            return
        for piece in decompressed(ReadFile(file)):
            if isinstance(piece, bytes):
                yield piece
            else:
                self.damages.append(Damage(self.path, piece.offset, piece.length, "zstd", piece.reason))
                yield b""

    def _limited(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            # read on at the limit itself: damage may follow, and is to be told
            if self._limit is not None and self.size + len(chunk) > self._limit:
                chunk = chunk[: self._limit - self.size]
                self.size += len(chunk)
                # an empty piece would say that bytes are missing
                if chunk:
                    yield chunk
                return
            self.size += len(chunk)
            yield chunk

    def _lines(self, chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
        offset = 0
        rest: list[bytes] = []
        for chunk in chunks:
            if not chunk:
                if self.rest:
                    self._cut_off(offset, self.rest, "line", "cut off by the damage that follows")
                    offset += self.rest
                    rest, self.rest = [], 0
                continue
            first = chunk.find(b"\n") + 1
            if not first:
                rest.append(chunk)
                self.rest += len(chunk)
                continue
            line = b"".join([*rest, chunk[:first]])
            yield offset, line
            offset += len(line)
            rest, self.rest = [], 0
            if first == len(chunk):
                continue
            # it copies nothing but the lines
            lines = io.BytesIO(chunk)
            lines.seek(first)
            for line in lines:
                if not line.endswith(b"\n"):
                    rest, self.rest = [line], len(line)
                    break
                yield offset, line
                offset += len(line)
        if self.rest:
            self._cut_off(offset, self.rest, "torn", "the last line has no end")

    def _cut_off(self, offset: int, length: int, kind: str, reason: str) -> None:
        self.damages.append(Damage(self.path, offset, length, kind, reason))
