"""How many bytes the server will count for a call: its `storage_size_bytes`.

W&B's server parses what it gets and writes it anew with Python's `json.dumps`, whose text is longer than what was sent:
a space after every comma and colon, six bytes for most letters beyond ASCII. It counts the length of attributes,
inputs, output and summary so written (`sqlite_trace_server.py` of weave's trace server; the ClickHouse one likewise).
"""

from __future__ import annotations

import re

__all__ = ["size_words", "stored_size"]

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_HIGH = bytes(range(0x80, 0x100))


def size_words(size: int) -> str:
    """`720 B`, `16.3 kB`, `1,204.0 MB`: as W&B counts, in thousands."""
    if size < 1000:
        return f"{size} B"
    return f"{size / 1e3:,.1f} kB" if size < 100_000 else f"{size / 1e6:,.1f} MB"


def stored_size(data: bytes) -> int:
    """Length of `json.dumps(json.loads(data))`, without parsing.

    `data`: compact JSON in UTF-8. Exact but for numbers that Python writes otherwise (1e-07 for 1e-7).
    """
    size = len(data) + 5 * data.count(b"\x7f")
    if not data.isascii():
        ascii_bytes = len(data.translate(None, _HIGH))
        # json.dumps escapes by UTF-16 units
        units = len(data.decode("utf-8", "replace").encode("utf-16-le")) // 2 - ascii_bytes
        size += ascii_bytes - len(data) + 6 * units
    if b'"' in data:
        data = _STRING.sub(b"", data)
    return size + data.count(b",") + data.count(b":")
