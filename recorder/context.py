"""Where a call belongs: the current span and the trajectory's attributes, carried by context variables.

Tasks of asyncio and `asyncio.to_thread` carry them by themselves; `with_context` carries them into other threads.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar, Token, copy_context

from ..schemas.repeats import Repeats

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    _F = TypeVar("_F", bound=Callable[..., Any])
else:
    # pydantic and the like ask what the annotations of public names mean
    _F = Callable

__all__ = [
    "Inside",
    "Place",
    "TraceAttributes",
    "Where",
    "current_attributes",
    "current_span",
    "expected_place",
    "extra_attributes",
    "tracing",
    "with_context",
]


class Where:
    """Ids of the span that new calls become children of; the span itself is one."""

    __slots__ = ("id", "trace_id")

    def __init__(self, id: str, trace_id: str) -> None:
        self.id = id
        self.trace_id = trace_id


class Place:
    """One `rollout_trace_attr` block: its attributes, the root call begun last in it, and the scores told of it.

    It outlives both the root call and the block, for what is known of a trajectory only afterwards. `settled`: an
    integration has told all that it will tell.
    """

    __slots__ = ("attributes", "root", "scores", "settled")

    def __init__(self, root: Where | None = None) -> None:
        self.attributes: TraceAttributes | None = None
        self.root = root
        self.scores: dict[str, Any] = {}
        self.settled = False


class TraceAttributes:
    """A trajectory's attributes, encoded once: `head` begins every record, `json` is the `attributes` object.

    `begin`, `before_inputs`, `before_output`: head and object as they stand in the records of calls. `repeats`: what
    its prompts have in common.
    """

    __slots__ = ("before_inputs", "before_output", "begin", "head", "json", "place", "repeats", "values")

    def __init__(self, head: bytes, json: bytes, values: dict[str, Any], place: Place | None = None) -> None:
        self.head = head
        self.json = json
        self.values = values
        self.place = place
        self.repeats = Repeats() if place is not None else None
        # as text: records are put together by one f-string each, which takes less than joining bytes
        self.begin = head.decode()
        self.before_inputs = f'"attributes":{json.decode()},"inputs":'
        self.before_output = f',"attributes":{json.decode()},"output":'

    def within(self, place: Place) -> TraceAttributes:
        """The same in a place."""
        return TraceAttributes(self.head, self.json, self.values, place)


current_span: ContextVar[Where | None] = ContextVar("verl_trace_span", default=None)
current_attributes: ContextVar[TraceAttributes | None] = ContextVar("verl_trace_attributes", default=None)
# False inside a trajectory that sampling left out: its calls, at any depth, are not recorded.
tracing: ContextVar[bool] = ContextVar("verl_trace_tracing", default=True)
# What an integration knows of the trajectory that is about to begin (verl's uid), for the next rollout_trace_attr.
extra_attributes: ContextVar[dict[str, Any] | None] = ContextVar("verl_trace_extra_attributes", default=None)
# Where an integration wants to find the place of that trajectory afterwards.
expected_place: ContextVar[Place | None] = ContextVar("verl_trace_expected_place", default=None)


_PLACE: tuple[ContextVar[Any], ...] = (current_span, current_attributes, tracing)
_FIRST = (0, 0, 0)
_set, _reset = ContextVar.set, ContextVar.reset


class Inside:
    """Where code that runs in pieces (a generator's body) belongs: put in place for each piece, taken away after it.

    What a piece changes (it may stop inside of `rollout_trace_attr`) is its own, and is there again for the next one.
    """

    __slots__ = ("_attributes", "_tokens", "_tracing", "where")

    def __init__(self, where: Where | None) -> None:
        """Belongs to `where`, with the attributes of the context in which it is made."""
        self.where = where
        self._attributes = current_attributes.get()
        self._tracing = tracing.get()
        self._tokens: list[Token[Any]] = []

    def copy(self) -> Inside:
        """The same place, for code that runs at the same time."""
        other = Inside(self.where)
        other._attributes, other._tracing = self._attributes, self._tracing
        return other

    def enter(self) -> None:
        """A piece begins, in whatever context and thread. `leave` has to follow also where this raises."""
        # all at once: a signal handler may raise after each call, which must not lose a token
        self._tokens.extend(map(_set, _PLACE, (self.where, self._attributes, self._tracing)))

    def leave(self) -> None:
        """It ends, if it has not ended yet; the context is as it was."""
        tokens = self._tokens
        if not tokens:
            return
        self._attributes, self._tracing = current_attributes.get(), tracing.get()
        try:
            any(map(_reset, _PLACE, map(tokens.pop, _FIRST)))
        except ValueError:
            # a coroutine that somebody steps by hand in several contexts: this one was never ours to restore
            tokens.clear()


def with_context(func: _F) -> _F:
    """`func`, whose calls belong where this line runs, in whatever thread they are made.

    For `ThreadPoolExecutor.submit` and `map`, `loop.run_in_executor`, `threading.Thread`: without it, calls in a bare
    thread are roots. All context variables are carried, as `asyncio.to_thread` does; a coroutine function, which runs
    in the context of its task, gets ours.
    """
    if inspect.iscoroutinefunction(func):
        here = Inside(current_span.get())

        @functools.wraps(func)
        async def carried_async(*args: Any, **kwargs: Any) -> Any:
            inside = here.copy()
            try:
                inside.enter()
                return await func(*args, **kwargs)
            finally:
                inside.leave()

        return carried_async  # type: ignore[return-value]
    context = copy_context()

    @functools.wraps(func)
    def carried(*args: Any, **kwargs: Any) -> Any:
        # a context can be entered once at a time, and threads of a pool run at once
        return context.copy().run(func, *args, **kwargs)

    return carried  # type: ignore[return-value]
