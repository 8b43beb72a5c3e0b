"""One recorded trajectory -> the calls that Weave stores: ids, times and payload bytes as recorded.

What is added to the recorded data
- `summary.status_counts`, which Weave's own client computes: successes and errors of a call and all below it.
- `attributes.reward` and its kin on the root (`reader/score_names.py`).
- `attributes.verl_trace`: attempt, host, pid and version of the recording process, and marks:
  `orphan` (the parent was not recorded), `interrupted` (the process ended first), `inputs_lost` (no start on disk),
  `text_lost` (the process ended before it had decoded the text), `clock_skew` (seconds by which the call seems to have
  begun before its parent: the clocks of two hosts disagree).
- `TEXT_MARK` in front of strings that Weave would take for references of its own. A made-up reference makes the server
  refuse a whole batch, and a well-formed one would be shown as something else than the text that was recorded.
  Likewise in front of the type of recorded dicts that claim to be objects of Weave's own: its client would build them
  from files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from ..reader.score_names import flat_scores
from ..schemas.redaction import REDACTED
from .size import stored_size

if TYPE_CHECKING:
    from ..reader import Call, Trajectory, Writer
    from ..reader.contents import SideFiles
    from ..schemas.redaction import KeyPatterns
    from .lessen import Lessen

__all__ = ["TEXT_MARK", "Encoded", "Moved", "encode_trajectory", "protect_references", "status_counts"]

# Written before a recorded string that begins like a Weave reference.
TEXT_MARK = "text:"
_REFERENCES = ("weave:///", "weave-trace-internal:///")
# One of these is in the JSON of every such string: a cheap test before any parsing. The second form has an escaped "/".
_HINTS = (b'"weave:/', b'"weave:\\/', b'"weave-trace-internal:', b'"CustomWeaveType"')
# What all of them have in common: what is sent is looked through once.
_HINTS_OF_HINTS = b"eave"
# Of the first so many lists those longer than so many bytes, and without a text, are not looked through: token ids and
# logprobs, most of all that is sent.
_LISTS = 8
_LONG = 1000
# An object that Weave's client would build from files, code among them, when somebody reads the call.
_CUSTOM = "CustomWeaveType"


# JSON in pieces, to be joined: a payload is copied once, into the request.
Pieces = tuple[bytes, ...]


class Moved(NamedTuple):
    """A field that became a file: its path in the call and its size in bytes of JSON."""

    path: str
    bytes: int


# Not frozen, which would cost a microsecond a call; nobody changes one.
@dataclass(slots=True)
class Encoded:
    """One call, ready to be posted in either of the two forms that Weave's servers know.

    `head` and `tail` are JSON members without braces, `attributes` and `inputs` JSON objects, `output` any JSON.
    `escaped`: strings that got `TEXT_MARK`. `moved`: fields that became files, see `heavy`. `blobs`: digests of what it
    refers to in `contents`, see `media`; `missing`: how many of them were not there. `ended_at`: as in `tail`, to be
    compared with what a server has. `left_out`: fields that `lessen` left out. `wandb_run`: what it is linked to;
    `attempt`: whose it is.
    """

    id: str
    trace_id: str
    op: str
    project_id: str
    head: bytes
    attributes: bytes
    inputs: bytes
    tail: bytes
    output: bytes = b"null"
    escaped: int = 0
    interrupted: bool = False
    orphan: bool = False
    ended_at: str = ""
    left_out: int = 0
    wandb_run: str | None = None
    attempt: str = ""
    moved: tuple[Moved, ...] = ()
    blobs: tuple[str, ...] = ()
    contents: SideFiles | None = None
    missing: int = 0
    # bytes that the call adds to a request
    size: int = field(init=False)

    def __post_init__(self) -> None:
        parts = (self.head, self.attributes, self.inputs, self.tail, self.output)
        self.size = sum(map(len, parts)) + 40

    @property
    def stored_size(self) -> int:
        """Bytes that the server will count for it, unless fields of it become files."""
        summary = orjson.dumps(orjson.loads(b"{" + self.tail + b"}").get("summary"))
        return sum(stored_size(part) for part in (self.attributes, self.inputs, self.output, summary))

    def complete(self) -> Pieces:
        """The call as an item of `/v2/…/calls/complete`."""
        return (b"{", *self._beginning(), b",", *self._ending(), b"}")

    def referring_to(self, op_ref: str) -> Encoded:
        """The call with another reference to its op."""
        head: dict[str, Any] = orjson.loads(b"{" + self.head + b"}")
        return replace(self, head=_members({**head, "op_name": op_ref}))

    def start(self) -> Pieces:
        """The beginning as an item of `/call/upsert_batch`, for servers without the newer route."""
        return (b'{"mode":"start","req":{"start":{', *self._beginning(), b"}}}")

    def end(self) -> Pieces:
        """The end as an item of `/call/upsert_batch`."""
        ids = _members({"project_id": self.project_id, "id": self.id})
        return (b'{"mode":"end","req":{"end":{', ids, b",", *self._ending(), b"}}}")

    def _beginning(self) -> Pieces:
        return (self.head, b',"attributes":', self.attributes, b',"inputs":', self.inputs)

    def _ending(self) -> Pieces:
        return (self.tail, b',"output":', self.output)


def encode_trajectory(
    trajectory: Trajectory,
    project_id: str,
    op_ref: Callable[[str], str],
    redact: KeyPatterns | None = None,
    lessen: Lessen | None = None,
    links: Mapping[str, str] | None = None,
) -> list[Encoded]:
    """The calls of a trajectory, in its order. All calls are ended or belong to a process that is gone.

    `op_ref` gives, for a recorded op name, what the call refers to (see `ops`). `redact`: keys whose
    values are left out, in attributes, inputs and outputs at any depth. `lessen` leaves out fields of
    both. `links`: attempt -> its W&B run, as entity/project/id.
    """
    counts = status_counts(trajectory.calls)
    root = trajectory.root
    encoder = _Encoder(project_id, redact, lessen, links or {})
    return [
        encoder.encode(
            call, op_ref(call.op), counts[call.id], flat_scores(trajectory, call.attributes) if call is root else {}
        )
        for call in trajectory.calls
    ]


def status_counts(calls: Sequence[Call]) -> dict[str, dict[str, int]]:
    """Call id -> `{"success":…,"error":…}` of the call and everything below it, as Weave's client rolls up."""
    parents = {call.id: call.parent_id for call in calls}
    counts = {call.id: {"success": 0, "error": 0} for call in calls}
    for call in calls:
        outcome = "error" if call.exception is not None or call.unfinished else "success"
        at: str | None = call.id
        seen: set[str] = set()
        # upwards from every call: trees are shallow, and a damaged file may even hold a cycle
        while at is not None and at in counts and at not in seen:
            seen.add(at)
            counts[at][outcome] += 1
            at = parents[at]
    return counts


