"""Where span files lie: in a folder, or in a packed run, under paths of the same form (`X.tar/exp1/….jsonl.zst`).

Everything in `reader/` opens, lists and looks at files by these functions.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from .archive import Archive, Member, Window, is_archive

__all__ = [
    "NO_FILE",
    "Status",
    "archive_at",
    "folders_in",
    "is_file",
    "is_folder",
    "list_files",
    "list_folder",
    "may_be_read",
    "open_buffered",
    "open_file",
    "status",
]


# What is said of a pipe, a socket, a device or a folder in the place of a file.
NO_FILE = "is no regular file, and is not read"


@dataclass(frozen=True, slots=True)
class Status:
    """Size in bytes, time of change in seconds since the epoch."""

    size: int
    modified: float


def open_file(path: Path) -> io.RawIOBase:
    """Open for reading, unbuffered.

    Raises:
        OSError: as `open` does, and for what is no regular file.
    """
    try:
        return open(path, "rb", buffering=0, opener=_regular)
    except NotADirectoryError:
        return Window(_member(path))


def _regular(path: str, flags: int) -> int:
    """A descriptor of a regular file. A pipe, a socket or a device would keep us waiting, or never end."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        # a socket
        raise _no_file(path) if error.errno == errno.ENXIO else error from None
    mode = os.fstat(descriptor).st_mode
    # of a folder, `open` says what it is
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(descriptor)
        raise _no_file(path)
    return descriptor


def _no_file(path: str) -> OSError:
    return OSError(errno.EINVAL, NO_FILE, path)


def open_buffered(path: Path) -> io.BufferedReader:
    """Open for reading lines or small pieces.

    Raises:
        OSError: as `open` does.
    """
    return io.BufferedReader(open_file(path))


def status(path: Path) -> Status:
    """Size and time of a file.

    Raises:
        OSError: as `os.stat` does.
    """
    try:
        found = os.stat(path)
    except NotADirectoryError:
        member = _member(path)
        return Status(member.size, member.modified)
    return Status(found.st_size, found.st_mtime)


def is_file(path: Path) -> bool:
    """Whether a regular file is there, itself or by a symbolic link."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except NotADirectoryError:
        found = archive_at(path)
        return found is not None and found[1] in found[0].members
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether it can be listed: a folder, a packed run, or a folder in one."""
    if path.is_dir():
        return True
    found = archive_at(path)
    return found is not None and found[1] in found[0].folders


def folders_in(path: Path) -> list[Path]:
    """The folders right below `path`, in order of their names; packed runs are none.

    Raises:
        OSError: as `os.scandir` does.
    """
    try:
        return sorted(Path(entry.path) for entry in os.scandir(path) if entry.is_dir())
    except NotADirectoryError:
        return [path / name for name in sorted(list_folder(path)) if is_folder(path / name)]


def list_files(path: Path) -> tuple[list[str], list[str]]:
    """Names in a folder that are files, or links to one, and those that are not; in no order.

    Raises:
        OSError: as `os.scandir` does.
    """
    names: tuple[list[str], list[str]] = [], []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                names[not may_be_read(entry)].append(entry.name)
    except NotADirectoryError:
        return list_folder(path), []
    return names


def may_be_read(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, or a link to one, as far as anybody knows."""
    try:
        # what has gone since it was listed is there in another form
        return entry.is_file() or not os.path.lexists(entry.path)
    except OSError:
        # whoever reads it is told why not
        return True


def list_folder(path: Path) -> list[str]:
    """Names in a folder, in no order.

    Raises:
        OSError: as `os.listdir` does.
    """
    try:
        return os.listdir(path)
    except NotADirectoryError:
        found = archive_at(path)
        if found is None or found[1] not in found[0].folders:
            raise
    archive, inside = found
    depth = len(inside) + 1 if inside else 0
    names = [*archive.members, *archive.folders]
    return sorted(
        {name[depth:].split("/")[0] for name in names if name and (not inside or name.startswith(f"{inside}/"))}
    )


def archive_at(path: Path) -> tuple[Archive, str] | None:
    """The packed run that `path` is or lies in, and the path inside ("" for itself)."""
    for place in (path, *path.parents):
        try:
            found = os.stat(place)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None
        if not is_archive(place):
            return None
        inside = "" if place == path else str(path.relative_to(place))
        return _archive(place, found.st_size, found.st_mtime_ns), inside
    return None


@functools.lru_cache(maxsize=64)
def _archive(path: Path, size: int, modified: int) -> Archive:
    return Archive(path)


def _member(path: Path) -> Member:
    found = archive_at(path)
    member = found[0].members.get(found[1]) if found is not None else None
    if member is None:
        raise FileNotFoundError(2, os.strerror(2), str(path))
    return member
