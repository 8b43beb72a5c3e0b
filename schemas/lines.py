"""The form of a line: a head of small fields, then one payload whose length the head tells.

    {"kind":"start","bytes":41, … head … ,"inputs":<payload of 41 bytes>}\\n

The payload is the value of the last key. Splitting needs no JSON parser for it, so a reader that only wants heads
never looks at token ids, and an uploader copies payload bytes as they are.
"""

from __future__ import annotations

import orjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["PARTIAL_PARENT", "PAYLOAD_KEYS", "SCHEMA_VERSION", "Line", "parse_line"]

SCHEMA_VERSION = 1
# First half of the `parent_id` of a call whose process knew only W3C's 64 bits of its parent: the id's second half.
PARTIAL_PARENT = "00000000-0000-7000-"

# Kind of record -> the last key of its line.
PAYLOAD_KEYS = {"start": "inputs", "end": "output", "text": "output", "skip": "attributes", "score": "scores"}


# Kind as written -> what stands before its payload.
_MARKS = {kind.encode(): f',"{key}":'.encode() for kind, key in PAYLOAD_KEYS.items()}


class Line:
    """One parsed line: `head` without the payload key, `payload` as raw JSON bytes (b"" for kinds without one)."""

    __slots__ = ("head", "payload")

    def __init__(self, head: dict[str, Any], payload: bytes) -> None:
        self.head = head
        self.payload = payload

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
    found = _split_fast(line)
    if found is not None:
        return found
    value = orjson.loads(line)
    if not isinstance(value, dict):
        raise ValueError("a record must be a JSON object")
    key = PAYLOAD_KEYS.get(value.get("kind", "")) if isinstance(value.get("kind"), str) else None
    if key is None or key not in value:
        return Line(value, b"")
    payload = orjson.dumps(value.pop(key))
    return Line(value, payload)


def _split_fast(line: bytes) -> Line | None:
    # nothing large is copied but the payload, once
    if not line.startswith(b'{"kind":"'):
        return None
    quote = line.find(b'"', 9, 25)
    mark = _MARKS.get(line[9:quote])
    if mark is None or not line.startswith(b',"bytes":', quote + 1):
        return None
    comma = line.find(b",", quote + 10, quote + 30)
    try:
        size = int(line[quote + 10 : comma])
    except ValueError:
        return None
    end = len(line) - (2 if line.endswith(b"\n") else 1)
    start = end - size
    head_end = start - len(mark)
    if size < 1 or head_end < comma or line[end : end + 1] != b"}" or not line.startswith(mark, head_end):
        return None
    try:
        head = orjson.loads(line[:head_end] + b"}")
    except orjson.JSONDecodeError:
        return None
    return Line(head, line[start:end])
