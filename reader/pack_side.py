"""A side file on its way into a pack of some trajectories: the contents that their records refer to, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson

from .contents import SideFile
from .places import open_buffered
from .records import parse_record, trace_id_of
from .segments import Damage
from .writers import Writer

__all__ = ["chosen_contents", "copy_contents"]

_NAMED = b'"blobs":['
_HEADER_BYTES = 1 << 16


def chosen_contents(writer: Writer, chosen: Callable[[str], bool]) -> set[str]:
    """Digests that the records of chosen trajectories refer to."""
    found: set[str] = set()
    for segment in writer.segments:
        for _, line in segment.lines():
            if _NAMED not in line or not chosen(trace_id_of(line)):
                continue
            record = parse_record(line)
            names = record.head.get("blobs") if record is not None else None
            found |= {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
    return found


def copy_contents(path: Path, wanted: set[str], target: Path) -> list[Damage]:
    """Write the wanted contents of a side file to `target`, with header and end as they are; what cannot be copied.

    Raises:
        OSError
    """
    damages = []
    file, count = SideFile(path), 0
    with open(target, "wb") as out:
        out.write(_header(path))
        for content in file:
            if content.digest not in wanted:
                continue
            data = content.read()
            if data is None:
                reason = "the bytes are not those that the digest names; not packed"
                damages.append(Damage(path, content.offset, content.size, "blob", reason))
                continue
            out.write(
                b'{"kind":"blob","digest":"%s","size":%d}\n' % (content.digest.encode(), len(data)) + data + b"\n"
            )
            count += 1
        if file.closed:
            out.write(orjson.dumps({"kind": "close", "blobs": count, "packed": {"chosen": True}}) + b"\n")
    return damages


def _header(path: Path) -> bytes:
    with open_buffered(path) as file:
        line = file.readline(_HEADER_BYTES)
    record = parse_record(line) if line.startswith(b'{"kind":"header"') else None
    return b"" if record is None else orjson.dumps({**record.head, "packed": {"chosen": True}}) + b"\n"
