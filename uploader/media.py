"""What a call keeps in side files becomes files in Weave: pictures as Weave's own images, the rest as `weave.Content`.

| recorded | in Weave |
| --- | --- |
| PIL image | `PIL.Image.Image`, a PNG (or the file's own PNG or JPEG): shown by the UI, a PIL image for its client |
| data URL, bytes | `Content` of their type |
| array with a sampling rate under a key with `audio` | `Content` of type audio/wav, beside what is recorded |
| array of frames, 8 bits a colour | its form with `first_frame`, an image, and `whole`, a `Content` |
| any other array | its form with `whole`, a `Content`: numpy's NPY format where numpy has the type, else the bytes |

Only references that the record's head names are followed: what merely looks like one in recorded data stays as it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from ..reader.encodings import npy, png, wav
from .contents import PART_BYTES, FileCache, contents
from .payload import Encoded

__all__ = ["place_files"]

_IMAGE_NAMES = {"PNG": "image.png", "JPEG": "image.jpg"}
_MISSING = "the content is missing from the side file, or damaged"


def place_files(call: Encoded, store: FileCache) -> Encoded:
    """The call with files of the project in place of its side-file contents; itself when it has none.

    Raises:
        Rejected, Unreachable: a file could not be stored.
    """
    if not call.blobs or call.contents is None:
        return call
    places = _Places(call, store)
    inputs, output = (orjson.dumps(places.walk(orjson.loads(data), "")) for data in (call.inputs, call.output))
    return replace(call, inputs=inputs, output=output, blobs=(), missing=places.missing)


class _Places:
    def __init__(self, call: Encoded, store: FileCache) -> None:
        self.missing = 0
        self._names = frozenset(call.blobs)
        self._contents = call.contents
        self._store = store

    def walk(self, value: Any, key: str) -> Any:
        """`value` with its references followed; `key` is what it is found under."""
        if isinstance(value, dict):
            if self._is_reference(value):
                return self._placed(value, None)
            return {name: self.walk(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            if self._is_sound(value, key):
                return [self._placed(value[0], value[1]), *value[1:]]
            return [self.walk(inner, key) if isinstance(inner, (dict, list)) else inner for inner in value]
        return value

    def _is_reference(self, value: dict[str, Any]) -> bool:
        blob = value.get("blob")
        return isinstance(blob, dict) and len(blob) == 2 and blob.get("digest") in self._names

    def _is_sound(self, value: list[Any], key: str) -> bool:
        """Samples and their rate, as verl passes them."""
        if len(value) != 2 or "audio" not in key.lower() or not isinstance(value[0], dict):
            return False
        return type(value[1]) is int and self._is_reference(value[0])

    def _placed(self, form: dict[str, Any], rate: int | None) -> Any:
        was = orjson.dumps([form, rate])
        known = self._store.forms.get(was)
        if known is not None:
            return known
        data = self._contents.get(form["blob"]["digest"]) if self._contents is not None else None
        if data is None:
            self.missing += 1
            return _without_blob(form) | {"_omitted": _MISSING}
        return self._store.remember(was, self._file(form, data, rate))

    def _file(self, form: dict[str, Any], data: bytes, rate: int | None) -> Any:
        sort = form.get("_type")
        if sort == "PIL.Image.Image":
            return self._image(form, data)
        if sort == "data_url":
            return contents(self._store, data, str(form.get("mimetype")))
        if sort in ("bytes", "bytearray", "memoryview"):
            return contents(self._store, data, str(form.get("mimetype")))
        sound = wav(form, data, rate) if rate is not None else None
        if sound is not None:
            return _without_blob(form) | {
                "whole": contents(self._store, sound, "audio/wav", {"dtype": form.get("dtype")})
            }
        return self._array(form, data)

    def _image(self, form: dict[str, Any], data: bytes) -> Any:
        name = _IMAGE_NAMES.get(str(form.get("format")))
        encoded = data if name else png(form, data)
        if encoded is None or len(encoded) > PART_BYTES:
            about = {key: form.get(key) for key in ("mode", "width", "height")}
            return _without_blob(form) | {"whole": contents(self._store, data, "application/octet-stream", about)}
        digest = self._store.create_file(name or "image.png", encoded)
        files = {name or "image.png": digest}
        return {"_type": "CustomWeaveType", "weave_type": {"type": "PIL.Image.Image"}, "files": files}

    def _array(self, form: dict[str, Any], data: bytes) -> Any:
        about = {"dtype": form.get("dtype"), "shape": form.get("shape")}
        encoded = npy(form, data)
        placed = _without_blob(form)
        frame = _first_frame(form, data)
        if frame is not None:
            placed["first_frame"] = self._image(*frame)
        sort = "application/x-npy" if encoded is not None else "application/octet-stream"
        return placed | {"whole": contents(self._store, encoded if encoded is not None else data, sort, about)}


def _without_blob(form: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in form.items() if key != "blob"}


def _first_frame(form: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes] | None:
    """Of frames x colours x height x width, or colours last, each a byte: how videos are passed."""
    shape = form.get("shape")
    if form.get("dtype") != "uint8" or not isinstance(shape, list) or len(shape) != 4 or 0 in shape:
        return None
    if shape[1] == 3:
        height, width = shape[2], shape[3]
        plane = height * width
        pixels = bytearray(3 * plane)
        for colour in range(3):
            pixels[colour::3] = data[colour * plane : (colour + 1) * plane]
    elif shape[3] == 3:
        height, width = shape[1], shape[2]
        pixels = bytearray(data[: height * width * 3])
    else:
        return None
    return {"mode": "RGB", "width": width, "height": height, "format": "raw"}, bytes(pixels)
