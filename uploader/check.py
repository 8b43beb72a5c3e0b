"""After sending: does the server hold what the files say?

counts  the calls of the trajectories are counted, 500 trajectories a question; where the number is wrong, by their ids
deep    every call is read back and compared in its normal form: JSON values with their keys in any order, 1 equal to
        1.0, times as instants, without what servers add (`summary.weave`, `attributes.weave`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from ..schemas.redaction import REDACTED
from .client import Client, Unreachable
from .payload import Encoded
from .plan import Trace
from .result import Difference

__all__ = [
    "CHECKS",
    "DIFFERS",
    "HARMLESS",
    "MOVED",
    "REWRITTEN",
    "STRIPPED",
    "Counted",
    "compare",
    "count_traces",
    "same_as_recorded",
    "same_in_brief",
    "same_instant",
]

CHECKS = ("none", "counts", "deep")

# Kinds of differences. What the server makes of some values for reasons of its own, and shows as the same,
REWRITTEN = "rewritten by the server"
# a heavy field that an upload has put elsewhere, with a preview in its place,
MOVED = "moved out when it was sent"
# (nothing is lost by these two)
HARMLESS = frozenset({REWRITTEN, MOVED})
# a value that is gone,
STRIPPED = "stripped by the server"
# and one that is another.
DIFFERS = "differs"

# Pauses before asking again for calls that were confirmed and are not shown: a replica may lag behind.
_LAG = (0.5, 2.0, 5.0)
# What a server puts in the place of a value that it finds too large.
_STUB = "_weave"
# The key of what stands in the place of a field that was moved out.
_MOVED_KEY = "_moved"
# What `payload` gives a call without an end. Why it has none is told in other words by other versions, and after more
# of the process's files were copied.
_NO_END = re.compile(r"(?s).*?\bprocess (\d+ on .*) (?:ended before this call did|closed its recording)(; it was .*)")


class Counted(NamedTuple):
    """`missing`: ids that the server must have and does not show, with their trajectories; `more`: calls that it shows
    beyond those."""

    missing: list[tuple[Trace, str]]
    more: int


def count_traces(client: Client, traces: Sequence[Trace]) -> Counted:
    """Hold the server's number of calls against ours.

    Raises:
        Rejected, Unreachable
    """
    expected = sum(trace.expected for trace in traces)
    found = client.count([trace.trace_id for trace in traces])
    # one that is lost and another one of its trace that was not meant make the number right
    if found == expected and not any(trace.partial and trace.remembered for trace in traces):
        return Counted([], 0)
    due = {key: trace for trace in traces for key in trace.ids if key not in trace.failed}
    shown = set(client.existing(list(due)))
    for pause in _LAG:
        # of what the ledger remembers, only the ledger is in doubt
        if all(due[key].remembered for key in due.keys() - shown):
            break
        if client.stop.wait(pause):
            raise Unreachable("stopped")
        shown |= set(client.existing(list(due.keys() - shown)))
    return Counted([(due[key], key) for key in due if key not in shown], max(0, found - len(shown)))


def compare(call: Encoded, row: dict[str, Any]) -> list[Difference]:
    """The fields that the server holds otherwise than they were sent."""
    try:
        mine: dict[str, Any] = orjson.loads(b"".join(call.complete()))
    except orjson.JSONDecodeError:
        # damaged in a way that the server did not mind
        return [Difference(call.id, call.op, "(what was recorded is no JSON)", DIFFERS)]
    found: list[Difference] = []
    for name in ("started_at", "ended_at"):
        if not same_instant(mine[name], row.get(name)):
            found.append(Difference(call.id, call.op, name, DIFFERS))
    if _no_end(mine["exception"]) is None or _no_end(mine["exception"]) != _no_end(row.get("exception")):
        pairs = _walk("exception", mine["exception"], row.get("exception"))
        found += [Difference(call.id, call.op, path, kind) for path, kind in pairs]
    for name in ("trace_id", "parent_id", "op_name", "inputs", "output"):
        found += [Difference(call.id, call.op, path, kind) for path, kind in _walk(name, mine[name], row.get(name))]
    for name in ("attributes", "summary"):
        theirs = row.get(name)
        theirs = theirs if isinstance(theirs, dict) else {}
        for key, value in mine[name].items():
            found += [
                Difference(call.id, call.op, path, kind)
                for path, kind in _walk(f"{name}.{key}", value, theirs.get(key))
            ]
    return found


def _no_end(exception: Any) -> tuple[str, ...] | None:
    """Which process left a call without an end, and when it was last seen; None of any other exception."""
    try:
        told = orjson.loads(exception) if isinstance(exception, str) else None
    except orjson.JSONDecodeError:
        return None
    if not isinstance(told, dict) or told.get("type") != "Interrupted" or not isinstance(told.get("message"), str):
        return None
    found = _NO_END.fullmatch(told["message"])
    return found.groups() if found is not None else None


def same_in_brief(call: Encoded, row: dict[str, Any]) -> bool:
    """Whether a stored call has the end and the attributes that were to be sent: all that is small, and what tells how
    the upload was made (marks of damage, scores)."""
    theirs = row.get("attributes")
    theirs = theirs if isinstance(theirs, dict) else {}
    pairs = [(value, theirs.get(key)) for key, value in orjson.loads(call.attributes).items()]
    changes = [kind for mine, held in pairs for _, kind in _walk("", mine, held)]
    return same_instant(call.ended_at, row["ended_at"]) and set(changes) <= HARMLESS


def same_as_recorded(ended_at: str | None, attributes: bytes, row: dict[str, Any]) -> bool:
    """Whether a stored call has the end and the attributes that the files tell, scores among them, for who does not
    know how it was sent: values that --redact leaves out, and attributes beside these, say nothing."""
    theirs = row.get("attributes")
    theirs = theirs if isinstance(theirs, dict) else {}
    pairs = [(value, theirs.get(key)) for key, value in orjson.loads(attributes).items()]
    changes = [kind for mine, held in pairs if REDACTED not in str(held) for _, kind in _walk("", mine, held)]
    return same_instant(ended_at or "", row["ended_at"]) and set(changes) <= HARMLESS


def same_instant(mine: str, theirs: Any) -> bool:
    """Whether two texts name one moment, to the microsecond."""
    if mine == theirs:
        return True
    try:
        return _instant(mine) == _instant(str(theirs))
    except ValueError:
        return False


def _instant(text: str) -> datetime:
    head, dot, rest = text.replace("Z", "+00:00").partition(".")
    if dot:
        # Python 3.10 takes three or six digits of a second
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        text = f"{head}.{digits[:6]:0<6}{rest[len(digits) :]}"
    else:
        text = head
    return datetime.fromisoformat(text)


def _walk(path: str, mine: Any, theirs: Any) -> Iterator[tuple[str, str]]:
    """Paths and kinds of differences. A stack of its own: recorded values may be nested deeper than Python calls."""
    todo = [(path, mine, theirs)]
    while todo:
        path, mine, theirs = todo.pop()
        if isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
            todo += [(f"{path}.{key}", value, theirs[key]) for key, value in mine.items()]
        elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
            if mine != theirs:
                pairs = enumerate(zip(mine, theirs, strict=True))
                todo += [(f"{path}.{index}", one, other) for index, (one, other) in pairs]
        elif not _same(mine, theirs):
            yield path, _kind(mine, theirs)


def _same(mine: Any, theirs: Any) -> bool:
    # True == 1 in Python, and not in JSON
    return bool(mine == theirs) and isinstance(mine, bool) == isinstance(theirs, bool)


def _kind(mine: Any, theirs: Any) -> str:
    if isinstance(theirs, dict) and _STUB in theirs:
        return STRIPPED
    if isinstance(theirs, dict) and _MOVED_KEY in theirs:
        return MOVED
    stored_elsewhere = isinstance(theirs, dict) and theirs.get("_type") == "CustomWeaveType"
    reference = isinstance(theirs, str) and theirs.startswith("weave:///")
    if (stored_elsewhere or reference) and mine is not None:
        return REWRITTEN
    numbers = (int, float)
    if isinstance(mine, numbers) and isinstance(theirs, numbers) and bool not in (type(mine), type(theirs)):
        # a whole number beyond 2**53 that went through a float
        return REWRITTEN if float(mine) == float(theirs) else DIFFERS
    return DIFFERS
