"""Whether a line is a record as docs/format.md has it: required keys, forms of ids and times, payload length.

Stricter than reading needs, so that a flipped byte in plain text is seen wherever the format leaves it no room. Unknown
keys and unknown kinds pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

from ..schemas.lines import PAYLOAD_KEYS, Line, parse_line

__all__ = ["checked", "is_time", "salvaged"]

_BEGIN = b'{"kind":"'
# A line with garbage before it may hold that many beginnings of a record before the right one.
_MAX_TRIES = 100

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\Z")
_Test = Callable[[Any], bool]


def checked(line: bytes) -> Line:
    """The parsed line.

    Raises:
        ValueError: it is no record; the text says why.
    """
    if not line.strip(b"\0\n"):
        raise ValueError("a block of NUL bytes" if b"\0" in line else "an empty line")
    try:
        record = parse_line(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not record.kind:
        raise ValueError("a record without a kind")
    for key, test in _REQUIRED.get(record.kind, {}).items():
        if not test(record.head.get(key)):
            raise ValueError(f"{_a(record.kind)} record whose {key!r} is missing or not as it must be")
    if record.kind in PAYLOAD_KEYS:
        _check_payload(line, record)
    return record


def salvaged(line: bytes) -> tuple[int, Line] | None:
    """A whole record at the end of a bad line, and where it begins: what swallowed a newline did not harm it."""
    begin = line.find(_BEGIN, 1)
    for _ in range(_MAX_TRIES):
        if begin < 0:
            break
        try:
            return begin, checked(line[begin:])
        except ValueError:
            begin = line.find(_BEGIN, begin + 1)
    return None


def _a(kind: str) -> str:
    return f"{'an' if kind == 'end' else 'a'} {kind}"


def _check_payload(line: bytes, record: Line) -> None:
    key = PAYLOAD_KEYS[record.kind]
    if not record.payload:
        raise ValueError(f"{_a(record.kind)} record without {key!r}")
    body = _last_value(line, record.head["bytes"])
    # a newer version may have put keys behind: then the length is of either
    if body is None and len(record.payload) != record.head["bytes"]:
        raise ValueError(f"{_a(record.kind)} record whose 'bytes' is not the length of its last value")
    for data in {body or b"null", record.payload}:
        try:
            orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"the {key!r} of {_a(record.kind)} record is not JSON: {error}") from None


def _last_value(line: bytes, size: int) -> bytes | None:
    """The last `size` bytes before the closing brace, None when no value begins there."""
    end = len(line) - line.endswith(b"\n") - 1
    return line[end - size : end] if end > size and line[end - size - 1 : end - size] == b":" else None


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and _ID.match(value) is not None


def _is_id_or_null(value: Any) -> bool:
    return value is None or _is_id(value)


def is_time(value: Any) -> bool:
    """Whether a value is a time as records have them."""
    return isinstance(value, str) and _TIME.match(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_length(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


_HEAD: dict[str, _Test] = {
    "bytes": _is_length,
    "op": _is_text,
    "id": _is_id,
    "trace_id": _is_id,
    "parent_id": _is_id_or_null,
}
_REQUIRED: dict[str, dict[str, _Test]] = {
    "header": {"schema": _is_count, "writer": _is_text, "segment": _is_count},
    "start": {**_HEAD, "started_at": is_time, "attributes": _is_object},
    "end": {
        **_HEAD,
        "started_at": is_time,
        "ended_at": is_time,
        "duration": _is_number,
        "text": lambda value: type(value) is bool,
        "status": lambda value: value in ("success", "error"),
        "exception": lambda value: value is None or isinstance(value, dict),
        "attributes": _is_object,
    },
    "text": _HEAD,
    "skip": {**_HEAD, "started_at": is_time, "reason": _is_text},
    "score": {
        "bytes": _is_length,
        "id": _is_id,
        "trace_id": _is_id_or_null,
        "source": _is_text,
        "status": _is_text,
        "recorded_at": is_time,
    },
    "lost": {"since": is_time, "until": is_time, "counts": _is_object, "records": _is_count},
    "close": {"closed_at": is_time, "reason": _is_text, "records": _is_count, "counters": _is_object},
}