class _Encoder:
    """Encodes the calls of one trajectory, most of which come from the same process."""

    def __init__(
        self, project_id: str, redact: KeyPatterns | None, lessen: Lessen | None, links: Mapping[str, str]
    ) -> None:
        self._project_id = project_id
        self._redact = redact
        self._lessen = lessen
        self._links = links
        self._origins: dict[Writer, dict[str, Any]] = {}

    def encode(self, call: Call, op_ref: str, counts: dict[str, int], added: dict[str, Any]) -> Encoded:
        """A call; `added`: attributes that were not recorded with it."""
        started_at = _started_at(call)
        head: dict[str, Any] = {
            "project_id": self._project_id,
            "id": call.id,
            "trace_id": call.trace_id,
            "parent_id": call.parent_id,
            "op_name": op_ref,
            "started_at": started_at,
        }
        origin = self._origin(call)
        attempt = origin["attempt"]
        wandb_run = self._links.get(attempt) if self._links else None
        if wandb_run is not None:
            head |= {"wb_run_id": wandb_run, **_wandb_step(call)}
        inputs, output = _as_object(call.inputs), call.output() or b"null"
        unfinished = call.unfinished
        left_out = 0
        if self._lessen is not None:
            (inputs, of_inputs), (output, of_output) = self._lessen(inputs), self._lessen(output)
            left_out = of_inputs + of_output
            origin = {**origin, "fields_left_out": left_out} if left_out else origin
        own = {**call.attributes, **added, "verl_trace": origin}
        attributes = orjson.dumps(own)
        if self._redact is not None:
            attributes, inputs, output = (_redacted(data, self._redact) for data in (attributes, inputs, output))
        attributes, in_attributes = protect_references(attributes)
        inputs, in_inputs = protect_references(inputs)
        output, in_output = protect_references(output)
        ended_at = max(call.last_seen_at, started_at) if unfinished else call.ended_at
        end = {"ended_at": ended_at, "exception": _exception(call), "summary": {"status_counts": counts}}
        return Encoded(
            id=call.id,
            trace_id=call.trace_id,
            op=call.op,
            project_id=self._project_id,
            head=_members(head),
            attributes=attributes,
            inputs=inputs,
            tail=_members(end),
            output=output,
            escaped=in_attributes + in_inputs + in_output,
            interrupted=unfinished,
            orphan=call.orphan,
            ended_at=ended_at or "",
            left_out=left_out,
            wandb_run=wandb_run,
            attempt=attempt,
            blobs=tuple(call.blobs),
            contents=call.writer.contents if call.blobs else None,
        )

    def _origin(self, call: Call) -> dict[str, Any]:
        """Which process recorded the call, and what is special about it."""
        writer = call.writer
        origin = self._origins.get(writer)
        if origin is None:
            origin = {"attempt": writer.attempt, "host": writer.host, "pid": writer.pid, "version": writer.version}
            self._origins[writer] = origin
        usual = not (call.clock_skew or call.orphan or call.raw_output is None or call.inputs is None)
        return origin if usual and not call.awaits_text else {**origin, **_marks(call)}


