"""One segment file: made with its header, appended to, finished with its `close` record. Every step may raise OSError.

A failed append leaves the file as it was before; where even that fails, `Broken` says so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator

import orjson

from ..schemas.files import segment_file_name
from ..schemas.values import encode
from .counters import Counters
from .identity import Identity
from .ids import timestamp
from .loading import loading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

__all__ = ["Broken", "Segment", "close_quietly", "create", "finish", "whole_or_nothing", "write_rest", "write_whole"]


class Broken(OSError):
    """Half a line is in the file and cannot be taken out again; nothing may be appended behind it."""


class Segment:
    """An open segment. `fd` is -1 once it is closed: whoever still holds the object cannot hit a reused number."""

    __slots__ = ("begin", "fd", "inode", "is_durable", "name", "notes", "opened", "records", "size")

    def __init__(self, fd: int, name: str) -> None:
        status = os.fstat(fd)
        self.fd = fd
        self.name = name  # with its folder
        self.inode = (status.st_dev, status.st_ino)
        self.opened = time.monotonic()
        self.records = 0  # lines between header and close
        self.notes = 0  # those of them that are no call's
        self.begin = status.st_size  # bytes of the header
        self.size = 0  # bytes behind it
        self.is_durable = False  # its name survives power loss

    @property
    def path(self) -> Path:
        """Where it lies; made when asked for, since `pathlib` takes long to load."""
        with loading():
            from pathlib import Path
        return Path(self.name)

    def is_ours(self) -> bool:
        """Whether the descriptor leads to the file. A program that closes all that it finds open, as daemons do, closes
        it too, and the number may be another file's by now."""
        try:
            status = os.fstat(self.fd)
        except OSError as error:
            return error.errno != errno.EBADF
        return (status.st_dev, status.st_ino) == self.inode

    def take_descriptor(self) -> int:
        """The descriptor, for the caller to close; -1 where it does not lead to the file any more. From now on -1."""
        fd = self.fd if self.is_ours() else -1
        self.fd = -1
        return fd

    def lines(self) -> int:
        """How many lines are in the file behind the header."""
        with open(self.name, "rb") as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b"")) - 1

    def is_removed(self) -> bool:
        """Whether the file's name is gone or leads to another file; a folder that cannot be asked says no."""
        try:
            status = os.stat(self.name)
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
        return (status.st_dev, status.st_ino) != self.inode


def create(
    folder: str | Path,
    identity: Identity,
    about: dict[str, Any],
    first_index: int,
    name: Callable[[str, int], str] = segment_file_name,
) -> tuple[Segment, int]:
    """A new file with its header, and its index: `first_index` or the next one that is free. `name` is its name's form.

    Raises:
        OSError: the folder refuses; no file is left behind where it can be removed.
    """
    os.makedirs(folder, exist_ok=True)
    index = first_index
    while True:
        path = os.path.join(folder, name(identity.writer, index))
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
            break
        except FileExistsError:
            index += 1
    try:
        write_whole(fd, encode(identity.header(about, index)) + b"\n")
        return Segment(fd, path), index
    except BaseException:
        close_quietly(fd)
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def write_whole(fd: int, data: bytes) -> None:
    """Append all of `data` or nothing of it.

    Raises:
        Broken: a part of it was written and stays.
        OSError: nothing of it is in the file.
    """
    done = os.write(fd, data)
    if done != len(data):
        with whole_or_nothing(fd, done):
            write_rest(fd, data, done)


def write_rest(fd: int, data: bytes, done: int) -> None:
    """Write `data` from byte `done` on: the disk took a part, as it does at 2 GiB and more and where it ends."""
    while done < len(data):
        rest = memoryview(data)[done:]
        count = os.write(fd, rest)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += count


@contextlib.contextmanager
def whole_or_nothing(fd: int, done: int) -> Iterator[None]:
    """Around appending the rest of what `done` bytes are in the file of: takes all of it out when that fails.

    Raises:
        Broken: some of it stays.
    """
    try:
        start = os.lseek(fd, 0, os.SEEK_END) - done
    except OSError as error:
        raise Broken(error.errno, error.strerror) from error
    try:
        yield
    except BaseException:
        try:
            os.ftruncate(fd, start)
        except OSError as error:
            raise Broken(error.errno, error.strerror) from error
        raise


def finish(segment: Segment, reason: str, counters: Counters) -> str:
    """Write the `close` record and close; returns "" or what went wrong. The records are whole either way.

    Not synced: the sealed form, which is, takes its place at once.
    """
    trouble = ""
    record = {
        "kind": "close",
        "closed_at": timestamp(time.time_ns()),
        "reason": reason,
        "records": segment.records,
        "counters": counters.as_dict(),
    }
    fd = segment.take_descriptor()
    try:
        write_whole(fd, orjson.dumps(record) + b"\n")
    except OSError as error:
        trouble = error.strerror or str(error)
    close_quietly(fd)
    return trouble


def close_quietly(fd: int) -> None:
    """Close; what a close may still report, an fsync of the sealed form asks for."""
    with contextlib.suppress(OSError):
        os.close(fd)
