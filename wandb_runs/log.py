"""The records of a `.wandb` file: W&B's transaction log of a run, finished, killed or still being written.

The form is LevelDB's log with another beginning (`wandb/sdk/internal/datastore.py` of wandb 0.17, `core/pkg/leveldb`
since): blocks of 32 KiB with records of checksum, length, type and data; a record that does not fit goes on in the
next block. Damage and a torn end cost the records that they hit.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..reader.places import open_buffered

__all__ = ["IDENT", "LogRecord", "read_log", "read_whole"]

# How such a file begins.
IDENT = b":W&B"
_FILE_HEADER = 7
_BLOCK = 32 << 10
_HEAD = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class LogRecord(NamedTuple):
    """The bytes of a protobuf message `Record`, and where in the file it ends."""

    data: bytes
    end: int


def read_log(path: Path, limit: int | None = None) -> Iterator[bytes]:
    """The whole records of the file, in order, each the bytes of a protobuf message `Record`; up to `limit` bytes.

    A file that is none, or empty, has no records.

    Raises:
        OSError: it cannot be read.
    """
    return (record.data for record in _records(path, limit, to_the_first_damage=False))


def read_whole(path: Path) -> Iterator[LogRecord]:
    """The records before the first damage or the torn end, which is as far as wandb itself reads.

    Raises:
        OSError: it cannot be read.
    """
    return _records(path, None, to_the_first_damage=True)


def _records(path: Path, limit: int | None, *, to_the_first_damage: bool) -> Iterator[LogRecord]:
    parts: list[bytes] = []
    with open_buffered(path) as file:
        read = 0
        block = file.read(_BLOCK)
        if not block.startswith(IDENT):
            return
        at = _FILE_HEADER
        while block and (limit is None or read < limit):
            for kind, data, end in _fragments(block, at):
                at = end
                if to_the_first_damage and (kind in (_MIDDLE, _LAST)) != bool(parts):
                    return
                if kind in (_FULL, _FIRST):
                    parts = [data]
                elif parts:
                    parts.append(data)
                if kind in (_FULL, _LAST) and parts:
                    yield LogRecord(b"".join(parts), read + end)
                    parts = []
            # what is left of a block is too short for a head, or damaged
            if to_the_first_damage and len(block) - at >= _HEAD.size:
                return
            read += len(block)
            block, at = file.read(_BLOCK), 0


def _fragments(block: bytes, at: int) -> Iterator[tuple[int, bytes, int]]:
    """Type, data and end of the pieces of a block; after a bad one, nothing more of it can be told apart."""
    while at + _HEAD.size <= len(block):
        checksum, length, kind = _HEAD.unpack_from(block, at)
        at += _HEAD.size
        data = block[at : at + length]
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or len(data) < length:
            return
        if zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum:
            return
        at += length
        yield kind, data, at
