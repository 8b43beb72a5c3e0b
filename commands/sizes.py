"""Sizes as people type them."""

from __future__ import annotations

import re

from ..schemas.errors import BadFilter

__all__ = ["parse_size"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_size(text: str, option: str) -> int:
    """`4GB`, `500MiB`, `1000` -> bytes.

    Raises:
        BadFilter: it is none.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text.lower())
    size = int(float(match[1]) * _UNITS[match[2] or ""]) if match else 0
    if size < 1:
        raise BadFilter(f"{option} {text!r} is no size", hint=f"e.g. {option} 4GB, {option} 500MiB")
    return size
