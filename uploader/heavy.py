"""A call too large for one row of Weave: its heaviest fields become files, with a preview in their place.

    "token_ids": {"_moved": "list", "items": 4100000, "bytes": 40012345, "preview": [1, 2, 3, …],
                  "whole": <weave.Content of the field's JSON>}

`whole` is a list of Contents, to be joined, where the field is larger than a request may be. Everything else of the
call stays as it is and can be filtered. Fields are moved from the heaviest down until the call is small enough: first
texts and lists of numbers, and where these do not suffice, whole fields of any kind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from .contents import FileCache, FileStore, contents
from .media import place_files
from .payload import Encoded, Moved

__all__ = ["LIGHT_BYTES", "MOVED", "ROW_BYTES", "Lightener", "lighten"]

# The key that marks a moved field. No `_type`: W&B's client would make an object of it instead of a dict.
MOVED = "_moved"
# The server refuses rows above 3.5 MiB, counted in its own encoding: 3 MiB of ours stay below.
ROW_BYTES = 3 << 20
# A call that is lightened is made this small, so that its list in the UI loads quickly as well.
LIGHT_BYTES = 1 << 20
# What a call is made that a server refuses although it is below the limit: no server refuses this much for its size.
SMALLEST_BYTES = 64 << 10
# What is smaller stays, unless that does not suffice: it is what people filter by.
_WORTH_MOVING = 4 << 10
_PREVIEW_ITEMS = 20
_PREVIEW_TEXT = 1000
_MAX_DEPTH = 200
_SCALARS = (int, float, bool, type(None))


class _Field(NamedTuple):
    """A value and where it hangs."""

    size: int
    path: str
    holder: Any
    key: Any


class Lightener:
    """What makes the calls of one project fit to be sent. May be used by several threads; a file is stored once."""

    def __init__(self, store: FileStore) -> None:
        self._files = FileCache(store)

    def ready(self, call: Encoded) -> Encoded:
        """The call as it is to be sent: see `lighten`.

        Raises:
            Rejected, Unreachable: a file could not be stored; nothing of the call was sent.
        """
        return lighten(call, self._files)

    def refused(self, call: Encoded) -> Encoded | None:
        """A call that the server has refused, with all that is worth moving moved; None when there is nothing.

        Raises:
            Rejected, Unreachable: a file could not be stored.
        """
        lighter = lighten(call, self._files, limit=SMALLEST_BYTES, target=SMALLEST_BYTES)
        return lighter if len(lighter.moved) > len(call.moved) else None


def lighten(call: Encoded, store: FileStore, limit: int = ROW_BYTES, target: int = LIGHT_BYTES) -> Encoded:
    """The call as it can be sent: with files in place of its side-file contents (see `media`), and of about `target`
    bytes when it is larger than `limit` (see `Encoded.moved`). The call itself when there is nothing to do.

    For a call that the server has refused as too large, give a smaller `limit`.

    Raises:
        Rejected, Unreachable: a file could not be stored; nothing of the call was sent.
    """
    files = store if isinstance(store, FileCache) else FileCache(store)
    call = place_files(call, files)
    if call.size <= limit:
        return call
    parts: dict[str, Any] = {
        "inputs": orjson.loads(call.inputs),
        "output": orjson.loads(call.output),
        "attributes": orjson.loads(call.attributes),
    }
    moved: list[Moved] = []
    excess = call.size - target
    for choose in (_leaves, _fields, _sides):
        if excess > 0:
            excess = _move(choose(parts), excess, files, moved)
    inputs, output, attributes = (orjson.dumps(parts[name]) for name in ("inputs", "output", "attributes"))
    return replace(call, inputs=inputs, output=output, attributes=attributes, moved=(*call.moved, *moved))


def _move(fields: list[_Field], excess: int, store: FileStore, moved: list[Moved]) -> int:
    """Move the heaviest until the call is small enough; returns what is still too much."""
    for field in sorted(fields, key=lambda field: field.size, reverse=True):
        if excess <= 0:
            break
        whole = field.holder[field.key]
        data = orjson.dumps(whole)
        form = {
            MOVED: "text" if isinstance(whole, str) else type(whole).__name__,
            "items": len(whole),
            "bytes": len(data),
            "preview": _preview(whole),
        }
        form["whole"] = contents(store, data, "application/json", {"path": field.path})
        field.holder[field.key] = form
        moved.append(Moved(field.path, len(data)))
        excess -= len(data) - len(orjson.dumps(form))
    return excess


def _leaves(parts: dict[str, Any]) -> list[_Field]:
    """Texts and lists of numbers (of any depth), from a size on."""
    found: list[_Field] = []
    for name, value in parts.items():
        _look(value, name, parts, name, found, 0)
    return found


def _look(value: Any, path: str, holder: Any, key: Any, found: list[_Field], depth: int) -> None:
    if isinstance(value, str):
        if len(value) >= _WORTH_MOVING:
            found.append(_Field(len(value), path, holder, key))
    elif isinstance(value, list):
        if _is_numeric(value):
            size = len(orjson.dumps(value)) if value else 0
            if size >= _WORTH_MOVING:
                found.append(_Field(size, path, holder, key))
        elif depth < _MAX_DEPTH:
            for index, inner in enumerate(value):
                _look(inner, f"{path}[{index}]", value, index, found, depth + 1)
    elif isinstance(value, dict) and depth < _MAX_DEPTH:
        for name, inner in value.items():
            _look(inner, f"{path}.{name}", value, name, found, depth + 1)


def _is_numeric(items: list[Any]) -> bool:
    """Whether it holds nothing but numbers, whatever the nesting; a float that JSON lacks is a small object."""
    return all(
        isinstance(item, _SCALARS)
        or (isinstance(item, list) and _is_numeric(item))
        or (isinstance(item, dict) and item.get("_type") == "float" and len(item) == 2)
        for item in items
    )


def _fields(parts: dict[str, Any]) -> list[_Field]:
    """The fields of inputs, output and attributes, whatever they are."""
    fields = [
        _Field(len(orjson.dumps(inner)), f"{name}.{key}" if isinstance(value, dict) else f"{name}[{key}]", value, key)
        for name, value in parts.items()
        for key, inner in _entries(value)
        if isinstance(inner, (dict, list)) and inner
    ]
    return [field for field in fields if field.size >= _WORTH_MOVING]


def _sides(parts: dict[str, Any]) -> list[_Field]:
    """Inputs, output and attributes as wholes: a million small fields."""
    return [
        _Field(len(orjson.dumps(v)), name, parts, name)
        for name, v in parts.items()
        if isinstance(v, (dict, list)) and v
    ]


def _entries(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _preview(value: Any) -> Any:
    """The beginning of a value."""
    if isinstance(value, str):
        return value[:_PREVIEW_TEXT]
    if isinstance(value, list):
        return [_small(item) for item in value[:_PREVIEW_ITEMS]]
    return {key: _small(value[key]) for key in list(value)[:_PREVIEW_ITEMS]}


def _small(item: Any) -> Any:
    if isinstance(item, str):
        return item[: _PREVIEW_TEXT // _PREVIEW_ITEMS]
    if isinstance(item, (list, dict)):
        return f"<{type(item).__name__} of {len(item)}>"
    return item
