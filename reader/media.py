"""What lies in side files, for people: a picture, a sound, an array in one line of words, or as a file to open."""

from __future__ import annotations

import mimetypes
from typing import Any

from ..schemas.wording import counted
from .encodings import npy, png

__all__ = ["as_file", "content_of", "describe", "is_content"]

_IMAGE_SUFFIXES = {"PNG": ".png", "JPEG": ".jpg"}


def is_content(value: object) -> bool:
    """Whether it is the form of a content that lies in a side file."""
    return isinstance(value, dict) and isinstance(value.get("blob"), dict) and isinstance(value.get("_type"), str)


def describe(form: dict[str, Any]) -> str:
    """`[PIL.Image.Image RGB 640x480, 921,600 bytes]`"""
    words = [str(form["_type"])]
    if "mode" in form:
        words.append(f"{form.get('mode')} {form.get('width')}x{form.get('height')}")
    words += [str(form[name]) for name in ("mimetype", "dtype", "shape") if form.get(name) is not None]
    size = form["blob"].get("size")
    return f"[{' '.join(words)}, {counted(size, 'byte')}]" if isinstance(size, int) else f"[{' '.join(words)}]"


def content_of(call: Any, form: dict[str, Any]) -> bytes | None:
    """The bytes of a content of `call` (a `reader.Call`); None where they are not there or not whole."""
    digest = form["blob"].get("digest")
    # what merely looks like a reference in recorded data refers to nothing
    return call.writer.contents.get(digest) if digest in call.blobs else None


def as_file(form: dict[str, Any], data: bytes) -> tuple[bytes, str]:
    """The content as other programs open it, and the suffix of such a file: PNG, JPEG, NPY, its own type, or `.bin`."""
    if form["_type"] == "PIL.Image.Image":
        suffix = _IMAGE_SUFFIXES.get(str(form.get("format")))
        if suffix is not None:
            return data, suffix
        encoded = png(form, data)
        return (encoded, ".png") if encoded is not None else (data, ".bin")
    if "mimetype" in form:
        return data, mimetypes.guess_extension(str(form["mimetype"])) or ".bin"
    array = npy(form, data)
    return (array, ".npy") if array is not None else (data, ".bin")
