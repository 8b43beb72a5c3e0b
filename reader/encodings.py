"""Recorded bytes as files that other programs open: pixels as PNG, samples as WAV, arrays as NPY. Standard library
only."""

from __future__ import annotations

import array
import base64
import io
import struct
import sys
import wave
import zlib
from typing import Any

__all__ = ["npy", "png", "wav"]

# PIL mode -> bits a sample, colour type of PNG, samples a pixel.
_PNG_MODES = {"1": (1, 0, 1), "L": (8, 0, 1), "LA": (8, 4, 2), "P": (8, 3, 1), "RGB": (8, 2, 3), "RGBA": (8, 6, 4)}
_PNG_MODES |= {"I;16": (16, 0, 1)}
_NPY_TYPES = {
    "bool": "|b1", "int8": "|i1", "uint8": "|u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4", "uint32": "<u4",
    "int64": "<i8", "uint64": "<u8", "float16": "<f2", "float32": "<f4", "float64": "<f8", "complex64": "<c8",
    "complex128": "<c16",
}  # fmt: skip


def png(form: dict[str, Any], pixels: bytes) -> bytes | None:
    """The raw pixels of a recorded PIL image as a PNG of the same mode; None for modes that PNG lacks."""
    mode, width, height = form.get("mode"), form.get("width"), form.get("height")
    if mode not in _PNG_MODES or type(width) is not int or type(height) is not int or width < 1 or height < 1:
        return None
    depth, colour, samples = _PNG_MODES[mode]
    row = (width * samples * depth + 7) // 8
    if len(pixels) != row * height:
        return None
    if depth == 16:
        values = array.array("H", pixels)
        if sys.byteorder == "little":
            values.byteswap()
        pixels = values.tobytes()
    chunks = [_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))]
    if mode == "P":
        palette = _palette(form)
        if palette is None:
            return None
        chunks += palette
    rows = b"".join(b"\0" + pixels[at : at + row] for at in range(0, len(pixels), row))
    chunks += [_chunk(b"IDAT", zlib.compress(rows, 6)), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _palette(form: dict[str, Any]) -> list[bytes] | None:
    try:
        mode, colours = form["palette"]["mode"], base64.b64decode(form["palette"]["base64"])
    except (KeyError, TypeError, ValueError):
        return None
    if mode != "RGB" or not 3 <= len(colours) <= 768:
        return None
    chunks = [_chunk(b"PLTE", colours[: len(colours) // 3 * 3])]
    transparency = form.get("transparency")
    if type(transparency) is int and 0 <= transparency < 256:
        chunks.append(_chunk(b"tRNS", b"\xff" * transparency + b"\0"))
    elif isinstance(transparency, list) and all(type(n) is int and 0 <= n < 256 for n in transparency):
        chunks.append(_chunk(b"tRNS", bytes(transparency)))
    return chunks


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def npy(form: dict[str, Any], data: bytes) -> bytes | None:
    """A recorded array as numpy's file format; None for types that numpy lacks, such as bfloat16."""
    descr, shape = _NPY_TYPES.get(str(form.get("dtype"))), form.get("shape")
    if descr is None or not isinstance(shape, list) or not all(type(n) is int for n in shape):
        return None
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    # the data begin at a multiple of 64
    head += " " * (63 - (10 + len(head)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode("latin-1") + data


def wav(form: dict[str, Any], data: bytes, rate: int) -> bytes | None:
    """A recorded array of samples (N, or channels first or last) as 16-bit WAV; None for what is no sound."""
    dtype, shape = form.get("dtype"), form.get("shape")
    if not isinstance(shape, list) or not 1 <= len(shape) <= 2 or not 1_000 <= rate <= 768_000:
        return None
    channels = 1 if len(shape) == 1 else min(shape)
    if not 1 <= channels <= 8:
        return None
    code = {"float32": "f", "float64": "d", "int16": "h"}.get(str(dtype))
    if code is None:
        return None
    samples = array.array(code, data)
    if code != "h":
        samples = array.array("h", (_sample(value) for value in samples))
    if len(shape) == 2 and shape[0] == channels and channels > 1:
        length = shape[1]
        samples = array.array("h", (samples[c * length + n] for n in range(length) for c in range(channels)))
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return out.getvalue()


def _sample(value: float) -> int:
    # not a number is silence
    return int(max(-1.0, min(1.0, value)) * 32767) if value == value else 0
