"""Files of the user's cache that are made of sealed segments: where they are, and how they come there.

A sealed segment never changes. What is kept of it has a name made of the file's path, size, time of change and last
bytes, among which is zstd's checksum of the content; so what is kept of another file of that name is never found.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from .cache_trimming import trim_now_and_then, used
from .places import open_file, status

__all__ = ["cache_folder", "kept_file", "load", "store"]

_TAIL = 64


def cache_folder(kind: str) -> Path:
    """Where files of that kind are kept: in VERL_TRACE_CACHE, XDG_CACHE_HOME/verl-trace or ~/.cache/verl-trace."""
    named = os.environ.get("VERL_TRACE_CACHE")
    if named:
        return Path(named) / kind
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        # as the specification of that variable asks
        base = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        # a user without a home has no cache; `~` would be made in the current folder
        base = os.devnull
    return Path(base) / "verl-trace" / kind


def kept_file(path: Path, folder: Path, form: str) -> Path | None:
    """Where `folder` would have what is kept of a sealed file; None of a file that cannot be read."""
    try:
        found = status(path)
        with open_file(path) as file:
            file.seek(max(0, found.size - _TAIL))
            tail = file.read(_TAIL) or b""
        place = os.path.realpath(path)
    except OSError:
        return None
    name = b"\0".join([b"%b %d %r" % (form.encode(), found.size, found.modified), tail, os.fsencode(place)])
    return folder / hashlib.sha256(name).hexdigest()[:40]


def load(file: Path) -> bytes:
    """What is kept.

    Raises:
        OSError: it cannot be read.
    """
    with open(file, "rb") as kept:
        used(file, os.fstat(kept.fileno()).st_mtime)
        return kept.read()


def store(file: Path, data: bytes) -> None:
    """Keep it, whole or not at all; a full disk or a cache that is not ours is no trouble."""
    tmp = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            tmp.write_bytes(data)
            os.replace(tmp, file)
        finally:
            tmp.unlink(missing_ok=True)
        trim_now_and_then(file.parent, len(data))
    except OSError:
        return
