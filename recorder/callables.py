"""Stand-ins for callable objects that are no functions: an instance with `__call__`, a builtin, a cached function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType

from .spans import Op

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["TracedCallable", "call_kind"]


class TracedCallable:
    """Calls are recorded, everything else is the object's own: its attributes, its class in `isinstance`.

    Special methods other than `__call__` (`len(x)`, `with x`) are not: use the object itself, `__wrapped__`, for them.
    """

    __verl_trace__ = True

    def __init__(
        self, target: Callable[..., Any], op: Op, call: Callable[..., Any], again: Callable[[Any, str], Any]
    ) -> None:
        # the `__call__` of the instance is for those who ask whether it is a coroutine function; `again` makes a
        # stand-in of the same name where this one was copied or pickled to
        self.__dict__.update(__wrapped__=target, _op=op, __call__=call, _again=again)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["__call__"](*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        # binds in a class where the object itself does (a cached function), and only there, and as it does
        target = self.__dict__["__wrapped__"]
        if not hasattr(type(target), "__get__"):
            return self
        bound = type(target).__get__(target, instance, owner)
        if bound is target:
            return self
        if type(bound) is MethodType and bound.__func__ is target:
            return MethodType(self, bound.__self__)
        if type(bound) is functools.partial and bound.func is target:
            return functools.partial(self, *bound.args, **bound.keywords)
        # what it gives does not come back to it; a class, or a method around one, cannot be decorated
        inner = bound.__func__ if type(bound) is MethodType else bound
        if issubclass(type(inner), type) or not callable(bound):
            return bound
        return self.__dict__["_again"](bound, self.__dict__["_op"].name)

    def __set_name__(self, owner: type, name: str) -> None:
        target = self.__dict__["__wrapped__"]
        if hasattr(type(target), "__set_name__"):
            type(target).__set_name__(target, owner, name)

    def __getattr__(self, name: str) -> Any:
        # while it is being copied or unpickled there is nothing yet to ask
        target = self.__dict__.get("__wrapped__")
        if target is None:
            raise AttributeError(name)
        return getattr(target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["__wrapped__"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["__wrapped__"], name)

    def __repr__(self) -> str:
        return repr(self.__dict__["__wrapped__"])

    def __reduce__(self) -> tuple[Any, ...]:
        return (self.__dict__["_again"], (self.__dict__["__wrapped__"], self.__dict__["_op"].name))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.__dict__["__wrapped__"])


def call_kind(func: Any) -> Any:
    """The function that says of what kind the calls of an object are: its class's `__call__`."""
    call: Any = type(func).__call__ if callable(func) else None
    while isinstance(call, (staticmethod, classmethod, MethodType)):
        call = call.__func__
    return call if isinstance(call, FunctionType) else None
