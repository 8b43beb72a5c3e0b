"""Recording for functions that carry no decorator of verl's: only while the recorder was chosen, and never twice."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

from .. import recorder
from ..recorder.counters import warn_once
from .rollout_trace import chosen

__all__ = ["is_traced", "record_only", "record_only_attribute"]

# Where the wrappers of every decorator live that records a call.
_DECORATORS = ("verl.utils.rollout_trace", f"{__package__}.", f"{recorder.__name__}.")
# A decorated function may lie this deep under decorators of other people.
_DEPTH = 6


class _Recorded:
    """The recorded form of a function, made on first use; a pickle holds the function alone."""

    def __init__(self, func: Callable[..., Any], decorate: Callable[[Any], Any]) -> None:
        self.func = func
        self.decorate = decorate

    def __reduce__(self) -> tuple[type[_Recorded], tuple[Callable[..., Any], Callable[[Any], Any]]]:
        return (_Recorded, (self.func, self.decorate))

    @functools.cached_property
    def form(self) -> Callable[..., Any]:
        """`func`, recorded; `func` itself, after one warning, where that cannot be."""
        try:
            form: Callable[..., Any] = self.decorate(self.func)
        except Exception as error:  # noqa: BLE001
            warn_once(f"decorate-{self.func!r}", f"{self.func!r} is not recorded: {type(error).__name__}: {error}")
            return self.func
        return form


def record_only(func: Callable[..., Any], decorate: Callable[[Any], Any] = recorder.rollout_trace_op) -> Any:
    """`func` with the same signature, recorded while the recorder was chosen; for every other backend it is `func`."""
    recorded = _Recorded(func, decorate)

    if inspect.iscoroutinefunction(func):

        @functools.wraps(func)
        async def extra_async(*args: Any, **kwargs: Any) -> Any:
            return await (recorded.form if chosen() else func)(*args, **kwargs)

        return extra_async

    @functools.wraps(func)
    def extra(*args: Any, **kwargs: Any) -> Any:
        return (recorded.form if chosen() else func)(*args, **kwargs)

    return extra


def record_only_attribute(attribute: Any) -> Any:
    """`record_only` for what lies in a class or module: a function, or one under `classmethod` or `staticmethod`.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(attribute, (classmethod, staticmethod)):
        return type(attribute)(record_only_attribute(attribute.__func__))
    if not inspect.isfunction(attribute):
        raise TypeError(f"this is not a function or method but of type {type(attribute).__name__}")
    return record_only(attribute)


def is_traced(func: Any, name: str) -> bool:
    """Whether calls of `func`, which is known as `name`, are recorded (or traced live) already.

    Decorators of other people above ours are looked through, those without `functools.wraps` by what they hold.
    """
    return _is_traced(func, name, _DEPTH)


def _is_traced(func: Any, name: str, depth: int) -> bool:
    if isinstance(func, (classmethod, staticmethod)):
        func = func.__func__
    names = getattr(func, "__globals__", None)
    if isinstance(names, dict) and str(names.get("__name__", "")).startswith(_DECORATORS):
        return True
    return depth > 0 and any(_is_traced(inner, name, depth - 1) for inner in _inner(func, name))


def _inner(func: Any, name: str) -> list[Any]:
    """Functions that a wrapper is there to call."""
    found = [getattr(func, label, None) for label in ("__wrapped__", "func")]
    for cell in getattr(func, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a cell that is still empty
            content = cell.cell_contents
            # any other function in there is something that the method uses
            if inspect.isfunction(content) and content.__name__ == name:
                found.append(content)
    return [inner for inner in found if callable(inner)]
