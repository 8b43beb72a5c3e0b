"""One tree across processes: where the code is, as a small value that can be sent, and code that goes on from there.

A trace id is a UUIDv7, 128 bits as W3C's `traceparent` wants it. A span id has 64 bits there: the last half of the
call's id. Whoever has only that string writes a parent id whose first half is `PARTIAL_PARENT`; a reader finds the call
of the same trace that ends so. Nothing here raises into the code that is traced.
"""

from __future__ import annotations

import contextlib
import re
from binascii import a2b_base64, b2a_base64
from collections import namedtuple
from collections.abc import Iterator, Mapping
from contextvars import ContextVar, Token

import orjson

from ..schemas.interrupts import pass_on
from ..schemas.lines import PARTIAL_PARENT
from . import session as sessions
from .context import Place, TraceAttributes, Where, current_attributes, current_span, tracing
from .counters import warn_once
from .session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
else:
    # pydantic and the like ask what the annotations of public names mean
    Any = object

__all__ = ["TraceContext", "current_context", "use_context"]

_TRACEPARENT = r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z"
_OURS = r"[0-9a-f]{12}7[0-9a-f]{3}[89ab]"
# What a process needs to record into the same run.
_ABOUT = ("project_name", "experiment_name", "backend", "token2text")


_Fields = namedtuple(
    "_Fields",
    ("trace_id", "span_id", "traced", "head", "json", "recording"),
    defaults=(True, None, None, None),
)


class TraceContext(_Fields):
    """Where a call belongs, for another process: picklable, a few hundred bytes.

    Attributes:
        trace_id: the trajectory's id; "" where its first call has not begun.
        span_id: id of the call that new calls become children of; "" as above.
        traced: False in a trajectory that sampling left out: nothing is recorded there either.
        head, json: the trajectory's attributes in the recorder's two encoded forms; None outside of any.
        recording: what a process that records nothing yet needs to join the run.
    """

    __slots__ = ()

    trace_id: str
    span_id: str
    traced: bool
    head: bytes | None
    json: bytes | None
    recording: dict[str, Any] | None

    @property
    def traceparent(self) -> str:
        """W3C form, for HTTP headers and other languages: ids only, without the attributes. "" without ids."""
        if not self.trace_id:
            return ""
        flags = "01" if self.traced else "00"
        return f"00-{self.trace_id.replace('-', '')}-{self.span_id.replace('-', '')[16:]}-{flags}"

    def headers(self) -> dict[str, str]:
        """`{"traceparent": …}` for an HTTP request; empty without ids."""
        return {"traceparent": self.traceparent} if self.trace_id else {}

    def attributes(self) -> TraceAttributes | None:
        """The trajectory's attributes as the recorder has them."""
        if self.head is None or self.json is None:
            return None
        place = Place(Where(self.span_id, self.trace_id) if self.trace_id else None)
        place.attributes = TraceAttributes(self.head, self.json, orjson.loads(self.json))
        return place.attributes.within(place)

    def to_text(self) -> str:
        """All of it as ASCII text without spaces, for where only text can travel; `use_context` takes it back."""

        parts = [self.trace_id, self.span_id, self.traced, _text(self.head), _text(self.json), self.recording]
        return _MARK + b2a_base64(orjson.dumps(parts), newline=False).translate(_URL_SAFE).decode()


_MARK = "verl-trace:"
# base64's alphabet for URLs
_URL_SAFE, _FROM_URL_SAFE = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


def current_context() -> TraceContext | None:
    """Where this code is, for code in another process; None where nothing is recorded.

    Inside of a traced call that call becomes the parent; after it, within the same `rollout_trace_attr`, the last root.
    """
    session = sessions.current()
    if session is None:
        return None
    if not tracing.get():
        return TraceContext("", "", traced=False)
    trace, where = current_attributes.get(), current_span.get()
    if where is None and trace is not None and trace.place is not None:
        where = trace.place.root
    if where is None and trace is None:
        return None
    return TraceContext(
        "" if where is None else where.trace_id,
        "" if where is None else where.id,
        head=None if trace is None else trace.head,
        json=None if trace is None else trace.json,
        recording=_recording(session),
    )


@contextlib.contextmanager
def use_context(context: TraceContext | str | Mapping[str, str] | None) -> Iterator[None]:
    """Have the calls inside belong where `current_context()` was asked.

    A process that records nothing yet starts to record into the same run, where the context is whole.

    Args:
        context: from `current_context`; its `to_text()`; a W3C `traceparent` string; HTTP headers that hold one. None,
            and what is none of these, changes nothing.
    """
    tokens: list[tuple[ContextVar[Any], Token[Any]]] = []
    try:
        found = _understood(context)
        if found is not None:
            _enter(found, tokens)
    except Exception as error:  # noqa: BLE001
        pass_on(error)
        warn_once("context", f"a trajectory's context is not usable: {type(error).__name__}: {error}; calls go on")
    try:
        yield
    finally:
        for variable, token in reversed(tokens):
            # left in another context (an abandoned generator): that context was never changed
            with contextlib.suppress(ValueError):
                variable.reset(token)


def _enter(context: TraceContext, tokens: list[tuple[ContextVar[Any], Token[Any]]]) -> None:
    if not context.traced:
        tokens.append((tracing, tracing.set(False)))
        return
    join(context)
    where = Where(context.span_id, context.trace_id) if context.trace_id else None
    trace = context.attributes()
    if trace is not None:
        tokens.append((current_attributes, current_attributes.set(trace)))
    tokens.append((current_span, current_span.set(where)))


def join(context: TraceContext) -> Session | None:
    """The recording that the context's calls go to: this process's own, else a new one into the same run."""
    session, told = sessions.current(), context.recording
    if session is None and told:
        session = sessions.start(
            told["project_name"],
            told["experiment_name"],
            told["backend"],
            token2text=bool(told["token2text"]),
            folder=told["folder"],
            attempt=told["attempt"],
        )
    elif session is not None and told and told["experiment_name"] != session.experiment_name:
        warn_once("other-run", f"calls of {told['experiment_name']!r} are recorded in {session.experiment_name!r} here")
    return session


def _recording(session: Session) -> dict[str, Any]:
    found = session.remembered
    if found is None:
        about = {name: session.about[name] for name in _ABOUT}
        found = {**about, "folder": str(session.settings.folder), "attempt": session.identity.attempt}
        session.remembered = found
    return found


def _understood(context: Any) -> TraceContext | None:
    if context is None or type(context) is TraceContext:
        return context
    if isinstance(context, Mapping):
        context = next((text for name, text in context.items() if str(name).lower() == "traceparent"), "")
    if not isinstance(context, str) or not context:
        return None
    return _from_text(context) if context.startswith(_MARK) else _from_traceparent(context.strip())


def _from_text(text: str) -> TraceContext:
    trace_id, span_id, traced, head, json, recording = orjson.loads(
        a2b_base64(text[len(_MARK) :].encode("ascii").translate(_FROM_URL_SAFE))
    )
    return TraceContext(trace_id, span_id, traced, _bytes(head), _bytes(json), recording)


def _from_traceparent(text: str) -> TraceContext | None:
    found = re.match(_TRACEPARENT, text)
    # another tracer's ids: no call of ours can be the parent
    if found is None or not re.match(_OURS, found[1]):
        return None
    trace, span = found[1], found[2]
    trace_id = f"{trace[:8]}-{trace[8:12]}-{trace[12:16]}-{trace[16:20]}-{trace[20:]}"
    return TraceContext(trace_id, f"{PARTIAL_PARENT}{span[:4]}-{span[4:]}", traced=bool(int(found[3], 16) & 1))


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
