"""What can be decompressed of a zstd file, whatever happened to it.

A healthy frame is fed to zstd by whole blocks. Where zstd refuses, the frame is fed again by small pieces, and the one
in question byte by byte: so all blocks before the damage come out and its place is known. Reading goes on at the next
frame.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import zstandard

from .decompressors import lent_decompressor, new_decompressor

__all__ = ["BadBytes", "ReadFile", "decompressed"]

# zstd makes up to 11,000 bytes of one: 4 KiB stay below 50 MiB at worst, and larger pieces are not quicker.
_PIECE = 4 << 10
_SCAN = 1 << 20
_READ = 256 << 10
# The most that comes out of a zstd block.
_OUTPUT = 1 << 17
# Blocks at a time: what comes out of them still lies in the processor's cache when it is split into lines.
_BLOCKS = 4
# The most that the head of a frame takes, and what that of a block does.
_FRAME_HEAD = 18
_BLOCK_HEAD = 3
# The type of a block that is one byte and how often it is meant.
_REPEATED_BYTE = 1
_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)


@dataclass(frozen=True)
class BadBytes:
    """Stored bytes that gave nothing, or nothing that can be trusted."""

    offset: int
    length: int
    reason: str


class ReadFile:
    """Reads an open file at chosen places."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file
        self.size = file.seek(0, io.SEEK_END)

    def pieces(self, begin: int, size: int = _PIECE) -> Iterator[tuple[int, bytes]]:
        """`(offset, bytes)` from `begin` to the end of the file."""
        while data := self.at(begin, size):
            yield begin, data
            begin += len(data)

    def at(self, begin: int, size: int) -> bytes:
        """Up to so many bytes from `begin`."""
        self._file.seek(begin)
        return self._file.read(size) or b""

    def find(self, wanted: bytes, begin: int) -> int:
        """The first place of `wanted` from `begin` on; the size of the file when there is none."""
        tail = b""
        for offset, data in self.pieces(begin, _SCAN):
            found = (tail + data).find(wanted)
            if found >= 0:
                return offset - len(tail) + found
            tail = data[1 - len(wanted) :]
        return self.size


def decompressed(file: ReadFile) -> Iterator[bytes | BadBytes]:
    """The content in pieces, none of them empty; where bytes are bad, a `BadBytes` stands in the middle."""
    position = 0
    skipped_from: int | None = None
    while position < file.size:
        frame = _Frame(file, position)
        try:
            yield from frame
            skipped_from = position if frame.skippable else None
            position = frame.end
        except zstandard.ZstdError as error:
            begin, search = frame.damage_begin(error), max(position + len(_MAGIC), frame.good)
            if skipped_from is not None and frame.good == position:
                # no frame where the skippable one says it ends: its length may be what is wrong
                begin, search = skipped_from, skipped_from + len(_MAGIC)
            position = file.find(_MAGIC, search)
            yield BadBytes(begin, position - begin, str(error))
            skipped_from = None


class _Frame:
    """One frame. `end` is where it ends, `good` the place up to which its blocks came out."""

    def __init__(self, file: ReadFile, begin: int) -> None:
        self._file = file
        self._begin = begin
        self.good = begin
        self.end = begin
        self.skippable = False

    def damage_begin(self, error: zstandard.ZstdError) -> int:
        """A wrong checksum puts the whole frame in doubt, anything else only what follows the last block."""
        return self._begin if "checksum" in str(error) else self.good

    def __iter__(self) -> Iterator[bytes]:
        """Decompress.

        Raises:
            ZstdError: the frame is damaged or cut off; all that comes before was yielded.
        """
        head = self._file.at(self._begin, _FRAME_HEAD)
        if len(head) >= 8 and int.from_bytes(head[:4], "little") in _SKIPPABLE:
            self.skippable = True
            self.end = self._begin + 8 + int.from_bytes(head[4:8], "little")
            if self.end > self._file.size:
                raise zstandard.ZstdError("a skippable frame is cut off")
            return
        done = 0
        try:
            for out in self._quickly(head):
                done += len(out)
                yield out
        except zstandard.ZstdError:
            for out in self._carefully():
                if len(out) > done:
                    yield out[done:]
                done = max(0, done - len(out))

    def _quickly(self, head: bytes) -> Iterator[bytes]:
        """Some whole blocks at a time, so that it is known before how much may come out."""
        with lent_decompressor() as lent:
            yield from self._fed(lent.decompressobj(write_size=_BLOCKS * _OUTPUT), head)

    def _fed(self, frame: zstandard.ZstdDecompressionObj, head: bytes) -> Iterator[bytes]:
        checksum = 4 if zstandard.get_frame_parameters(head).has_checksum else 0
        # what was read, where in the file; how much of it was fed, and where the last whole block after that ends
        data, begin = self._file.at(self._begin, _READ), self._begin
        fed, end = 0, zstandard.frame_header_size(head)
        last = False
        while not frame.eof:
            count = 0
            while count < _BLOCKS and not last and len(data) >= end + _BLOCK_HEAD:
                about = int.from_bytes(data[end : end + _BLOCK_HEAD], "little")
                size = 1 if about >> 1 & 3 == _REPEATED_BYTE else about >> 3
                after = end + _BLOCK_HEAD + size + (checksum if about & 1 else 0)
                if after > len(data):
                    break
                end, count, last = after, count + 1, bool(about & 1)
            if count:
                out = frame.decompress(data[fed:end])
                fed = end
                if out:
                    yield out
            else:
                more = b"" if last else self._file.at(begin + len(data), _READ)
                if not more:
                    raise zstandard.ZstdError("the frame is cut off")
                data, begin, end, fed = data[fed:] + more, begin + fed, end - fed, 0
        self.end = begin + fed - len(frame.unused_data)

    def _carefully(self) -> Iterator[bytes]:
        """By small pieces, the one that is refused byte by byte: so all blocks before the damage come out."""
        decompressor = new_decompressor().decompressobj(write_size=_OUTPUT)
        fruitful = self._begin
        for offset, piece in self._file.pieces(self._begin):
            try:
                out = decompressor.decompress(piece)
            except zstandard.ZstdError:
                yield from self._again(fruitful, offset)
                raise
            if out:
                fruitful = offset
                yield out
            if decompressor.eof:
                self.end = offset + len(piece) - len(decompressor.unused_data)
                return
        yield from self._again(fruitful, self._file.size)
        raise zstandard.ZstdError("the frame is cut off")

    def _again(self, slowly_from: int, bad: int) -> Iterator[bytes]:
        """What comes out of the piece at `bad`, fed byte by byte; sets `good`. All before it was yielded already."""
        decompressor = new_decompressor().decompressobj(write_size=_OUTPUT)
        for offset, piece in self._file.pieces(self._begin):
            if offset < slowly_from:
                decompressor.decompress(piece)
                continue
            for index in range(len(piece)):
                try:
                    out = decompressor.decompress(piece[index : index + 1])
                except zstandard.ZstdError:
                    return
                if out:
                    self.good = offset + index + 1
                    if offset >= bad:
                        yield out
