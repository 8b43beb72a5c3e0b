"""One traced call: a start record when it begins, an end record when it ends. Nothing raises into the traced code."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from contextvars import Token
from time import perf_counter_ns, time_ns

from ..schemas.classes import class_name
from ..schemas.interrupts import pass_on, traceback_of
from ..schemas.objects import exception_message, omitted, tagged_fields
from ..schemas.values import Payload, encode, encode_pieces
from . import session as sessions
from . import token2text
from .arguments import ArgumentBinder
from .context import TraceAttributes, Where, current_attributes, current_span, tracing
from .counters import warn_once
from .ids import new_id, stamp, timestamp
from .methods import Methods
from .session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    _S = TypeVar("_S", bound="Span")

__all__ = [
    "WITHOUT_TEXT",
    "WITH_TEXT",
    "Op",
    "Span",
    "begin",
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

    __slots__ = ("binder", "core", "func", "instance", "methods", "name", "skip")

    def __init__(self, func: Callable[..., Any], name: str, skip: int | None = None, instance: Any = None) -> None:
        self.func = func
        self.name = name
        # how what a record says of the call itself begins; ids and time follow
        self.core = f'"op":{encode(name).decode()},"id":"'
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


class Span(Where):
    """A call in progress."""

    __slots__ = ("begun", "core", "inputs", "instance", "op", "session", "started", "token", "trace")

    begun: int
    core: str
    inputs: dict[str, Any] | None
    instance: Any
    op: Op
    session: Session
    started: int
    token: Token[Where | None] | None
    trace: TraceAttributes

    def finish(self, output: Any) -> None:
        """Write the end record of a call that returned `output`."""
        try:
            duration = perf_counter_ns() - self.begun
            session = self.session
            text_job = None
            if session.token2text:
                output, text_job = token2text.prepare(self.instance, self.inputs, output)
            if session.settings.drop_fields:
                output = without(output, session.settings.drop_fields)
            self.end(duration, WITHOUT_TEXT if text_job is None else WITH_TEXT, encode_pieces(output, session.side))
            if text_job is not None:
                self.decode_later(text_job)
        except Exception as error:  # noqa: BLE001
            pass_on(error)
            internal("finishing", self.op, error, self.session)
        finally:
            self.leave_call()

    def fail(self, error: BaseException) -> None:
        """Write the end record of a call that raised `error`."""
        try:
            duration = perf_counter_ns() - self.begun
            self.end(duration, failure(error), b"null")
        except Exception as trouble:  # noqa: BLE001
            pass_on(trouble)
            internal("finishing", self.op, trouble, self.session)
        finally:
            self.leave_call()

    def end(self, duration: int, outcome: str, payload: bytes | list[bytes]) -> None:
        """Write the end record: `duration` in ns, the head's part from `text` on, the encoded output."""
        size = sum(map(len, payload)) if type(payload) is list else len(payload)
        if type(payload) is Payload:
            outcome += _blobs(payload)
        trace = self.trace
        # the clock of records has microseconds: what a reader adds up must be exact
        ended = timestamp(self.started // 1000 * 1000 + duration)
        told = f'"ended_at":"{ended}","duration":{duration / 1e9:.9f}{outcome}{trace.before_output}'
        head = f'{{"kind":"end","bytes":{size},{trace.begin}{self.core}{told}'.encode()
        if type(payload) is list:
            self.session.append(head, (*payload, b"}\n"))
        else:
            self.session.append(b"".join((head, payload, b"}\n")))  # type: ignore[arg-type]

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
        core = self.core[: self.core.rindex(',"started_at":')].encode()
        self.session.append(head + core + b',"output":' + payload + b"}\n")

    def leave_call(self) -> None:
        """What runs now belongs where it did before the call; done by `finish` and `fail`, and once only.

        For the `finally` around both: a signal handler may raise in their first line.
        """
        # the context may be kept by tasks that began inside, and must not be kept by them through us
        token, self.token = self.token, None
        if token is None:
            return
        try:  # noqa: SIM105  # a context manager takes as long as all the rest of this
            current_span.reset(token)
        except ValueError:
            # ended in another context (a coroutine closed by the collector): that one was never ours to restore
            pass


# The head of an end record from `text` up to what is not known before.
WITHOUT_TEXT = ',"text":false,"status":"success","exception":null'
WITH_TEXT = ',"text":true,"status":"success","exception":null'


def failure(error: BaseException) -> str:
    """The head's part from `text` on for a call that raised."""
    return ',"text":false,"status":"error","exception":' + encode(_exception_form(error)).decode()


def _blobs(payload: Payload) -> str:
    """The head's part that names the contents of the side file that a payload refers to."""
    return ',"blobs":["' + '","'.join(payload.digests) + '"]'


_new = object.__new__


def begin(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], kind: type[_S] = Span) -> _S | None:  # type: ignore[assignment]
    """Write the start record and make the call the current span.

    None when nothing is recorded here, or when that failed, which is counted.
    """
    session = sessions.running
    if session is None or not tracing.get():
        return None
    span = parent = None
    try:
        span = _new(kind)
        span.session = session
        span.op = op
        trace = current_attributes.get()
        if trace is None:
            trace = no_attributes(session)
        span.trace = trace
        skip = op.skipped(args, kwargs)
        inputs = op.binder.inputs(args, kwargs, skip)
        if session.token2text:
            span.inputs = inputs
            span.instance = args[0] if skip and args else op.instance
        if session.settings.drop_fields:
            inputs = without(inputs, session.settings.drop_fields)
        payload = encode_pieces(inputs, session.side, trace.repeats)
        size = sum(map(len, payload)) if type(payload) is list else len(payload)
        # after the encoding, which may take long: the method begins now
        span.started = started = time_ns()
        span_id, began = stamp(started)
        span.id = span_id
        parent = current_span.get()
        if parent is None:
            span.trace_id = span_id
            if trace.place is not None:
                trace.place.root = Where(span_id, span_id)
            core = f'{op.core}{span_id}","trace_id":"{span_id}","parent_id":null,"started_at":"{began}",'
        else:
            span.trace_id = trace_id = parent.trace_id
            core = f'{op.core}{span_id}","trace_id":"{trace_id}","parent_id":"{parent.id}","started_at":"{began}",'
        span.core = core
        span.token = current_span.set(span)
        if type(payload) is Payload:
            core = f"{core}{_blobs(payload)[1:]},"
        head = f'{{"kind":"start","bytes":{size},{trace.begin}{core}{trace.before_inputs}'.encode()
        if type(payload) is list:
            session.append(head, (*payload, b"}\n"))
        else:
            session.append(b"".join((head, payload, b"}\n")))  # type: ignore[arg-type]
        # taken last, so that the duration is the method's own
        span.begun = perf_counter_ns()
        return span
    except BaseException as error:
        # Also Ctrl-C, here of all places: what the program calls after it is no child of a call that never began. Not
        # by the token: a handler may raise before that is stored.
        if span is not None and current_span.get() is span:
            current_span.set(parent)
        if not isinstance(error, Exception):
            raise
        pass_on(error)
        internal("starting", op, error, session)
        return None


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
        now = time_ns()
        span_id = new_id(now)
        core = (
            f'{span_id}","trace_id":"{span_id}","parent_id":null,"started_at":"{timestamp(now)}","reason":"{reason}",'
        ).encode()
        op = b'"op":' + encode(name) + b',"id":"'
        size = b'{"kind":"skip","bytes":%d,' % len(trace.json)
        session.append(size + trace.head + op + core + b'"attributes":' + trace.json + b"}\n")
    except Exception as error:  # noqa: BLE001
        pass_on(error)
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
    entry = traceback_of(error)
    while entry is not None:
        code = entry.tb_frame.f_code
        frames.append((code.co_filename, entry.tb_lineno, code.co_name, entry.tb_frame.f_globals))
        entry = entry.tb_next
    return {
        "type": class_name(type(error)),
        "message": exception_message(error),
        "traceback": [
            {
                "filename": filename,
                "line_number": number,
                "function_name": name,
                "text": _source(filename, number, scope),
            }
            for filename, number, name, scope in frames[-_MAX_FRAMES:]
        ],
    }


def _source(filename: str, number: int, scope: dict[str, Any]) -> str:
    """A line of the program; "" where there is none, or the loader of its module cannot be asked."""
    try:
        return linecache.getline(filename, number, scope).strip()
    except Exception as error:  # noqa: BLE001
        pass_on(error)
        return ""


def internal(what: str, op: Op, error: Exception, session: Session) -> None:
    """Trouble of ours: one warning and a count."""
    session.counters.drop(f"internal error {what}")
    warn_once(
        f"internal-{what}-{op.name}-{type(error).__name__}",
        f"{what} the record of {op.name} failed: {type(error).__name__}: {error}; the call itself is unaffected",
    )
