"""From a finished raw segment to its sealed form: compress beside it, fsync, rename, fsync the folder, remove the raw
file.

A crash between any two of these steps leaves the raw file, the sealed one, or both with the same records.
"""

from __future__ import annotations

import os
from pathlib import Path

import zstandard

from ..schemas.files import RAW_SUFFIX, SEALED_SUFFIX, TMP_SUFFIX

__all__ = ["compress_file", "seal"]

_CHUNK = 1 << 20
_LEVEL = 3
# 16 MiB: prompt ids of the turn before are mostly within reach, and the compressor stays small.
_WINDOW_LOG = 24


def seal(raw: Path) -> Path:
    """Replace `<name>.jsonl` by `<name>.jsonl.zst`; returns the new path.

    Raises:
        OSError: a step failed; the raw file is still there and complete.
    """
    sealed = raw.with_name(raw.name.removesuffix(RAW_SUFFIX) + SEALED_SUFFIX)
    tmp = sealed.with_name(sealed.name + TMP_SUFFIX)
    try:
        compress_file(raw, tmp)
        os.rename(tmp, sealed)
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise
    sync_folder(raw.parent)
    raw.unlink(missing_ok=True)
    return sealed


def compress_file(source: Path, target: Path) -> None:
    """Write `source` as one zstd frame with checksum to `target` and fsync it."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=_WINDOW_LOG, enable_ldm=True, write_checksum=True, write_content_size=True
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with open(source, "rb") as src, open(target, "wb") as dst:
        size = os.fstat(src.fileno()).st_size
        compressor.copy_stream(src, dst, size=size, read_size=_CHUNK, write_size=_CHUNK)
        dst.flush()
        os.fsync(dst.fileno())


def sync_folder(folder: Path) -> None:
    """fsync a folder, so that a rename in it survives power loss."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
