"""From a finished raw segment to its sealed form: compress beside it, fsync, rename, fsync the folder, remove the raw
file.

A crash between any two of these steps leaves the raw file, the sealed one, or both with the same records.
"""

from __future__ import annotations

import contextlib
import os

from ..schemas.files import RAW_SUFFIX, SEALED_SUFFIX, TMP_SUFFIX
from .loading import loading
from .segment import close_quietly, write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["compress_file", "seal", "sealed_path", "sync_file", "sync_folder"]

_CHUNK = 1 << 20


def sealed_path(raw: Path) -> Path:
    """Where the sealed form of a raw segment lies."""
    return raw.with_name(raw.name.removesuffix(RAW_SUFFIX) + SEALED_SUFFIX)


def seal(raw: Path, token: str = "") -> Path:
    """Replace `<name>.jsonl` by `<name>.jsonl.zst`; returns the new path. It keeps the time of the last change.

    `token` makes the temporary name one's own where several processes may seal the same file.

    Raises:
        OSError: a step failed; the raw file is still there and complete.
    """
    sealed = sealed_path(raw)
    tmp = sealed.with_name(sealed.name + (f".{token}" if token else "") + TMP_SUFFIX)
    try:
        compress_file(raw, tmp)
        os.rename(tmp, sealed)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(tmp)
        raise
    sync_folder(raw.parent)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(raw)
    return sealed


def compress_file(source: Path, target: Path) -> None:
    """Write `source` as one zstd frame with checksum to `target` and fsync it.

    Raises:
        OSError: reading or writing failed; a part of `target` may be there.
    """
    # by a thread that has time: it takes longer than the rest of the recorder
    with loading():
        from ..schemas.compression import segment_compressor
    src = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(src)
        compressor = segment_compressor().compressobj(size=status.st_size)
        dst = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            while chunk := os.read(src, _CHUNK):
                if data := compressor.compress(chunk):
                    write_whole(dst, data)
            write_whole(dst, compressor.flush())
            # a reader on another host tells a live writer from a dead one by it
            os.utime(dst, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.fsync(dst)
        finally:
            close_quietly(dst)
    finally:
        close_quietly(src)


def sync_file(path: Path) -> None:
    """fsync a file by its name."""
    _sync(path, os.O_RDONLY | os.O_CLOEXEC)


def sync_folder(folder: str | Path) -> None:
    """fsync a folder, so that a rename in it survives power loss."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _sync(path: str | Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        close_quietly(fd)
