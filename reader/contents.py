"""Contents of side files: found by digest, checked when read. A file may be growing, torn or damaged."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import orjson

from ..schemas.files import SIDE_SUFFIX, parse_side_file_name
from ..schemas.side import digest_of, is_digest
from .places import list_folder, open_buffered, status
from .segments import Damage

__all__ = ["Content", "SideFile", "SideFiles", "file_size", "side_files"]

_MARK = b'{"kind":"blob","digest":"'
# The line before a content is short; a header takes a few kilobytes.
_LINE_BYTES = 1 << 16
_SCAN = 1 << 20


class Content(NamedTuple):
    """Where a content lies: `offset` of its first byte. Not checked yet."""

    path: Path
    digest: str
    offset: int
    size: int

    def read(self) -> bytes | None:
        """The bytes; None where they are not what the digest says, or the file is gone."""
        try:
            with open_buffered(self.path) as file:
                file.seek(self.offset)
                data = file.read(self.size)
        except OSError:
            return None
        return data if len(data) == self.size and digest_of(data) == self.digest else None


class SideFile:
    """Iterates the contents of one side file; then `damages` tells what was wrong, `closed` whether it ends as it
    should.

    Raises:
        OSError: the file cannot be opened or read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damages: list[Damage] = []
        self.closed = False

    def __iter__(self) -> Iterator[Content]:
        with open_buffered(self.path) as file:
            size = file.seek(0, os.SEEK_END)
            at = 0
            while at < size:
                file.seek(at)
                line = file.readline(_LINE_BYTES)
                content = _content(self.path, at, line)
                if content is not None:
                    end = content.offset + content.size
                    file.seek(end)
                    if end < size and file.read(1) == b"\n":
                        yield content
                        at = end + 1
                        continue
                elif at == 0 and line.startswith(b'{"kind":"header"') and line.endswith(b"\n"):
                    at = len(line)
                    continue
                elif line.startswith(b'{"kind":"close"') and line.endswith(b"\n"):
                    self.closed = True
                    at += len(line)
                    continue
                at = self._skip(file, at, size)

    def _skip(self, file: IO[bytes], at: int, size: int) -> int:
        """The next place where a content may begin."""
        found = _find(file, b"\n" + _MARK, at + 1)
        end = size if found is None else found + 1
        kind = "torn" if end == size else "blob"
        reason = "the last content has no end" if kind == "torn" else "no content and no record"
        self.damages.append(Damage(self.path, at, end - at, kind, reason))
        return end


class SideFiles:
    """All contents of one writer, shared by threads: who asks while another one looks waits for the answer."""

    def __init__(self, folder: Path, writer: str) -> None:
        self.folder = folder
        self.writer = writer
        self._index: dict[str, Content] = {}
        self._seen: list[tuple[Path, int]] = []
        self._lock = threading.Lock()

    def get(self, digest: str) -> bytes | None:
        """A content; None when it is not there or is not whole."""
        found = self._find(digest)
        return found.read() if found is not None else None

    def has(self, digest: str) -> bool:
        """Whether a content is there, which may be damaged: it is not read."""
        return self._find(digest) is not None

    def _find(self, digest: str) -> Content | None:
        with self._lock:
            if digest not in self._index:
                self._look()
            return self._index.get(digest)

    def _look(self) -> None:
        """Read what is there, unless nothing was written since the last look."""
        now = [(path, file_size(path)) for path in side_files(self.folder, self.writer)]
        if now != self._seen:
            self._index = {content.digest: content for path, _ in now for content in _in(path)}
            self._seen = now


def side_files(folder: Path, writer: str | None = None) -> list[Path]:
    """The side files of a writer, or of all in the folder, in order."""
    try:
        names = list_folder(folder)
    except OSError:
        return []
    # parsed are few of them: each of a thousand writers asks for its own
    found = [(parse_side_file_name(name), name) for name in names if name.endswith(SIDE_SUFFIX)]
    of_whom = [(parsed, name) for parsed, name in found if parsed is not None and writer in (None, parsed[0])]
    return [folder / name for _, name in sorted(of_whom)]


def file_size(path: Path) -> int:
    """Bytes of a file, also within a packed run; 0 when it is gone."""
    try:
        return status(path).size
    except OSError:
        return 0


def _in(path: Path) -> list[Content]:
    try:
        return list(SideFile(path))
    except OSError:
        return []


def _content(path: Path, at: int, line: bytes) -> Content | None:
    if not line.startswith(_MARK) or not line.endswith(b"\n"):
        return None
    try:
        head = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    digest, size = head.get("digest"), head.get("size")
    if not is_digest(digest) or type(size) is not int or size < 0:
        return None
    return Content(path, digest, at + len(line), size)


def _find(file: IO[bytes], wanted: bytes, begin: int) -> int | None:
    file.seek(begin)
    tail = b""
    while data := file.read(_SCAN):
        place = (tail + data).find(wanted)
        if place >= 0:
            return begin - len(tail) + place
        begin += len(data)
        tail = data[1 - len(wanted) :]
    return None
