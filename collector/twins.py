"""Copies of open segments at the destination whose sealed form has arrived: a pass that was killed between publishing
the one and removing the other leaves both."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import zstandard

from ..schemas.files import SEALED_SUFFIX, parse_segment_name

__all__ = ["remove_twins"]

_CHUNK = 1 << 20


def remove_twins(folder: Path) -> None:
    """Remove raw segments of which the sealed form beside them begins with the same bytes.

    Raises:
        OSError: the folder cannot be listed.
    """
    names = set(os.listdir(folder))
    for name in names:
        if not name.endswith(SEALED_SUFFIX) or parse_segment_name(name) is None:
            continue
        raw, sealed = folder / name.removesuffix(".zst"), folder / name
        if raw.name not in names:
            continue
        # what cannot be read, or holds something else, is for `verify` to tell
        with contextlib.suppress(OSError, zstandard.ZstdError):
            if _begins_with(sealed, raw):
                os.unlink(raw)


def _begins_with(sealed: Path, raw: Path) -> bool:
    with open(raw, "rb") as short, open(sealed, "rb") as file:
        content = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        while chunk := short.read(_CHUNK):
            if _read(content, len(chunk)) != chunk:
                return False
    return True


def _read(content: zstandard.ZstdDecompressionReader, size: int) -> bytes:
    parts, left = [], size
    while left and (part := content.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
