"""A side file on its way into a repaired copy: its good contents, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from ..schemas.files import parse_side_file_name
from ..schemas.lines import SCHEMA_VERSION
from .places import open_buffered
from .verify_contents import SideReport

__all__ = ["copy_side_file"]


def copy_side_file(report: SideReport, folder: Path) -> None:
    """Write a file of the same name into `folder`.

    Raises:
        OSError: the copy could not be written.
    """
    writer, index = parse_side_file_name(report.path) or ("", 0)
    repaired = {"header": "file name"}
    header = {"kind": "header", "schema": SCHEMA_VERSION, "writer": writer, "segment": index, "repaired": repaired}
    with open(folder / report.path.name, "xb") as target:
        target.write(_header(report.path) or orjson.dumps(header) + b"\n")
        count = 0
        for content in report.contents:
            data = content.read()
            if data is None:
                # changed since it was checked; the copy is verified at the end
                continue
            target.write(b'{"kind":"blob","digest":"%s","size":%d}\n' % (content.digest.encode(), len(data)))
            target.write(data + b"\n")
            count += 1
        target.write(orjson.dumps({"kind": "close", "blobs": count}) + b"\n")
        target.flush()
        os.fsync(target.fileno())


def _header(path: Path) -> bytes:
    with open_buffered(path) as file:
        line = file.readline(1 << 16)
    return line if line.startswith(b'{"kind":"header"') and line.endswith(b"\n") else b""
