"""The parts of a packed run while they are written: whole tars, of which an interruption costs one file at most."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import orjson

from ..schemas.files import PACK_CHOICE, PACK_END, PACK_SHA256, TMP_SUFFIX, pack_part
from .archive import read_headers, sha256_of
from .places import open_file

__all__ = ["Parts"]

_BLOCK = 512
_CHUNK = 1 << 20
# As long as any.
_NO_SHA256 = "0" * 64
# Ends a tar.
_END_BLOCKS = 2 * _BLOCK


class Parts:
    """A context in which files are added; `publish` gives the parts their names, the first one last.

    No part is larger than `split` bytes but one that holds a single file, or the list of all files alone.

    `kept`: files that an interrupted attempt with the same `choice` had written; `files` and `size` count all.

    Raises:
        OSError: a part cannot be read or written.
    """

    def __init__(self, out: Path, split: int | None, choice: str) -> None:
        self._out, self._split, self._choice = out, split, choice
        self._names: dict[str, tuple[int, float]] = {}
        self._number = 1
        self.files = self.kept = 0

    @property
    def size(self) -> int:
        """Bytes of all parts so far."""
        return self._finished + self._file.tell()

    def __enter__(self) -> Parts:
        self._finished = 0
        number = 1
        while self._existing(number + 1).exists():
            self._take_over(number)
            self._finished += self._existing(number).stat().st_size
            number += 1
        self._number = number
        path = self._partial(number)
        if self._existing(number) != path:
            # all parts but the first had got their names
            os.rename(self._existing(number), path)
        end = self._take_over(number) if path.exists() else 0
        self._file = open(path, "r+b" if path.exists() else "w+b")
        self._file.truncate(end)
        self._file.seek(end)
        self._list = sum(len(_entry(name, part)) + 1 for name, (part, _) in self._names.items() if part == number)
        self.kept = self.files = len(self._names)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def has(self, name: str, modified: float) -> bool:
        """Whether the file is packed as it is now."""
        return name in self._names and self._names[name][1] == modified

    def add(self, name: str, content: bytes, modified: float) -> None:
        """Write a file behind the others, into a new part where this one would become too large."""
        self._make_room(name, len(content), modified)
        self._write(name, content, modified)
        self._note(name, modified)

    def add_file(self, name: str, path: Path, size: int, modified: float) -> None:
        """The same with the first `size` bytes of a file that may be too large for the memory."""
        self._make_room(name, size, modified)
        digest, left = hashlib.sha256(), size
        for chunk in _chunks(path, size):
            digest.update(chunk)
            left -= len(chunk)
        size -= left
        self._file.write(self._head(name, size, modified, digest.hexdigest()))
        for chunk in _chunks(path, size):
            self._file.write(chunk)
        self._file.write(bytes(-size % _BLOCK))
        self._note(name, modified)

    def _make_room(self, name: str, size: int, modified: float) -> None:
        if self._split is None or not self._file.tell():
            return
        member = len(self._head(name, size, modified, _NO_SHA256)) + _blocks(size)
        if self._file.tell() + member + self._end_size(self._list + len(_entry(name, self._number)) + 1) > self._split:
            self._next_part()

    def _next_part(self) -> None:
        self._end_part(last=False)
        self._finished += self._file.tell()
        self._file.close()
        self._number += 1
        self._list = 0
        self._file = open(self._partial(self._number), "w+b")  # noqa: SIM115

    def _end_size(self, entries: int) -> int:
        """Bytes of the end of a part whose list has `entries` bytes of entries."""
        size = len(orjson.dumps({"part": self._number, "last": False, "files": []})) + entries
        return len(self._head(PACK_END, size, 0.0, _NO_SHA256)) + _blocks(size) + _END_BLOCKS

    def _note(self, name: str, modified: float) -> None:
        self._names[name] = self._number, modified
        self._list += len(_entry(name, self._number)) + 1
        self.files = len(self._names)

    def publish(self) -> list[Path]:
        """Write the list of all files, bring everything to the disk and give the parts their names."""
        everything = self._end_size(sum(len(_entry(name, part)) + 1 for name, (part, _) in self._names.items()))
        if self._split is not None and self._file.tell():
            # one file that makes its part too large may as well keep company with the list
            fits = self._file.tell() + self._end_size(self._list) <= self._split
            if fits and self._file.tell() + everything > self._split:
                self._next_part()
        self._end_part(last=True)
        paths = []
        for number in range(self._number, 0, -1):
            path = pack_part(self._out, number)
            if self._existing(number) != path:
                os.rename(self._partial(number), path)
            paths.append(path)
        return paths[::-1]

    def _existing(self, number: int) -> Path:
        path = self._partial(number)
        final = pack_part(self._out, number)
        return final if number > 1 and final.exists() and not path.exists() else path

    def _partial(self, number: int) -> Path:
        part = pack_part(self._out, number)
        return part.with_name(part.name + TMP_SUFFIX)

    def _take_over(self, number: int) -> int:
        """Note what an earlier attempt has written to a part; where its last whole file ends."""
        end = 0
        with open(self._existing(number), "rb") as file:
            for info in read_headers(file):
                member_end = info.offset_data + _blocks(info.size)
                name = info.name
                if name == PACK_END or info.pax_headers.get(PACK_CHOICE, "") != self._choice:
                    break
                if sha256_of(self._existing(number), info.offset_data, info.size) != info.pax_headers.get(PACK_SHA256):
                    break
                self._names[name] = number, float(info.mtime)
                end = member_end
        return end

    def _end_part(self, *, last: bool) -> None:
        here = [{"name": name, "part": part} for name, (part, _) in self._names.items() if last or part == self._number]
        self._write(PACK_END, orjson.dumps({"part": self._number, "last": last, "files": here}), 0.0)
        self._file.write(bytes(_END_BLOCKS))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write(self, name: str, content: bytes, modified: float) -> None:
        self._file.write(self._head(name, len(content), modified, hashlib.sha256(content).hexdigest()))
        self._file.write(content)
        self._file.write(bytes(-len(content) % _BLOCK))

    def _head(self, name: str, size: int, modified: float, sha256: str) -> bytes:
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = size, modified, 0o644
        info.pax_headers = {PACK_SHA256: sha256, PACK_CHOICE: self._choice}
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _entry(name: str, part: int) -> bytes:
    """A file in the list at the end of a part."""
    return orjson.dumps({"name": name, "part": part})


def _blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _chunks(path: Path, size: int) -> Iterator[bytes]:
    with open_file(path) as file:
        while size > 0 and (chunk := file.read(min(_CHUNK, size))):
            size -= len(chunk)
            yield chunk
