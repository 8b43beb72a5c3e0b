"""The lines of a segment without those of some traces; header and close record say that lines are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from .records import CALL_KINDS, parse_record, trace_id_of
from .segments import SegmentLines

__all__ = ["SomeLines"]

_MARKED = (b'{"kind":"header"', b'{"kind":"close"')


class SomeLines:
    """Iterates lines as bytes. `keep` says of a trace id whether its lines stay; what belongs to no trace stays.

    `key`, `said`: what the header gets under which name; the close record gets `closing` and the number of lines left
    out, with those that had been left out before.
    `records`: lines behind the header so far, a close record aside; `left_out`: those passed over.
    """

    def __init__(
        self,
        lines: SegmentLines,
        keep: Callable[[str], bool],
        key: str,
        said: dict[str, Any],
        closing: dict[str, Any] | None = None,
    ) -> None:
        self._lines = lines
        self._keep = keep
        self._key = key
        self._said = said
        self._closing = closing or {}
        self.records = 0
        self.left_out = 0

    def __iter__(self) -> Iterator[bytes]:
        for _, line in self._lines:
            trace_id = trace_id_of(line)
            if trace_id and not self._keep(trace_id):
                self.left_out += 1
                continue
            record = parse_record(line) if line.startswith(_MARKED) else None
            if record is None or record.kind in CALL_KINDS:
                self.records += 1
                yield line
                continue
            head: dict[str, Any] = record.head
            if record.kind == "close":
                before = head.get(self._key)
                said = {**(before if isinstance(before, dict) else {}), **self._closing}
                gone = said.get("left_out")
                said["left_out"] = self.left_out + (gone if isinstance(gone, int) else 0)
                yield orjson.dumps({**head, "records": self.records, self._key: said}) + b"\n"
            else:
                yield orjson.dumps({**head, self._key: self._said}) + b"\n"
