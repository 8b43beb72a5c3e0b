"""Durations as people type them, for every option that takes one."""

from __future__ import annotations

import math
import re

from ..schemas.errors import BadFilter

__all__ = ["parse_duration"]

_FORM = re.compile(r"((?:\d+(?:\.\d*)?|\.\d+)(?:e-?\d+)?)\s*(ms|s|m|h|d|)")
_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str, option: str) -> float:
    """`1.5`, `500ms`, `90s`, `10m`, `2h`, `1d` -> seconds.

    Raises:
        BadFilter: it is none.
    """
    match = _FORM.fullmatch(text.strip().lower())
    seconds = float(match[1]) * _UNITS[match[2]] if match is not None else math.inf
    if seconds == math.inf:
        raise BadFilter(f"{option} {text!r} is no duration", hint=f"e.g. {option} 500ms, {option} 90s, {option} 10m")
    return seconds
