"""One traced call: a start record when it begins, an end record when it ends. Nothing raises into the traced code."""

from __future__ import annotations

import linecache
import time
from collections.abc import Callable
from contextvars import Token
from typing import Any, TypeVar

from ..schemas.interrupts import pass_on
from ..schemas.objects import exception_message, omitted, tagged_fields
from ..schemas.values import Payload, encode
from . import session as sessions
from . import token2text
from .arguments import ArgumentBinder
from .context import TraceAttributes, Where, current_attributes, current_span, tracing
from .counters import warn_once
from .ids import new_id, timestamp
from .methods import Methods
from .session import Session

__all__ = [
    "WITHOUT_TEXT",
    "WITH_TEXT",
    "Op",
    "Span",
    "begin",
    "begin_as",
    "encode_attributes",
    "failure",
    "internal",
    "record_skip",
    "without",
]

_ATTRIBUTE_ORDER = ("step", "sample_index", "rollout_n", "validate")
# Frames of a traceback that are kept, from the innermost outwards.
_MAX_FRAMES = 50


class Op:
    """What decoration decides once: the name and how arguments become inputs.

    `skip`: how many of the first arguments are no inputs; None: one in the calls of methods, found out per class.
    `instance`: what a callable object is asked for (its tokenizer); for methods it is their instance.
    """

    __slots__ = ("binder", "func", "instance", "json", "methods", "name", "skip")

    def __init__(self, func: Callable[..., Any], name: str, skip: int | None = None, instance: Any = None) -> None:
        self.func = func
        self.name = name
        self.json = b'"op":' + encode(name) + b',"id":"'
        self.skip = skip
        self.instance = instance
        self.binder = ArgumentBinder(func)
        self.methods = Methods(func)

    def __reduce__(self) -> tuple[type[Op], tuple[Callable[..., Any], str, int | None, Any]]:
        # what was found out about classes stays here
        return (Op, (self.func, self.name, self.skip, self.instance))

    def skipped(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """How many of the first arguments of this call are its instance or class: 0 or 1."""
        if self.skip is not None:
            return self.skip
        if args:
            return 1 if self.methods.bind(args[0]) else 0
        name = self.binder.first_name
        return 1 if name in kwargs and self.methods.bind(kwargs[name]) else 0


class Span:
    """A call in progress."""

    __slots__ = ("begun", "core", "inputs", "instance", "op", "session", "started", "token", "trace", "where")

    begun: int
    core: bytes
    inputs: dict[str, Any] | None
    instance: Any
    started: int
    token: Token[Where | None]
    where: Where

    def __init__(self, session: Session, op: Op, trace: TraceAttributes) -> None:
        self.session = session
        self.op = op
        self.trace = trace

    def finish(self, output: Any) -> None:
        """Write the end record of a call that returned `output`."""
        try:
            duration = time.perf_counter_ns() - self.begun
            session = self.session
            text_job = None
            if session.token2text:
                output, text_job = token2text.prepare(self.instance, self.inputs, output)
            if session.settings.drop_fields:
                output = without(output, session.settings.drop_fields)
            self.end(duration, WITHOUT_TEXT if text_job is None else WITH_TEXT, encode(output, session.side))
            if text_job is not None:
                self.decode_later(text_job)
        except Exception as error:  # noqa: BLE001
            pass_on(error)
            internal("finishing", self.op, error, self.session)
        finally:
            self._leave()

    def fail(self, error: BaseException) -> None:
        """Write the end record of a call that raised `error`."""
        try:
            duration = time.perf_counter_ns() - self.begun
            self.end(duration, failure(error), b"null")
        except Exception as trouble:  # noqa: BLE001
            pass_on(trouble)
            internal("finishing", self.op, trouble, self.session)
        finally:
            self._leave()

    def end(self, duration: int, outcome: bytes, payload: bytes) -> None:
        """Write the end record: `duration` in ns, the head's part from `text` on, the encoded output."""
        if type(payload) is not bytes:
            outcome += _blobs(payload)
        # the clock of records has microseconds: what a reader adds up must be exact
        ended = timestamp(self.started // 1000 * 1000 + duration)
        line = b"".join(
            (
                b'{"kind":"end","bytes":%d,' % len(payload),
                self.trace.head,
                self.core,
                (f'"ended_at":"{ended}","duration":{duration / 1e9:.9f}').encode(),
                outcome,
                b',"attributes":',
                self.trace.json,
                b',"output":',
                payload,
                b"}\n",
            )
        )
        self.session.append(line)

    def decode_later(self, job: Callable[[], dict[str, str]]) -> None:
        """Have token ids decoded beside the traced code; the end record has announced a text."""
        if not self.session.background.submit(lambda: self._text(job)):
            self._text_lost("too many wait to be decoded")

    def _text(self, job: Callable[[], dict[str, str]]) -> None:
        try:
            self._write_text(encode(job()))
        except Exception as error:  # noqa: BLE001
            self._text_lost(f"{type(error).__name__}: {error}")

    def _text_lost(self, why: str) -> None:
        self.session.counters.drop("text not decoded")
        warn_once("text", f"decoding ids of {self.op.name}: {why}; the ids are recorded")
        # readers were told to wait for a text
        self._write_text(b"{}")

    def _write_text(self, payload: bytes) -> None:
        head = b'{"kind":"text","bytes":%d,' % len(payload) + self.trace.head
        core = self.core[: self.core.index(b',"started_at":')]
        self.session.append(head + core + b',"output":' + payload + b"}\n")

    def _leave(self) -> None:
        try:  # noqa: SIM105  # a context manager takes as long as all the rest of this
            current_span.reset(self.token)
        except ValueError:
            # ended in another context (a coroutine closed by the collector): that one was never ours to restore
            pass


# The head of an end record from `text` up to what is not known before.
WITHOUT_TEXT = b',"text":false,"status":"success","exception":null'
WITH_TEXT = b',"text":true,"status":"success","exception":null'


def failure(error: BaseException) -> bytes:
    """The head's part from `text` on for a call that raised."""
    return b',"text":false,"status":"error","exception":' + encode(_exception_form(error))


def _blobs(payload: bytes) -> bytes:
    """The head's part that names the contents of the side file that a payload refers to."""
    digests = payload.digests if isinstance(payload, Payload) else ()
    return b',"blobs":["' + '","'.join(digests).encode() + b'"]'


_S = TypeVar("_S", bound=Span)


def begin(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span | None:
    """Write the start record and make the call the current span; None when nothing is recorded here."""
    session = sessions.current()
    return None if session is None or not tracing.get() else begin_as(Span, session, op, args, kwargs)


def begin_as(kind: type[_S], session: Session, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _S | None:
    """The same for another kind of span, in a recording that runs; None when that failed, which is counted."""
    token: Token[Where | None] | None = None
    try:
        trace = current_attributes.get()
        span = kind(session, op, no_attributes(session) if trace is None else trace)
        span.started = started = time.time_ns()
        span_id = new_id(started)
        parent = current_span.get()
        if parent is None:
            trace_id, parent_json = span_id, "null"
            span.where = where = Where(span_id, trace_id)
            if span.trace.place is not None:
                span.trace.place.root = where
        else:
            trace_id, parent_json = parent.trace_id, f'"{parent.id}"'
            span.where = where = Where(span_id, trace_id)
        span.token = token = current_span.set(where)
        ids = f'{span_id}","trace_id":"{trace_id}","parent_id":{parent_json},"started_at":"{timestamp(started)}",'
        span.core = op.json + ids.encode()
        skip = op.skipped(args, kwargs)
        inputs = op.binder.inputs(args, kwargs, skip)
        if session.token2text:
            span.inputs = inputs
            span.instance = args[0] if skip and args else op.instance
        else:
            span.inputs = span.instance = None
        if session.settings.drop_fields:
            inputs = without(inputs, session.settings.drop_fields)
        payload = encode(inputs, session.side)
        core = span.core if type(payload) is bytes else span.core + _blobs(payload)[1:] + b","
        session.append(
            b"".join(
                (
                    b'{"kind":"start","bytes":%d,' % len(payload),
                    span.trace.head,
                    core,
                    b'"attributes":',
                    span.trace.json,
                    b',"inputs":',
                    payload,
                    b"}\n",
                )
            )
        )
        # taken last, so that the duration is the method's own
        span.begun = time.perf_counter_ns()
        return span
    except Exception as error:  # noqa: BLE001
        if token is not None:
            current_span.reset(token)
        pass_on(error)
        internal("starting", op, error, session)
        return None
    except BaseException:
        # Ctrl-C, here of all places: what the program calls after it is no child of a call that never began
        if token is not None:
            current_span.reset(token)
        raise


def encode_attributes(values: dict[str, Any], experiment_name: str | None) -> TraceAttributes:
    """The two encoded forms of a trajectory's attributes."""
    head = b"".join(b'"%s":%s,' % (name.encode(), encode(values.get(name))) for name in _ATTRIBUTE_ORDER)
    head += b'"experiment_name":' + encode(experiment_name) + b","
    return TraceAttributes(head, encode(values), values)


# Of the experiment that asked last: both in one tuple, so that threads never see halves of two updates.
_bare: tuple[str, TraceAttributes] | None = None


def no_attributes(session: Session) -> TraceAttributes:
    """Attributes of a call outside of any `rollout_trace_attr`."""
    global _bare
    bare = _bare
    if bare is None or bare[0] != session.experiment_name:
        bare = _bare = session.experiment_name, encode_attributes({}, session.experiment_name)
    return bare[1]


def record_skip(session: Session, name: str, values: dict[str, Any], reason: str) -> None:
    """Write that a trajectory was left out, and why."""
    try:
        session.counters.skipped += 1
        trace = encode_attributes(values, session.experiment_name)
        now = time.time_ns()
        span_id = new_id(now)
        core = (
            f'{span_id}","trace_id":"{span_id}","parent_id":null,"started_at":"{timestamp(now)}","reason":"{reason}",'
        ).encode()
        op = b'"op":' + encode(name) + b',"id":"'
        size = b'{"kind":"skip","bytes":%d,' % len(trace.json)
        session.append(size + trace.head + op + core + b'"attributes":' + trace.json + b"}\n")
    except Exception as error:  # noqa: BLE001
        warn_once("skip", f"a skipped trajectory could not be recorded: {type(error).__name__}: {error}")


def without(value: Any, names: frozenset[str]) -> Any:
    """`value` with the named fields replaced by a visible mark, at the top level and one below (`kwargs`)."""
    fields = value if type(value) is dict else tagged_fields(value, type(value))
    if fields is None:
        return value
    out = {}
    for key, inner in fields.items():
        if key in names:
            out[key] = omitted(inner, "VERL_TRACE_DROP_FIELDS")
        else:
            out[key] = without(inner, names) if type(inner) is dict else inner
    return out


def _exception_form(error: BaseException) -> dict[str, Any]:
    """Type, message and traceback as Weave's client sends them."""
    frames = []
    entry = error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        frames.append((code.co_filename, entry.tb_lineno, code.co_name, entry.tb_frame.f_globals))
        entry = entry.tb_next
    return {
        "type": type(error).__name__,
        "message": exception_message(error),
        "traceback": [
            {
                "filename": filename,
                "line_number": number,
                "function_name": name,
                "text": linecache.getline(filename, number, scope).strip(),
            }
            for filename, number, name, scope in frames[-_MAX_FRAMES:]
        ],
    }


def internal(what: str, op: Op, error: Exception, session: Session) -> None:
    """Trouble of ours: one warning and a count."""
    session.counters.drop(f"internal error {what}")
    warn_once(
        f"internal-{what}-{op.name}-{type(error).__name__}",
        f"{what} the record of {op.name} failed: {type(error).__name__}: {error}; the call itself is unaffected",
    )