def _marks(call: Call) -> dict[str, Any]:
    """What is special about a call."""
    found: dict[str, Any] = {"clock_skew": call.clock_skew} if call.clock_skew else {}
    if call.orphan:
        found["orphan"] = True
    if call.unfinished:
        found["interrupted"] = True
    if call.inputs is None:
        found["inputs_lost"] = True
    if call.awaits_text:
        found["text_lost"] = True
    return found


def _wandb_step(call: Call) -> dict[str, int]:
    """The training step, where there is one: verl says -1 for none, which the server refuses."""
    step = call.head.get("step")
    return {"wb_run_step": step} if type(step) is int and step >= 0 else {}


def _started_at(call: Call) -> str:
    # a call of which damage left nothing but its text has no time of its own
    return call.started_at or call.last_seen_at


def _members(fields: dict[str, Any]) -> bytes:
    return orjson.dumps(fields)[1:-1]


def _as_object(inputs: bytes | None) -> bytes:
    """Weave wants an object; anything else is put into one, and nothing at all (the start is lost) is an empty one."""
    if not inputs:
        return b"{}"
    return inputs if inputs.startswith(b"{") else b'{"value":' + inputs + b"}"


def _exception(call: Call) -> str | None:
    """The text that Weave's client would send: JSON with type, message and traceback."""
    if call.unfinished:
        process = f"process {call.writer.pid} on {call.writer.host}"
        # one that has closed its recording itself was not killed: recording was paused, say, or the disk full
        ended = (
            f"no end of this call was recorded, although the {process} closed its recording"
            if call.writer.closed_itself
            else f"the recording {process} ended before this call did"
        )
        message = f"{ended}; it was last seen at {call.last_seen_at}"
        return json.dumps({"type": "Interrupted", "message": message})
    return None if call.exception is None else json.dumps(call.exception)


def _redacted(data: bytes, patterns: KeyPatterns) -> bytes:
    try:
        return orjson.dumps(_without(orjson.loads(data), patterns))
    except orjson.JSONDecodeError:
        # nobody can say what is in it: nothing of it leaves
        return orjson.dumps({"_omitted": "not JSON, and --redact was given"})


def _without(value: Any, patterns: KeyPatterns) -> Any:
    if isinstance(value, dict):
        return {key: REDACTED if patterns.match(key) else _without(inner, patterns) for key, inner in value.items()}
    return [_without(inner, patterns) for inner in value] if isinstance(value, list) else value


def protect_references(data: bytes) -> tuple[bytes, int]:
    """JSON in which no string begins like a Weave reference and no recorded dict is taken for an object of Weave's own,
    and how many strings got `TEXT_MARK` for that. Times, which the recorder writes as Weave does, are left.

    Almost always the very bytes given: only a suspicion leads to parsing. Keys are left alone: Weave does not
    read them.
    """
    may_hint = _may_hint(data) if len(data) > _LONG else _HINTS_OF_HINTS in data
    if not may_hint or not any(hint in data for hint in _HINTS):
        return data, 0
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        # not JSON: the server will refuse this call alone and say so
        return data, 0
    marked, count = _mark(value)
    return (orjson.dumps(marked), count) if count else (data, 0)


def _may_hint(data: bytes) -> bool:
    """Whether what all hints have in common is in it. Long lists of numbers are passed over by their ends: a hint
    begins with a quote, and has no bracket in it."""
    searched = at = 0
    for _ in range(_LISTS):
        begin = data.find(b"[", at)
        at = data.find(b"]", begin)
        if begin < 0 or at < 0:
            break
        if at - begin > _LONG and data.find(b'"', begin, at) < 0:
            if data.find(_HINTS_OF_HINTS, searched, begin) >= 0:
                return True
            searched = at
    return data.find(_HINTS_OF_HINTS, searched) >= 0


def _is_time(value: dict[str, Any]) -> bool:
    if set(value) != {"_type", "weave_type", "val"} or not isinstance(value["val"], str):
        return False
    return bool(value["weave_type"] == {"type": "datetime.datetime"})


def _mark(value: Any) -> tuple[Any, int]:
    if isinstance(value, str):
        return (TEXT_MARK + value, 1) if value.startswith(_REFERENCES) else (value, 0)
    if isinstance(value, dict):
        if value.get("_type") == _CUSTOM and not _is_time(value):
            value = {**value, "_type": TEXT_MARK + _CUSTOM}
            marked, count = _mark(value)
            return marked, count + 1
        pairs = [(key, *_mark(inner)) for key, inner in value.items()]
        return {key: inner for key, inner, _ in pairs}, sum(count for _, _, count in pairs)
    if isinstance(value, list):
        items = [_mark(inner) for inner in value]
        return [inner for inner, _ in items], sum(count for _, count in items)
    return value, 0
