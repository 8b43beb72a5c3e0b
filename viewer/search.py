"""Search the texts of one segment: blocks of bytes first, JSON only where the bytes give cause."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
import zstandard

from ..reader.blocks import Block, blocks
from ..reader.conversation import Decode
from ..reader.filters import Filters
from ..reader.payloads import texts
from ..reader.records import CALL_KINDS, parse_record
from ..reader.segments import Damage
from ..reader.writers import Segment
from ..schemas.lines import PAYLOAD_KEYS, Line
from .patterns import Pattern

__all__ = ["Found", "Search", "SearchedSegment", "search_segment"]

# What is kept of the line of text around a match.
_BEFORE, _AFTER, _MATCH = 160, 240, 400
_IDS = ("prompt_ids", "token_ids", "response_ids")
_IDS_MARK = b'_ids":['


class Found(NamedTuple):
    """A text that matches: whose it is, where it is in the record, and the line around the first match."""

    trace_id: str
    id: str
    step: Any
    sample_index: Any
    rollout_n: Any
    op: str
    field: str
    before: str
    match: str
    after: str


class SearchedSegment(NamedTuple):
    """What one segment gave."""

    found: list[Found]
    damages: list[Damage]


@dataclass(frozen=True)
class Search:
    """What is asked of every segment. `trace_ids` None means all; `ops` and `fields` are shell patterns.

    `decode` makes text of token ids, which is then searched as well.
    """

    pattern: Pattern
    invert: bool = False
    filters: Filters = field(default_factory=Filters)
    fields: tuple[str, ...] = ()
    trace_ids: frozenset[str] | None = None
    decode: Decode = None


def search_segment(search: Search, segment: Segment) -> SearchedSegment:
    """All matches of a segment, in order. What is damaged is passed over and told."""
    lines = segment.lines()
    found: list[Found] = []
    try:
        for line in _candidates(search, blocks(lines.path, sealed=lines.sealed)):
            found += _in_line(search, line)
        return SearchedSegment(found, [])
    except (zstandard.ZstdError, FileNotFoundError):
        pass
    except OSError as error:
        return SearchedSegment(found, [Damage(lines.path, 0, 0, "unreadable", error.strerror or str(error))])
    # damaged, or sealed since it was listed: the reader that takes every care begins again
    found = []
    lines = segment.lines()
    try:
        for _, line in lines:
            found += _in_line(search, line)
    except OSError as error:
        return SearchedSegment(found, [Damage(lines.path, 0, 0, "unreadable", error.strerror or str(error))])
    return SearchedSegment(found, [damage for damage in lines.damages if damage.kind != "torn"])


def _candidates(search: Search, found: Iterator[Block]) -> Iterator[bytes]:
    """The lines that may hold a match."""
    first = None if search.invert else search.pattern.searcher([_IDS_MARK] if search.decode else [])
    for data, at, end in found:
        if first is None:
            yield from _all_lines(data, at, end)
            continue
        while (hit := first(data, at, end)) >= 0:
            begin, at = data.rfind(b"\n", 0, hit) + 1, data.find(b"\n", hit) + 1
            yield data[begin:at]


def _all_lines(data: bytes, begin: int, end: int) -> Iterator[bytes]:
    while begin < end:
        after = data.find(b"\n", begin) + 1
        yield data[begin:after]
        begin = after


def _in_line(search: Search, line: bytes) -> Iterator[Found]:
    record = parse_record(line)
    if record is None or record.kind not in CALL_KINDS:
        return
    head = record.head
    if search.trace_ids is not None and head.get("trace_id") not in search.trace_ids:
        return
    op = str(head.get("op"))
    if not search.filters.op(op):
        return
    for path, text in _texts_of(record, search.decode):
        if search.fields and not _is_field(path, search.fields):
            continue
        span = search.pattern.find(text)
        if (span is None) == search.invert:
            yield _found(head, op, path, text, span or (0, 0))


def _texts_of(record: Line, decode: Decode) -> Iterator[tuple[str, str]]:
    """Every text of a record with its path. What start and end both say, the start says for both."""
    head, kind = record.head, record.kind
    if kind == "start":
        yield "op", str(head.get("op"))
        if head.get("parent_id") is None:
            yield from texts(head.get("attributes"), "attributes")
    elif kind == "end" and head.get("exception"):
        yield from texts(head["exception"], "exception")
    name = PAYLOAD_KEYS[kind]
    try:
        value = orjson.loads(record.payload) if record.payload else None
    except orjson.JSONDecodeError:
        return
    yield from texts(value, name)
    if decode is not None and isinstance(value, dict):
        for key in _IDS:
            ids = value.get(key)
            if isinstance(ids, list) and ids:
                yield f"{name}.{key}", decode(ids)


def _is_field(path: str, patterns: tuple[str, ...]) -> bool:
    """A whole path, the beginning of one at a dot, its last part, or a shell pattern of it."""
    return any(
        path == pattern
        or path.startswith(f"{pattern}.")
        or path.rpartition(".")[2] == pattern
        or fnmatch.fnmatchcase(path, pattern)
        for pattern in patterns
    )


def _found(head: dict[str, Any], op: str, path: str, text: str, span: tuple[int, int]) -> Found:
    begin, end = span
    line_begin = text.rfind("\n", 0, begin) + 1
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    match = text[begin:end]
    return Found(
        str(head.get("trace_id")), str(head.get("id")), head.get("step"), head.get("sample_index"),
        head.get("rollout_n"), op, path,
        _end_of(text[line_begin:begin]), match if len(match) <= _MATCH else match[:_MATCH] + "…",
        _beginning_of(text[end:line_end]),
    )  # fmt: skip


def _end_of(text: str) -> str:
    return text if len(text) <= _BEFORE else "…" + text[-_BEFORE:]


def _beginning_of(text: str) -> str:
    return text if len(text) <= _AFTER else text[:_AFTER] + "…"
