"""Lines -> records; a line that is none, or whose payload is broken, is damage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import orjson

from ..schemas.lines import PAYLOAD_KEYS, SCHEMA_VERSION, Line, parse_line
from .segments import Damage, SegmentLines

__all__ = ["CALL_KINDS", "is_exit", "parse_record", "read_lines", "read_records", "score_of", "text_of", "trace_id_of"]

CALL_KINDS = frozenset({"start", "end", "text"})
# Kinds of which a trajectory is made.
_TRACE_KINDS = CALL_KINDS | {"score"}

_BEGIN = b'{"kind":"'
_BYTES = re.compile(rb'","bytes":(\d{1,18}),')
_SCORE = b'{"kind":"score",'
_PAYLOAD_MARKS = {kind: f',"{PAYLOAD_KEYS[kind]}":'.encode() for kind in CALL_KINDS}
_TRACE_ID = b'","trace_id":"'
# The ids stand behind a few short fields; a line in which they do not is parsed.
_HEAD_BYTES = 4096
# A line with garbage before it may hold that many beginnings of a record before the right one.
_MAX_TRIES = 100


def parse_record(line: bytes) -> Line | None:
    """One line as a record; None when it is none."""
    try:
        return parse_line(line)
    except ValueError:
        return None


def text_of(value: object) -> str:
    """The value where it is text, else ""."""
    return value if isinstance(value, str) else ""


def is_exit(record: Line) -> bool:
    """Whether it says that the writer is done."""
    return record.kind == "close" and record.head.get("reason") == "exit"


def trace_id_of(line: bytes) -> str:
    """The trace a line belongs to, "" for lines of none. Parses only scores and lines that look odd."""
    if line.startswith(_BEGIN):
        kind = line[len(_BEGIN) : line.find(b'"', len(_BEGIN), 25)].decode("ascii", "replace")
        if kind in CALL_KINDS:
            begin = line.find(_TRACE_ID, 0, _HEAD_BYTES) + len(_TRACE_ID)
            end = line.find(b'"', begin, begin + 100)
            if begin >= len(_TRACE_ID) and end > begin and _ends_as_told(line, kind):
                return line[begin:end].decode("utf-8", "replace")
        elif kind in ("skip", "lost", "stall", "header", "close"):
            return ""
    record = parse_record(line) or _behind_garbage(line)[0]
    if record is None or record.kind not in _TRACE_KINDS:
        return ""
    return text_of(record.head.get("trace_id"))


def score_of(line: bytes) -> Line | None:
    """The score that a line holds, None for lines of another kind."""
    if line.startswith(_SCORE):
        return parse_record(line)
    if line.startswith(_BEGIN):
        return None
    record = parse_record(line) or _behind_garbage(line)[0]
    return record if record is not None and record.kind == "score" else None


def _ends_as_told(line: bytes, kind: str) -> bool:
    """Whether the payload is as long as the head says: not two lines whose newline is lost."""
    marker = _PAYLOAD_MARKS[kind]
    size = _BYTES.match(line, len(_BEGIN) + len(kind))
    if size is None:
        return False
    begin = len(line) - 2 - int(size[1])
    return line.startswith(marker, max(0, begin - len(marker))) and line.endswith(b"}\n")


def read_records(lines: SegmentLines, damages: list[Damage], *, being_written: bool = False) -> Iterator[Line]:
    """The records of one file; see `read_lines`."""
    return (record for _, record in read_lines(lines, damages, being_written=being_written))


def read_lines(
    lines: SegmentLines,
    damages: list[Damage],
    *,
    being_written: bool = False,
    quick: Callable[[bytes], bool] | None = None,
) -> Iterator[tuple[bytes, Line]]:
    """The records of one file with their bytes; what is none goes to `damages`, as does an error of the disk.

    A header that is missing, or that a newer version wrote, is named there too. In a file that is `being_written`,
    neither half a line at the end is damage nor a header that is still to come. A whole line that `quick` takes is
    neither parsed nor yielded.
    """
    found: list[Damage] = []
    first, sealed = True, False
    try:
        for offset, line in lines:
            if not first:
                if quick is not None and (sealed or _is_json(line)) and quick(line):
                    continue
                # what almost all lines are takes the short way
                record = parse_record(line)
                if record is not None and b"\0" not in line and (sealed or _is_payload(record)):
                    yield line, record
                    continue
            sealed = lines.sealed
            record, bad, reason = _record(line, check_payload=not sealed)
            if bad:
                found.append(Damage(lines.path, offset, bad, "line", reason))
            if first:
                found += _header_trouble(lines, record)
                first = False
            if record is not None:
                yield (line[bad:] if bad else line), record
    except OSError as error:
        found.append(Damage(lines.path, lines.size, 0, "unreadable", error.strerror or str(error)))
    else:
        if first and not being_written:
            found += _header_trouble(lines, None)
    found += [damage for damage in lines.damages if damage.kind != "torn" or not being_written]
    damages += sorted(found, key=lambda damage: damage.offset)


def _record(line: bytes, *, check_payload: bool) -> tuple[Line | None, int, str]:
    """The record of a line, how many bytes at its beginning are bad, and why.

    zstd's checksum vouches for sealed payloads; those of raw files are looked at here, since a head that is whole says
    nothing of what the disk did to the rest.
    """
    record = parse_record(line)
    if record is None:
        record, bad = _behind_garbage(line)
        return record, bad, _reason(line[:bad])
    if b"\0" in line or (check_payload and not _is_payload(record)):
        return None, len(line), "the payload is not JSON"
    return record, 0, ""


def _behind_garbage(line: bytes) -> tuple[Line | None, int]:
    """A whole record at the end of a line that begins with something else, and the length of that.

    A block of NUL bytes or half a record that lost its newline must not take the next one with it.
    """
    begin = line.find(_BEGIN, 1)
    for _ in range(_MAX_TRIES):
        if begin < 0:
            break
        record = parse_record(line[begin:])
        if record is not None and _is_payload(record):
            return record, begin
        begin = line.find(_BEGIN, begin + 1)
    return None, len(line)


def _header_trouble(lines: SegmentLines, record: Line | None) -> list[Damage]:
    if record is None or record.kind != "header":
        return [Damage(lines.path, 0, 0, "header", "the file does not begin with a header" if lines.size else "empty")]
    schema = record.head.get("schema")
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        reason = f"format version {schema}, newer than this verl-trace reads ({SCHEMA_VERSION}): upgrade verl-trace"
        return [Damage(lines.path, 0, 0, "schema", f"{reason}; what it knows was read")]
    return []


def _reason(line: bytes) -> str:
    if not line.strip(b"\0\n"):
        return "a block of NUL bytes"
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return f"not JSON: {error}"
    return "not a JSON object"


def _is_payload(record: Line) -> bool:
    return not record.payload or _is_json(record.payload)


def _is_json(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True
