"""Records without their weight: each line as it is, with counts in the place of its inputs or output.

A digest is a line in the same form as the record, so that all that reads records reads digests. It is a hundredth of a
record that holds token ids, and it is all that listings and statistics ask for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson

from ..schemas.lines import PAYLOAD_KEYS
from .answers import tokens_in
from .counts import count_of
from .kinds import MODEL, gets_parameters, kind_named
from .segments import SegmentLines

__all__ = ["DigestLines", "digest_line"]

# Fields of each kind whose length (lists) or value (numbers) a digest keeps. What has token_ids has no others.
_COUNTED = {b"start": ("prompt_ids",), b"end": ("token_ids", "response_ids", "num_turns"), b"text": ()}

_HEAD = re.compile(rb'\{"kind":"(start|end|text)","bytes":(\d{1,18}),')
_OBJECT = ord("{")
# Lists in which there may be token ids: of numbers, of lists of them, of objects that have some.
_MAY_HAVE_IDS = re.compile(rb"\[[\[\]{0-9]")
# Outputs of which more than one list of token ids counts.
_SEVERAL = (b'{"_type":"RequestOutput",', b'{"yielded":[')


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
    # an object stays one, and nothing else becomes one: text is merged into objects only
    is_object = line[begin] == _OBJECT
    digest = _counts(line[begin:-2], _COUNTED[head[1]]) if is_object else b"null"
    if head[1] == b"end" and (line.startswith(_SEVERAL, begin) or _MAY_HAVE_IDS.match(line, begin)):
        count = _tokens(line, begin, begin - len(mark))
        if count is not None:
            digest = (b'{"token_ids":%d}' if is_object else b'[{"token_ids":%d}]') % count
    return b'{"kind":"%b","bytes":%d,%b%b}\n' % (head[1], len(digest), line[head.end() : begin], digest)


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _tokens(line: bytes, begin: int, head_end: int) -> int | None:
    """How many token ids there are in all of an output that is a list, or has one."""
    try:
        head = orjson.loads(line[:head_end] + b"}")
    except orjson.JSONDecodeError:
        return None
    by_name = kind_named(str(head.get("op")), is_root=False) == MODEL
    return tokens_in(line, begin, len(line) - 2, by_name=by_name, streamed="generator" in head)


def _counts(payload: bytes, names: tuple[str, ...]) -> bytes:
    counts: dict[str, int] = {"parameters": 0} if gets_parameters(payload, 0) else {}
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
