"""Tools that run as Ray actors: a call's place travels with the calls of actors that a tool makes.

Ray gives every method of an actor one parameter for a tracer, `_ray_trace_ctx`, whether it traces or not, and an actor
that knows nothing of it ignores it. Within a tool of verl's tool agent it holds the place of the current call; in the
actor's process, where the plugin is loaded, the method is recorded as a call there, and so is what it calls.
`VERL_TRACE_EXTRA=0` leaves all of it out.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from .. import recorder
from ..recorder.context import current_span
from ..recorder.counters import warn_once
from ..recorder.spans import Op, begin
from .rollout_trace import chosen, visit
from .standin import is_traced

__all__ = ["in_tool", "watch_actor_classes", "watch_actor_handles"]

_PARAMETER = "_ray_trace_ctx"
_KEY = "verl_trace"
# What Ray marks the methods with that have the parameter.
_HAS_PARAMETER = "__ray_tracing_wrapped__"
_MARK = "__verl_trace_actor_method__"
_in_tool: ContextVar[bool] = ContextVar("verl_trace_in_tool", default=False)


@contextlib.contextmanager
def in_tool() -> Iterator[None]:
    """Calls of actors made inside carry the place of the current call."""
    token = _in_tool.set(True)
    try:
        yield
    finally:
        _in_tool.reset(token)


def watch_actor_handles(module: ModuleType) -> None:
    """Wrap the calls of actors in `ray.actor`, which has just been executed."""
    handle = module.ActorHandle
    original = handle._actor_method_call

    @functools.wraps(original)
    def _actor_method_call(
        self: Any, method_name: str, args: Any = None, kwargs: Any = None, *rest: Any, **more: Any
    ) -> Any:
        if _in_tool.get():
            kwargs = _with_place(self, method_name, kwargs)
        return original(self, method_name, args, kwargs, *rest, **more)

    handle._actor_method_call = _actor_method_call


def _with_place(handle: Any, name: str, kwargs: Any) -> Any:
    try:
        if not chosen() or current_span.get() is None or (kwargs and _PARAMETER in kwargs):
            return kwargs
        parameters = handle._ray_method_signatures[name]
        if handle._ray_is_cross_language or not any(parameter.name == _PARAMETER for parameter in parameters):
            return kwargs
        context = recorder.current_context()
        return kwargs if context is None else {**(kwargs or {}), _PARAMETER: {_KEY: context.to_text()}}
    except Exception as error:  # noqa: BLE001
        warn_once("tool-actor", f"a call's place does not travel to {name}: {type(error).__name__}: {error}")
        return kwargs


def watch_actor_classes(module: ModuleType) -> None:
    """Wrap what Ray does to an actor's class in the actor's process, in `ray._private.function_manager`."""
    original = module._inject_tracing_into_class

    @functools.wraps(original)
    def _inject_tracing_into_class(cls: Any) -> None:
        original(cls)
        try:
            _wrap_methods(cls)
        except Exception as error:  # noqa: BLE001
            warn_once("actor-class", f"calls of {cls!r} are not recorded: {type(error).__name__}: {error}")

    module._inject_tracing_into_class = _inject_tracing_into_class  # type: ignore[attr-defined]


def _wrap_methods(cls: Any) -> None:
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if name.startswith("__") or not getattr(method, _HAS_PARAMETER, False) or getattr(method, _MARK, False):
            continue
        wrapped = _async(method) if inspect.iscoroutinefunction(method) else _plain(method)
        setattr(wrapped, _MARK, True)
        setattr(cls, name, wrapped)


def _plain(method: Callable[..., Any]) -> Any:
    op = _op(method)

    @functools.wraps(method)
    def actor_method(self: Any, *args: Any, _ray_trace_ctx: Any = None, **kwargs: Any) -> Any:
        place = _place(_ray_trace_ctx)
        if place is None:
            return method(self, *args, **_given(_ray_trace_ctx), **kwargs)
        with recorder.use_context(place):
            span = _begin(op, self, args, kwargs)
            if span is None:
                return method(self, *args, **kwargs)
            try:
                result = method(self, *args, **kwargs)
            except BaseException as error:
                span.fail(error)
                raise
            span.finish(result)
            return result

    return actor_method


def _async(method: Callable[..., Any]) -> Any:
    op = _op(method)

    @functools.wraps(method)
    async def actor_method(self: Any, *args: Any, _ray_trace_ctx: Any = None, **kwargs: Any) -> Any:
        place = _place(_ray_trace_ctx)
        if place is None:
            return await method(self, *args, **_given(_ray_trace_ctx), **kwargs)
        with recorder.use_context(place):
            span = _begin(op, self, args, kwargs)
            if span is None:
                return await method(self, *args, **kwargs)
            try:
                result = await method(self, *args, **kwargs)
            except BaseException as error:
                span.fail(error)
                raise
            span.finish(result)
            return result

    return actor_method


def _op(method: Any) -> Op | None:
    """What the method is recorded as; None where it is decorated already."""
    inner = inspect.unwrap(method)
    if is_traced(method, inner.__name__):
        return None

    def call(*args: Any, **kwargs: Any) -> None:
        """Stands for the method, without Ray's parameter."""

    signature = inspect.signature(inner)
    kept = [parameter for name, parameter in signature.parameters.items() if name != _PARAMETER]
    call.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return Op(call, inner.__qualname__, 1)


def _begin(op: Op | None, actor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    visit()
    return None if op is None else begin(op, (actor, *args), kwargs)


def _place(given: Any) -> str | None:
    place = given.get(_KEY) if isinstance(given, dict) else None
    return place if isinstance(place, str) else None


def _given(context: Any) -> dict[str, Any]:
    """What Ray's own tracing sent, for Ray's own tracing."""
    return {} if context is None else {_PARAMETER: context}
