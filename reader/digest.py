"""Records without their weight: each line as it is, with counts in the place of its inputs or output.

A digest is a line in the same form as the record, so that all that reads records reads digests. It is a hundredth of a
record that holds token ids, and it is all that listings and statistics ask for.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator

import orjson

from ..schemas.lines import PAYLOAD_KEYS
from .segments import SegmentLines

__all__ = ["DigestLines", "count_of", "digest_line"]

# Fields of each kind whose length (lists) or value (numbers) a digest keeps. What has token_ids has no others.
_COUNTED = {b"start": ("prompt_ids",), b"end": ("token_ids", "response_ids", "num_turns"), b"text": ()}

_HEAD = re.compile(rb'\{"kind":"(start|end|text)","bytes":(\d{1,18}),')
_OBJECT = ord("{")
_NUMBER = re.compile(rb"\d{1,18}(?=[,}\]])")
# A payload larger than this holds long lists of numbers, most likely, and few keys: to look at each of the first
# quotes takes a tenth of the time of a search.
_LARGE = 16 << 10
_QUOTES = 40


def count_of(data: bytes, name: str, begin: int = 0, end: int = sys.maxsize) -> int | None:
    """How many items the list `name` has, or the number of that name; None where neither is there. Parses nothing.

    Looked at is `data[begin:end]`.
    """
    key = _key(name)
    end = min(end, len(data))
    begin = _find(data, key, begin, end) + len(key)
    if begin < len(key):
        return None
    if data.startswith(b"[", begin, end):
        close = data.find(b"]", begin, end)
        if close < 0:
            close = end
        return data.count(b",", begin, close) + (close > begin + 1)
    number = _NUMBER.match(data, begin, end)
    return int(number[0]) if number is not None else None


@functools.lru_cache(maxsize=16)
def _key(name: str) -> bytes:
    return b'"%b":' % name.encode()


def _find(data: bytes, key: bytes, begin: int, end: int) -> int:
    """Where a key is first; -1 where it is not."""
    if end - begin > _LARGE:
        for _ in range(_QUOTES):
            begin = data.find(b'"', begin, end)
            if begin < 0 or data.startswith(key, begin, end):
                return begin
            begin += 1
    return data.find(key, begin, end)


def digest_line(line: bytes) -> bytes:
    """The digest of a line with its newline; a line of another kind or form is its own."""
    head = _HEAD.match(line)
    # what a disk filled with zeros is no record, and is not to look like one
    if head is None or b"\0" in line:
        return line
    begin = len(line) - 2 - int(head[2])
    mark = f',"{PAYLOAD_KEYS[head[1].decode()]}":'.encode()
    if begin - len(mark) < head.end() or line[begin - len(mark) : begin] != mark or not line.endswith(b"}\n"):
        return line
    # {} and [] say what the payload was: text is merged into objects only
    digest = _counts(line[begin:-2], _COUNTED[head[1]]) if line[begin] == _OBJECT else b"[]"
    return b'{"kind":"%b","bytes":%d,%b%b}\n' % (head[1], len(digest), line[head.end() : begin], digest)


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _counts(payload: bytes, names: tuple[str, ...]) -> bytes:
    counts = {}
    for name in names:
        count = count_of(payload, name)
        if count is not None:
            counts[name] = count
            if name == "token_ids":
                break
    return orjson.dumps(counts)


class DigestLines(SegmentLines):
    """The lines of a segment as digests; offsets, sizes and damages are those of the segment."""

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for offset, line in super().__iter__():
            digest = digest_line(line)
            if not self.sealed and digest is not line and not _is_json(line):
                # no checksum vouches for a raw payload; whoever reads the line is to see what is wrong with it
                digest = line
            yield offset, digest
