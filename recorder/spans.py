"""One traced call: a start record when it begins, an end record when it ends. Nothing raises into the traced code."""

from __future__ import annotations

import contextlib
import linecache
import time
from collections.abc import Callable
from contextvars import Token
from typing import Any

from ..schemas.objects import exception_message, omitted, tagged_fields
from ..schemas.values import encode
from . import session as sessions
from . import token2text
from .arguments import ArgumentBinder
from .context import TraceAttributes, Where, current_attributes, current_span, tracing
from .counters import warn_once
from .ids import new_id, timestamp
from .session import Session

__all__ = ["Op", "Span", "begin", "encode_attributes", "record_skip"]

_ATTRIBUTE_ORDER = ("step", "sample_index", "rollout_n", "validate")
# Frames of a traceback that are kept, from the innermost outwards.
_MAX_FRAMES = 50


class Op:
    """What decoration decides once: the name and how arguments become inputs."""

    __slots__ = ("binder", "is_method", "json", "name")

    def __init__(self, func: Callable[..., Any], name: str, is_method: bool) -> None:
        self.name = name
        self.json = b'"op":' + encode(name) + b',"id":"'
        self.is_method = is_method
        self.binder = ArgumentBinder(func, is_method)


class Span:
    """A call in progress."""

    __slots__ = ("begun", "core", "inputs", "instance", "op", "session", "started", "token", "trace")

    begun: int
    core: bytes
    inputs: dict[str, Any] | None
    instance: Any
    started: int
    token: Token[Where | None]

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
                output = _without(output, session.settings.drop_fields)
            payload = encode(output)
            has_text = text_job is not None
            self._end(duration, b',"text":true' if has_text else b',"text":false', b"success", b"null", payload)
            if text_job is not None and not session.background.submit(lambda: self._text(text_job)):
                self._text_lost("too many wait to be decoded")
        except Exception as error:  # noqa: BLE001
            _internal("finishing", self.op, error, self.session)
        finally:
            self._leave()

    def fail(self, error: BaseException) -> None:
        """Write the end record of a call that raised `error`."""
        try:
            duration = time.perf_counter_ns() - self.begun
            self._end(duration, b',"text":false', b"error", encode(_exception_form(error)), b"null")
        except Exception as trouble:  # noqa: BLE001
            _internal("finishing", self.op, trouble, self.session)
        finally:
            self._leave()

    def _end(self, duration: int, text: bytes, status: bytes, exception: bytes, payload: bytes) -> None:
        ended = timestamp(self.started // 1000 * 1000 + duration)
        times = f'"ended_at":"{ended}","duration":{duration / 1e9:.9f}'.encode()
        line = b"".join(
            (
                b'{"kind":"end","bytes":%d,' % len(payload),
                self.trace.head,
                self.core,
                times,
                text,
                b',"status":"',
                status,
                b'","exception":',
                exception,
                b',"attributes":',
                self.trace.json,
                b',"output":',
                payload,
                b"}\n",
            )
        )
        self.session.append(line)

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
        # ended in another context (a coroutine closed by the collector): that context was never ours to restore
        with contextlib.suppress(ValueError):
            current_span.reset(self.token)


def begin(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span | None:
    """Write the start record and make the call the current span; None when nothing is recorded here."""
    session = sessions.current()
    if session is None or not tracing.get():
        return None
    token: Token[Where | None] | None = None
    try:
        span = Span(session, op, current_attributes.get() or no_attributes(session))
        started = time.time_ns()
        span_id = new_id(started)
        parent = current_span.get()
        trace_id = span_id if parent is None else parent.trace_id
        token = current_span.set(Where(span_id, trace_id))
        span.token = token
        parent_json = f'"{parent.id}"' if parent is not None else "null"
        span.core = (
            op.json
            + (
                f'{span_id}","trace_id":"{trace_id}","parent_id":{parent_json},"started_at":"{timestamp(started)}",'
            ).encode()
        )
        span.started = started
        inputs = op.binder.inputs(args, kwargs)
        span.inputs = inputs if session.token2text else None
        span.instance = args[0] if op.is_method and args else None
        if session.settings.drop_fields:
            inputs = _without(inputs, session.settings.drop_fields)
        payload = encode(inputs)
        line = b"".join(
            (
                b'{"kind":"start","bytes":%d,' % len(payload),
                span.trace.head,
                span.core,
                b'"attributes":',
                span.trace.json,
                b',"inputs":',
                payload,
                b"}\n",
            )
        )
        session.append(line)
        # taken last, so that the duration is the method's own
        span.begun = time.perf_counter_ns()
        return span
    except Exception as error:  # noqa: BLE001
        if token is not None:
            current_span.reset(token)
        _internal("starting", op, error, session)
        return None


def encode_attributes(values: dict[str, Any], experiment_name: str | None) -> TraceAttributes:
    """The two encoded forms of a trajectory's attributes."""
    head = b"".join(b'"%s":%s,' % (name.encode(), encode(values.get(name))) for name in _ATTRIBUTE_ORDER)
    head += b'"experiment_name":' + encode(experiment_name) + b","
    return TraceAttributes(head, encode(values), values)


def no_attributes(session: Session) -> TraceAttributes:
    """Attributes of a call outside of any `rollout_trace_attr`."""
    return encode_attributes({}, session.experiment_name)


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


def _without(value: Any, names: frozenset[str]) -> Any:
    """`value` with the named fields replaced by a visible mark, at the top level and one below (`kwargs`)."""
    fields = value if type(value) is dict else tagged_fields(value, type(value))
    if fields is None:
        return value
    out = {}
    for key, inner in fields.items():
        if key in names:
            out[key] = omitted(inner, "VERL_TRACE_DROP_FIELDS")
        else:
            out[key] = _without(inner, names) if type(inner) is dict else inner
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


def _internal(what: str, op: Op, error: Exception, session: Session) -> None:
    session.counters.drop(f"internal error {what}")
    warn_once(
        f"internal-{what}-{op.name}-{type(error).__name__}",
        f"{what} the record of {op.name} failed: {type(error).__name__}: {error}; the call itself is unaffected",
    )
