"""Records -> outlines of calls, a segment at a time and without parsing payloads: what `outline_cache` keeps.

A record in the recorder's own form is taken apart by one expression; any other is parsed, and says the same.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import orjson
import zstandard

from ..schemas.lines import Line
from .answers import gives_tokens, tokens_in
from .calls import Call
from .counts import count_of
from .figures import END, START, TEXT, figures_of
from .kinds import MODEL, gets_parameters, kind_joined, kind_named
from .losses import Losses
from .outline import PLACES, call_outline
from .outline_shape import NOT_WHOLE
from .payloads import json_text
from .records import CALL_KINDS, is_exit, read_lines, text_of
from .segments import Damage, SegmentLines
from .writers import Segment, Writer

__all__ = ["FORM", "Row", "is_whole", "merge_rows", "outline_lines"]

# Raised when what is kept changes: outlines of another form are made anew.
FORM = 5
_LEVEL = 1

# A call: id, parent, op, kind, status, duration, tokens, response, started_at, ended_at, place, seen.
Row = tuple[Any, ...]
_ID, _PARENT, _KIND, _STARTED, _SEEN = 0, 1, 3, 8, 11
# What is written as numbers of words.
_WORDS = (2, 3, 4)

# Sets of characters are written out: with `\w` in one, each character takes a quarter longer.
_TEXT = rb'"[^"\\\x00-\x1f]*"'
_VALUE = rb"(?:[0-9A-Za-z_.+-]+|" + _TEXT + rb")"
_NAME = rb'"([0-9A-Za-z_-]+)"'
_TIME = rb'"([0-9A-Za-z_:.-]+)"'
_NUMBER = rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_HEAD = re.compile(
    rb'\{"kind":"(start|end|text)","bytes":([0-9]{1,18}),('
    + b",".join(b'"%b":%b' % (name.encode(), _VALUE) for name in PLACES)
    + rb'),"op":(' + _TEXT + rb'),"id":' + _NAME + rb',"trace_id":' + _NAME + rb',"parent_id":(?:null|' + _NAME + rb")"
    rb'(?:,"started_at":' + _TIME + rb'(?:,"ended_at":' + _TIME + rb',"duration":(' + _NUMBER + rb")"
    rb',"text":(?:true|false),"status":"([0-9A-Za-z_]+)","exception":null)?)?,'
)  # fmt: skip
# Kind -> its bit, and what stands before the payload.
_FORMS = {b"start": (START, b',"inputs":'), b"end": (END, b',"output":'), b"text": (TEXT, b'"output":')}
_ATTRIBUTES = b'"attributes":'
# Kinds that say nothing of a trajectory.
_OF_THE_FILE = frozenset({"header", "stall"})


def merge_rows(one: Row, other: Row) -> tuple[Row, int]:
    """What both say of a call, and how many of its records are there twice. The first of two counts."""
    better = other if _rank(other[_SEEN]) > _rank(one[_SEEN]) else one
    joined = _with_kind(better, (one if better is other else other)[_KIND])
    return (*joined[:_SEEN], one[_SEEN] | other[_SEEN], *one[_SEEN + 1 :]), (one[_SEEN] & other[_SEEN]).bit_count()


def _with_kind(row: Row, other: str) -> Row:
    """The row with the kind that it has together with what another record of the call says."""
    kind = kind_joined(row[_KIND], other)
    return row if kind == row[_KIND] else (*row[:_KIND], kind, *row[_KIND + 1 :])


def _rank(seen: int) -> int:
    # what the end says counts, before it the start, before that the text
    return 2 if seen & END else 1 if seen & START else 0


def outline_lines(segment: Segment, *, being_written: bool) -> tuple[bytes, bool]:
    """What is to be kept of a segment (see `outlines` for its form), and whether that holds for good."""
    made, lines = _Outliner(segment), segment.lines()
    damages: list[Damage] = []
    for line, record in read_lines(lines, damages, being_written=being_written, quick=made.quick):
        made.slow(line, record)
    # where bytes are broken, a whole copy may come, of the same size, age and end: nothing would tell it from this one
    for_good = lines.sealed and not any(damage.kind in ("unreadable", "zstd") for damage in damages)
    return made.written(lines, damages), for_good


class _Outliner:
    """Takes the records of a segment in order."""

    def __init__(self, segment: Segment) -> None:
        self._writer = Writer(segment.writer, [segment])
        self._ended = False
        self._traces: defaultdict[str, dict[str, Row]] = defaultdict(dict)
        # of each of them: records of calls, those without an id among them
        self._records: Counter[str] = Counter()
        # op as written, whether of a root -> the op, its kind, where it gave token ids, where it got parameters
        self._ops: dict[tuple[bytes, bool], tuple[str, str, str, str]] = {}
        self._places: dict[tuple[bytes | str, bytes | str], int] = {}
        self._place_rows: list[tuple[str, str]] = []
        self._scores: list[bytes] = []
        self._counts = {"skipped": 0, "duplicates": 0}
        self._losses = Losses()
        self._unknown: dict[str, int] = {}
        self._last_seen, self._last_time = "", b""

    def quick(self, line: bytes) -> bool:
        """Take a record in the recorder's own form; False for another, which is still to be parsed."""
        match = _HEAD.match(line)
        if match is None or b"\0" in line:
            return False
        kind, size, place, op, call_id, trace_id, parent, started, ended, duration, status = match.groups()
        bit, mark = _FORMS[kind]
        at, end = match.end(), len(line) - 2
        begin = end - int(size)
        after = begin - len(mark)
        if not line.startswith(mark, after) or not line.endswith(b"}\n"):
            return False
        if after <= at if bit != TEXT else after != at:
            return False
        if (status is None) is (bit == END) or (started is None and bit != TEXT):
            return False
        where = place, line[at:after]
        number = self._places.get(where)
        if number is None and (number := self._new_place(*where)) is None:
            return False
        is_root = parent is None
        known_op = self._ops.get((op, is_root))
        if known_op is None and (known_op := self._new_op(op, is_root)) is None:
            return False
        self._ended = False
        time = ended or started or b""
        if time > self._last_time:
            self._last_time = time
        trace = trace_id.decode()
        self._records[trace] += 1
        calls = self._traces[trace]
        name = call_id.decode()
        known = calls.get(name)
        seen = bit
        op_name, kind_name, kind_with_tokens, kind_with_parameters = known_op
        if kind_name != kind_with_parameters and bit == START and gets_parameters(line, begin):
            kind_name = kind_with_parameters
        if known is not None:
            seen |= known[_SEEN]
            if known[_SEEN] & (bit | END) or bit == TEXT:
                # the end is there, and says more; the first of two counts
                if known[_SEEN] & bit:
                    self._counts["duplicates"] += 1
                elif bit == START:
                    known = _with_kind(known, kind_name)
                calls[name] = (*known[:_SEEN], seen)
                return True
            kind_name = kind_joined(kind_name, known[_KIND])
        tokens = response = seconds = None
        if bit == END:
            seconds = float(duration)
            # the end of a generator has a key of its own, and is parsed
            tokens = tokens_in(line, begin, end, by_name=kind_name == MODEL, streamed=False)
            if tokens is not None and kind_name != kind_with_tokens and gives_tokens(line, begin, end):
                kind_name = kind_with_tokens
            if is_root:
                response = count_of(line, "response_ids", begin, end)
        told = "unfinished" if bit != END else "success" if status == b"success" else status.decode()
        calls[name] = (
            name, None if is_root else parent.decode(), op_name, kind_name, told, seconds, tokens, response,
            "" if started is None else started.decode(), None if ended is None else ended.decode(), number, seen,
        )  # fmt: skip
        return True

    def slow(self, line: bytes, record: Line) -> None:
        """Take a record that was parsed."""
        kind, head = record.kind, record.head
        self._ended = is_exit(record)
        if kind in CALL_KINDS:
            self._call(kind, record)
        elif kind == "score":
            self._scores.append(line)
        elif kind == "skip":
            self._counts["skipped"] += 1
        elif kind in ("lost", "close"):
            self._losses.take(kind, head)
        elif kind not in _OF_THE_FILE:
            self._count_unknown(kind)

    def _call(self, kind: str, record: Line) -> None:
        head = record.head
        call_id, trace_id = text_of(head.get("id")), text_of(head.get("trace_id"))
        if not trace_id:
            self._count_unknown(f"{kind} without ids")
            return
        self._records[trace_id] += 1
        self._last_seen = max(self._last_seen, text_of(head.get("ended_at")), text_of(head.get("started_at")))
        if not call_id:
            self._traces[trace_id]
            self._count_unknown(f"{kind} without ids")
            return
        call = Call(call_id, trace_id, self._writer, head)
        call.take(kind, record)
        *row, place, seen, _, _ = call_outline(call)
        told = json_text(place.head), json_text(place.attributes)
        number = self._places.get(told)
        if number is None:
            number = self._places[told] = len(self._place_rows)
            self._place_rows.append(told)
        self._take(trace_id, (*row, number, seen))

    def _count_unknown(self, kind: str) -> None:
        self._unknown[kind] = self._unknown.get(kind, 0) + 1

    def _take(self, trace_id: str, row: Row) -> None:
        calls = self._traces[trace_id]
        known = calls.get(row[_ID])
        if known is None:
            calls[row[_ID]] = row
        else:
            calls[row[_ID]], twice = merge_rows(known, row)
            self._counts["duplicates"] += twice

    def _new_op(self, quoted: bytes, is_root: bool) -> tuple[str, str, str, str] | None:
        """An op and its kinds by its JSON; None where that is none."""
        try:
            op = orjson.loads(quoted) or "unknown"
        except orjson.JSONDecodeError:
            return None
        known = self._ops[quoted, is_root] = (
            op,
            kind_named(op, is_root=is_root),
            kind_named(op, is_root=is_root, has_tokens=True),
            kind_named(op, is_root=is_root, has_parameters=True),
        )
        return known

    def _new_place(self, fields: bytes, attributes: bytes) -> int | None:
        """The number of a place by the bytes of a record; None where they are not what the recorder writes."""
        if attributes and not attributes.startswith(_ATTRIBUTES):
            return None
        try:
            orjson.loads(b"{%b}" % fields)
            told = orjson.loads(b"{%b}" % attributes)
        except orjson.JSONDecodeError:
            return None
        if len(told) != (1 if attributes else 0) or not isinstance(told.get("attributes", {}), dict):
            return None
        number = self._places[fields, attributes] = len(self._place_rows)
        said = attributes[len(_ATTRIBUTES) :] or b"{}"
        self._place_rows.append((f"{{{fields.decode()}}}", said.decode()))
        return number

    def written(self, lines: SegmentLines, damages: list[Damage]) -> bytes:
        """All of it, compressed."""
        words: dict[str, int] = {}
        traces = list(self._traces)
        rows = bytearray()
        for trace_id in traces:
            # calls are let go as they are written: many small ones take most of the memory
            rows += b"\n%b\n%b" % _written(self._traces.pop(trace_id), words)
        head = {
            "form": FORM,
            "file": lines.path.name,
            "size": lines.size,
            "ended": self._ended,
            "last_seen": max(self._last_seen, self._last_time.decode()),
            "damages": [[d.offset, d.length, d.kind, d.reason] for d in damages],
            "unknown": self._unknown,
            **self._counts,
            "lost": [self._losses.told, self._losses.dropped, self._losses.damaged],
            "lost_by": [self._losses.told_by, self._losses.dropped_by],
            "words": list(words),
            "places": self._place_rows,
            "scores": len(self._scores),
            "traces": traces,
            "records": [self._records[trace_id] for trace_id in traces],
        }
        first = b"\n".join([orjson.dumps(head), *(line.removesuffix(b"\n") for line in self._scores)])
        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        parts = compressor.compressobj(size=len(first) + len(rows))
        return parts.compress(first) + parts.compress(rows) + parts.flush()


