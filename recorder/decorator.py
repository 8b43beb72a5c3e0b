"""`rollout_trace_op`: which form a callable gets. What it is is decided once, when it is decorated.

A function becomes a function of the same kind (plain, coroutine, generator, async generator); static and class methods,
bound methods and partials are made anew around their decorated function; any other callable object gets a stand-in.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType

from .callables import TracedCallable, call_kind
from .generators import begin_stream, drive, first_step
from .spans import Op, begin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar, overload

    _F = TypeVar("_F", bound=Callable[..., Any])
else:
    # pydantic and the like ask what the annotations of public names mean
    Any = object

__all__ = ["is_traced", "rollout_trace_op"]

# The attribute of a decorated function that holds its Op.
_MARK = "__verl_trace__"


if TYPE_CHECKING:

    @overload
    def rollout_trace_op(func: _F, *, name: str | None = None) -> _F: ...
    @overload
    def rollout_trace_op(func: None = None, *, name: str | None = None) -> Callable[[_F], _F]: ...


def rollout_trace_op(func: Any = None, *, name: str | None = None) -> Any:
    """Record every call of a function, method or callable object: its inputs when called, its output when it returns.

    With or without parentheses, above or below `@staticmethod` and `@classmethod`. Result, exception, signature and
    kind are those of `func`. Without a recording the cost is one look at a variable. What is decorated already is
    returned as it is.

    Args:
        func: what to record.
        name: name of the op; the qualified name of the function by default.

    Raises:
        TypeError: `func` is a class, or nothing that can be called.
    """
    if func is None:
        return functools.partial(rollout_trace_op, name=name)
    return func if is_traced(func) else _decorated(func, name, None)


def is_traced(func: Any) -> bool:
    """Whether `func` itself is what `rollout_trace_op` made (not merely something around it)."""
    if isinstance(func, (staticmethod, classmethod, MethodType)):
        return is_traced(func.__func__)
    if type(func) in (functools.partial, functools.partialmethod):
        return is_traced(func.func)
    if type(func) is TracedCallable:
        return True
    # other people's decorators copy the mark; what they wrap is then not what it was made for
    mark = func.__dict__.get(_MARK) if type(func) is FunctionType else None
    return type(mark) is Op and func.__dict__.get("__wrapped__") is mark.func


def _decorated(func: Any, name: str | None, skip: int | None) -> Any:
    kind = type(func)
    if issubclass(kind, (staticmethod, classmethod)):
        return kind(_decorated(func.__func__, name, 1 if issubclass(kind, classmethod) else 0))
    if kind is MethodType:
        return MethodType(_decorated(func.__func__, name, 1), func.__self__)
    if kind in (functools.partial, functools.partialmethod) and type(func.func) in _WITH_A_FUNCTION:
        form = kind(_decorated(func.func, name, skip), *func.args, **func.keywords)
        form.__dict__.update(func.__dict__)
        return form
    if kind is FunctionType:
        return _function(func, Op(func, name or func.__qualname__, skip))
    if issubclass(kind, type):
        raise TypeError(f"rollout_trace_op: {func!r} is a class: decorate its methods instead")
    if not callable(func):
        advice = "decorate the function inside of it" if hasattr(kind, "__get__") else "it must be a function or method"
        raise TypeError(f"rollout_trace_op: {func!r} cannot be called: {advice}")
    op = Op(func, name or _name(func), skip if skip is not None else None if hasattr(kind, "__get__") else 0, func)
    return TracedCallable(func, op, _function(func, op, updated=()), _again)


def _again(func: Any, name: str) -> Any:
    """A stand-in made anew in the process that it was sent to."""
    return rollout_trace_op(func, name=name)


_WITH_A_FUNCTION = (FunctionType, MethodType, staticmethod, classmethod, functools.partial)


def _name(func: Any) -> str:
    for named in (func, getattr(func, "func", None), call_kind(func), type(func)):
        name = getattr(named, "__qualname__", None)
        if type(name) is str:
            return name
    return repr(type(func))


def _function(func: Callable[..., Any], op: Op, updated: tuple[str, ...] = functools.WRAPPER_UPDATES) -> Any:
    """A function of the same kind as `func` that records its calls."""
    target: Any = func if isinstance(func, FunctionType) else call_kind(func)
    flags = target.__code__.co_flags if isinstance(target, FunctionType) else 0
    if inspect.isasyncgenfunction(target):
        traced = _async_generator(func, op)
    # an awaitable in the old form, a generator that is awaited, is a coroutine to whoever calls it
    elif (
        inspect.iscoroutinefunction(func)
        or inspect.iscoroutinefunction(target)
        or flags & inspect.CO_ITERABLE_COROUTINE
    ):
        traced = _coroutine(func, op)
    elif inspect.isgeneratorfunction(target):
        traced = _generator(func, op)
    else:
        traced = _plain(func, op)
    functools.update_wrapper(traced, func, updated=updated)
    traced.__dict__[_MARK] = op
    return traced


def _plain(func: Callable[..., Any], op: Op) -> Callable[..., Any]:
    def traced(*args: Any, **kwargs: Any) -> Any:
        span = begin(op, args, kwargs)
        if span is None:
            return func(*args, **kwargs)
        try:
            try:
                result = func(*args, **kwargs)
            except BaseException as error:
                span.fail(error)
                raise
            span.finish(result)
            return result
        finally:
            if span.token is not None:
                span.leave_call()

    return traced


def _coroutine(func: Callable[..., Any], op: Op) -> Callable[..., Any]:
    async def traced(*args: Any, **kwargs: Any) -> Any:
        span = begin(op, args, kwargs)
        if span is None:
            return await func(*args, **kwargs)
        try:
            try:
                result = await func(*args, **kwargs)
            except BaseException as error:
                span.fail(error)
                raise
            span.finish(result)
            return result
        finally:
            if span.token is not None:
                span.leave_call()

    return traced


def _generator(func: Callable[..., Any], op: Op) -> Callable[..., Any]:
    def traced(*args: Any, **kwargs: Any) -> Any:
        stream = begin_stream(op, args, kwargs)
        if stream is None:
            return (yield from func(*args, **kwargs))
        return (yield from drive(stream, func, args, kwargs))

    return traced


def _async_generator(func: Callable[..., Any], op: Op) -> Callable[..., Any]:
    # an async generator cannot hand its whole run over to another one, so that the loop of `drive` is here once more
    async def traced(*args: Any, **kwargs: Any) -> Any:
        stream = begin_stream(op, args, kwargs)
        step: Any
        try:
            generator = func(*args, **kwargs)
            step = first_step(generator)
        except BaseException as error:
            if stream is not None:
                stream.raised(error)
            raise
        try:
            while True:
                try:
                    if stream is not None:
                        stream.enter()
                    item = [await step]
                except StopAsyncIteration:
                    if stream is not None:
                        stream.leave()
                        stream.returned(None)
                    return
                except BaseException as error:
                    step = None
                    if stream is not None:
                        stream.leave()
                        stream.raised(error)
                    raise
                step = None
                if stream is not None:
                    stream.leave()
                    stream.add(item[0])
                try:
                    step = generator.asend((yield item.pop()))
                except BaseException as thrown:  # noqa: BLE001
                    step = generator.athrow(thrown)
        finally:
            if stream is not None:
                stream.leave()

    return traced
