"""Payloads parsed, and what is asked of them: a field by its path, every text with its path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson

from .media import describe, is_content

__all__ = ["MISSING", "field", "is_numbers", "json_text", "parsed", "text_in", "texts"]

# What `field` gives where there is nothing; None is a value.
MISSING = object()
_PLAIN = frozenset({int, float, bool, type(None)})


def parsed(payload: bytes | None) -> Any:
    """The value of a payload; None where it is missing or broken (the reader has counted that already)."""
    if not payload:
        return None
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None


def json_text(value: Any, *, indent: bool = False) -> str:
    """The value as JSON; also one nested more deeply than orjson writes."""
    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None).decode()
    except TypeError:
        pass
    try:
        return json.dumps(value, ensure_ascii=False, indent=2 if indent else None)
    except RecursionError:
        return "(nested too deeply to be shown; --raw has it)"


def is_numbers(value: Any) -> bool:
    """Whether it is a list of nothing but numbers, as token ids and log-probs are."""
    return type(value) is list and bool(value) and set(map(type, value)) <= _PLAIN


def field(value: Any, path: str) -> Any:
    """The field at `path`, such as `output.messages.0.content`; MISSING where there is none.

    A key that holds a dot itself is found as well: the longest key that fits comes first.
    """
    if not path:
        return value
    parts = path.split(".")
    if isinstance(value, dict):
        for length in range(len(parts), 0, -1):
            key = ".".join(parts[:length])
            if key in value:
                found = field(value[key], ".".join(parts[length:]))
                if found is not MISSING:
                    return found
        return MISSING
    if isinstance(value, list) and parts[0].lstrip("-").isdecimal():
        index = int(parts[0])
        if -len(value) <= index < len(value):
            return field(value[index], ".".join(parts[1:]))
    return MISSING


def texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """`(path, text)` of every text below `value`, in order. Iterative: payloads may be nested deeply."""
    stack = [(path, value)]
    while stack:
        where, item = stack.pop()
        if type(item) is str:
            yield where, item
        elif type(item) is dict:
            begin = f"{where}." if where else ""
            stack += [(f"{begin}{key}", below) for key, below in reversed(item.items())]
        elif type(item) is list and not is_numbers(item):
            begin = f"{where}." if where else ""
            stack += [(f"{begin}{index}", item[index]) for index in range(len(item) - 1, -1, -1)]


def text_in(value: Any) -> str:
    """What a value says to a reader: text as it is, the texts of a message's parts, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"])
    if is_content(value):
        return describe(value)
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        return "\n".join(_part(part) for part in value)
    return "" if value is None else json_text(value)


def _part(part: dict[str, Any]) -> str:
    """One part of a multimodal message: text, or the name of what is not text, and what is known of it."""
    if isinstance(part.get("text"), str):
        return str(part["text"])
    inner = [part, *part.values(), *(below for value in part.values() for below in _below(value))]
    known = next((describe(value) for value in inner if is_content(value)), "")
    return f"<{part['type']}>{f' {known}' if known else ''}"


def _below(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []
