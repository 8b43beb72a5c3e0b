"""A packed run: one tar, or several parts that are each a whole tar, read in place.

`X.tar` goes on in `X.part2.tar`, `X.part3.tar`, …, each readable by plain `tar`. Every member carries its SHA-256 in a
PAX header; the last member of a part says whether another one follows, that of the last part lists all files. A part
that is missing or damaged is a value in `problems`, and whatever else is there is read.
"""

from __future__ import annotations

import functools
import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import orjson

from ..schemas.files import PACK_END, PACK_SHA256, pack_part, parse_pack_part
from ..schemas.wording import counted

__all__ = ["Archive", "Member", "Window", "is_archive", "read_headers", "sha256_of"]

_CHUNK = 1 << 20
_BLOCK = 512
# The list at the end of a part: a hundred bytes a file.
_MAX_END = 64 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """Where the bytes of one file lie."""

    name: str
    part: Path
    offset: int
    size: int
    modified: float
    sha256: str


class Window(io.RawIOBase):
    """The bytes of a member as a file opened for reading."""

    def __init__(self, member: Member) -> None:
        super().__init__()
        self._begin, self._size, self._at = member.offset, member.size, 0
        self._file = open(member.part, "rb", buffering=0)  # noqa: SIM115

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As of any raw file."""
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        self._file.seek(self._begin + self._at)
        count = self._file.readinto(memoryview(buffer)[:wanted]) or 0
        self._at += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of any raw file."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def close(self) -> None:
        """Close the part."""
        if not self.closed:
            self._file.close()
        super().close()


def is_archive(path: Path) -> bool:
    """Whether `path` is a packed run, by its name: a damaged one is one, too."""
    return path.suffix == ".tar" and path.is_file()


class Archive:
    """The files of all parts of a pack. Reads the tar headers, not the files.

    `problems`: what is missing or damaged, one sentence each.

    Raises:
        OSError: the part that was named cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members: dict[str, Member] = {}
        self.folders: set[str] = {""}
        self.problems: list[str] = []
        self._listed: list[dict[str, Any]] | None = None
        first, _ = parse_pack_part(path)
        numbers = sorted({parse_pack_part(found)[1] for found in _parts(first)})
        expected, goes_on = 1, False
        for number in numbers:
            self._miss(first, range(expected, number))
            goes_on = self._read(pack_part(first, number))
            expected = number + 1
        if goes_on:
            self.problems.append(f"{pack_part(first, expected).name} is missing, and whatever parts follow it")
        self._miss_files()

    def check(self) -> list[str]:
        """Read every file and compare its checksum; what does not fit, one sentence each."""
        return list(self.damaged.values())

    @functools.cached_property
    def damaged(self) -> dict[str, str]:
        """Names of files that are not as they were packed, and what is wrong with them. Reads all of them, once."""
        found = {}
        # a tar of somebody else's has no checksums at all
        is_ours = any(member.sha256 for member in self.members.values())
        for name, member in self.members.items():
            if is_ours and not member.sha256:
                found[name] = f"{member.part.name}: the checksum of {name} is lost; nothing vouches for it"
            if member.sha256 and sha256_of(member.part, member.offset, member.size) != member.sha256:
                found[name] = f"{member.part.name}: {name} is not what was packed (its SHA-256 differs)"
        return found

    def _read(self, part: Path) -> bool:
        """Take in the members of a part; whether another part follows it."""
        end: dict[str, Any] | None = None
        size = part.stat().st_size
        with open(part, "rb") as file:
            for info in read_headers(file):
                if not info.isreg():
                    continue
                name = _safe(info.name)
                if name is None:
                    self.problems.append(f"{part.name}: a file with the name {info.name!r} is passed over")
                    continue
                sha256 = info.pax_headers.get(PACK_SHA256, "")
                member = Member(name, part, info.offset_data, info.size, float(info.mtime), sha256)
                if info.offset_data + info.size > size:
                    self.problems.append(f"{part.name} is cut off: {name} is not whole")
                    member = Member(name, part, info.offset_data, max(0, size - info.offset_data), member.modified, "")
                if PurePosixPath(name).name == PACK_END:
                    end = _end(member)
                    continue
                self.members[name] = member
                self.folders |= {str(parent) for parent in PurePosixPath(name).parents} - {"."}
        if end is None:
            self.problems.append(
                f"{part.name} has no whole list of its files at its end: cut off, damaged or unfinished"
            )
            # nobody knows; a part that is there is found anyway
            return False
        self._listed = end.get("files", self._listed)
        return not end.get("last", True)

    def _miss(self, first: Path, numbers: range) -> None:
        self.problems += [f"{pack_part(first, number).name} is missing" for number in numbers]

    def _miss_files(self) -> None:
        """What the last part lists and no part has."""
        lost: dict[str, int] = {}
        for entry in self._listed or ():
            if entry["name"] not in self.members:
                part = pack_part(parse_pack_part(self.path)[0], entry["part"]).name
                lost[part] = lost.get(part, 0) + 1
        self.problems += [f"{counted(count, 'file')} of {part} cannot be found" for part, count in lost.items()]


def _parts(first: Path) -> list[Path]:
    if not first.parent.is_dir():
        return []
    found = [path for path in first.parent.iterdir() if path.suffix == ".tar" and parse_pack_part(path)[0] == first]
    return [path for path in found if path.is_file()] or [first]


def read_headers(file: io.BufferedReader) -> Iterator[tarfile.TarInfo]:
    """The members' headers; blocks that are none are stepped over, so that damage costs one member."""
    begin = 0
    while True:
        file.seek(begin)
        try:
            with tarfile.open(fileobj=file, mode="r:", ignore_zeros=True) as tar:
                for info in tar:
                    begin = info.offset_data
                    yield info
            return
        except (tarfile.TarError, ValueError, OverflowError):
            # a PAX header without the header that belongs to it: go on behind it
            begin += _BLOCK
            if begin >= file.seek(0, io.SEEK_END):
                return


def sha256_of(path: Path, offset: int, size: int) -> str:
    """SHA-256 of a stretch of a file, in hex."""
    digest = hashlib.sha256()
    with Window(Member("", path, offset, size, 0.0, "")) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _safe(name: str) -> str | None:
    """A relative path without steps upwards."""
    path = PurePosixPath(name)
    return None if path.is_absolute() or ".." in path.parts or not path.parts else str(path)


def _end(member: Member) -> dict[str, Any] | None:
    with Window(member) as file:
        data = file.read(_MAX_END)
    if not member.sha256 or hashlib.sha256(data or b"").hexdigest() != member.sha256:
        return None
    value = orjson.loads(data)
    return value if isinstance(value, dict) else None
