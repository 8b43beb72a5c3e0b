"""The form of a line: a head of small fields, then one payload whose length the head tells.

    {"kind":"start","bytes":41, … head … ,"inputs":<payload of 41 bytes>}\\n

The payload is the value of the last key. Splitting needs no JSON parser for it, so a reader that only wants heads
never looks at token ids, and an uploader copies payload bytes as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

__all__ = ["PARTIAL_PARENT", "PAYLOAD_KEYS", "SCHEMA_VERSION", "Line", "parse_line"]

SCHEMA_VERSION = 1
# First half of the `parent_id` of a call whose process knew only W3C's 64 bits of its parent: the id's second half.
PARTIAL_PARENT = "00000000-0000-7000-"

# Kind of record -> the last key of its line.
PAYLOAD_KEYS = {"start": "inputs", "end": "output", "text": "output", "skip": "attributes", "score": "scores"}


class Line(NamedTuple):
    """One parsed line: `head` without the payload key, `payload` as raw JSON bytes (b"" for kinds without one)."""

    head: dict[str, Any]
    payload: bytes

    @property
    def kind(self) -> str:
        """The record's kind, "" when it has none."""
        kind = self.head.get("kind", "")
        return kind if isinstance(kind, str) else ""


def parse_line(line: bytes) -> Line:
    """Split a line (with or without its newline) into head and payload.

    A line without the fast form (another writer, keys added behind the payload) is parsed whole; the result is the
    same. The payload of the fast form is not validated: `orjson.loads(payload)` says whether it is JSON.

    Raises:
        ValueError: the line is not a JSON object.
    """
    if line.endswith(b"\n"):
        line = line[:-1]
    head = _split_fast(line)
    if head is not None:
        return head
    value = orjson.loads(line)
    if not isinstance(value, dict):
        raise ValueError("a record must be a JSON object")
    key = PAYLOAD_KEYS.get(value.get("kind", "")) if isinstance(value.get("kind"), str) else None
    if key is None or key not in value:
        return Line(value, b"")
    payload = orjson.dumps(value.pop(key))
    return Line(value, payload)


def _split_fast(line: bytes) -> Line | None:
    if not line.startswith(b'{"kind":"'):
        return None
    quote = line.find(b'"', 9, 25)
    if quote < 0 or not line.startswith(b',"bytes":', quote + 1):
        return None
    comma = line.find(b",", quote + 10, quote + 30)
    try:
        size = int(line[quote + 10 : comma])
        key = PAYLOAD_KEYS[line[9:quote].decode()]
    except (ValueError, KeyError):
        return None
    marker = f',"{key}":'.encode()
    start = len(line) - 1 - size
    if size < 1 or start < comma or line[-1:] != b"}" or line[start - len(marker) : start] != marker:
        return None
    try:
        head = orjson.loads(line[: start - len(marker)] + b"}")
    except orjson.JSONDecodeError:
        return None
    return Line(head, line[start:-1])
