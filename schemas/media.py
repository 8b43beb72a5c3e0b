"""Pictures and encoded media: what is kept of them in the side file, and how the line refers to it.

| value | on the line |
| --- | --- |
| PIL image | `{"_type":"PIL.Image.Image","mode":"RGB","width":640,"height":480,"format":"raw","blob":…}` |
| … still as its file has it | the same with `"format":"JPEG"` and the like: the file's own bytes |
| long data URL | `{"_type":"data_url","prefix":"data:image/png;base64,","mimetype":"image/png","blob":…}` |
| long bytes | `{"_type":"bytes","size":…,"mimetype":…,"blob":…}` |

Raw pixels are stored as they are and become a PNG when somebody looks. Nothing here imports PIL.
"""

from __future__ import annotations

import io
import os
import re
import sys
from binascii import a2b_base64, b2a_base64

from .interrupts import pass_on
from .side import SideFile, reference

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["BYTES_INLINE", "DATA_URL_LENGTH", "bytes_form", "data_url_form", "image_form", "is_data_url", "mimetype_of"]

# The server makes files of data URLs from this length on; shorter ones are icons.
DATA_URL_LENGTH = 8192
BYTES_INLINE = 64 << 10
_DATA_URL = r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.+-]+)*;base64,"
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"%PDF-", "application/pdf"),
)


def is_data_url(text: str) -> bool:
    """Whether a text is a base64 data URL long enough to be kept apart."""
    return len(text) > DATA_URL_LENGTH and text.startswith(("data:", "DATA:", "Data:"))


def data_url_form(text: str, side: SideFile | None, digests: list[str]) -> dict[str, Any] | None:
    """The decoded content of a data URL; None where it could not be put together again to the letter."""
    head = re.compile(_DATA_URL, re.IGNORECASE).match(text, 0, 200)
    if head is None or side is None:
        return None
    body = text[head.end() :]
    try:
        content = a2b_base64(body)
    except ValueError:
        return None
    if _base64(content) != body:
        return None
    form = {"_type": "data_url", "prefix": head[0], "mimetype": head[1].lower()}
    kept = reference(side, digests, content, in_background=False)
    # a text that the side file does not take stays a text
    return form | kept if "blob" in kept else None


def bytes_form(data: bytes, name: str, side: SideFile | None, digests: list[str]) -> dict[str, Any]:
    """Bytes: base64 up to `BYTES_INLINE`, beyond it in the side file."""
    if len(data) > BYTES_INLINE and side is not None:
        kept = reference(side, digests, data, in_background=False)
        if "blob" in kept:
            return {"_type": name, "size": len(data), "mimetype": mimetype_of(data)} | kept
    return {"_type": name, "size": len(data), "base64": _base64(data)}


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def mimetype_of(data: bytes) -> str:
    """What the first bytes say."""
    for magic, mimetype in _MAGIC:
        if data.startswith(magic):
            return mimetype
    if data[:4] == b"RIFF":
        return {b"WAVE": "audio/wav", b"WEBP": "image/webp"}.get(data[8:12], "application/octet-stream")
    return "video/mp4" if data[4:8] == b"ftyp" else "application/octet-stream"


def image_form(value: Any, kind: type, side: SideFile | None, digests: list[str]) -> dict[str, Any] | None:
    """A PIL image; None for anything else. One that is closed or broken is a form with `_omitted`."""
    pil = sys.modules.get("PIL.Image")
    # a thread may be loading it
    if pil is None or not hasattr(pil, "Image") or not issubclass(kind, pil.Image):
        return None
    form: dict[str, Any] = {"_type": "PIL.Image.Image"}
    try:
        form |= {"mode": str(value.mode), "width": int(value.size[0]), "height": int(value.size[1])}
        encoded = _as_in_its_file(value)
        if encoded:
            form["format"] = str(value.format)
            return form | reference(side, digests, encoded, in_background=False)
        form["format"] = "raw"
        # the class's own method: a subclass may have another one of that name
        pixels = pil.Image.tobytes(value)
        if value.mode in ("P", "PA"):
            form["palette"] = {"mode": value.palette.mode, "base64": _base64(value.palette.tobytes())}
            transparency = value.info.get("transparency")
            if type(transparency) in (int, bytes):
                form["transparency"] = transparency if type(transparency) is int else list(transparency)
    except Exception as error:  # noqa: BLE001
        pass_on(error)
        return form | {"_omitted": f"could not be read: {type(error).__name__}"}
    return form | reference(side, digests, pixels, in_background=True)


def _as_in_its_file(value: Any) -> bytes | None:
    """The encoded bytes of an image that was opened and not decoded yet: loading it here would change it."""
    file = getattr(value, "fp", None)
    if file is None or not getattr(value, "tile", None) or value.format not in ("PNG", "JPEG"):
        return None
    if getattr(value, "is_animated", False):
        return None
    if type(file) is io.BytesIO:
        return file.getvalue()
    if type(file) is io.BufferedReader:
        number = file.fileno()
        # without moving the position that PIL reads on from
        return os.pread(number, os.fstat(number).st_size, 0)
    return None