def _written(calls: dict[str, Row], words: dict[str, int]) -> tuple[bytes, bytes]:
    """A trace's figures, where it is whole by itself, and the columns of its calls in start order."""
    if not calls:
        return NOT_WHOLE, b"[]"
    rows = sorted(calls.values(), key=_begin) if len(calls) > 1 else list(calls.values())
    columns = list(zip(*rows, strict=True))
    figures = NOT_WHOLE
    if is_whole(columns[_ID], columns[_PARENT], columns[_STARTED]):
        *found, ops = figures_of(columns)
        figures = orjson.dumps([*found, list(map(tuple, ops))])
    for index in _WORDS:
        columns[index] = tuple([words.setdefault(word, len(words)) for word in columns[index]])
    return figures, orjson.dumps(columns)


def is_whole(ids: Sequence[str], parents: Sequence[str | None], started: Sequence[str]) -> bool:
    """Whether these calls have one root, and all others a parent among them that began before: a tree in order."""
    if parents.count(None) != 1:
        return False
    times = dict(zip(ids, started, strict=True))
    # a parent that is not there sorts behind every time
    return all(parent is None or time >= times.get(parent, "~") for parent, time in zip(parents, started, strict=True))


def _begin(row: Row) -> tuple[str, str]:
    return row[_STARTED], row[_ID]
