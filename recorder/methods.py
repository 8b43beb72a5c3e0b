"""Whether a call is a method call, so that the instance or class stays out of its inputs.

Decided as Python binds: by how the function lies in the class of the first argument, never by a parameter's name.
`@staticmethod` above a decorator cannot be seen while decorating, and a function may become a method long after it; so
the class is looked at when it is first met, and the answer is kept per class. Nothing that user code defines is called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Methods"]

# A decorated function may lie this deep under decorators of other people.
_MAX_DEPTH = 16
# Classes are few; should a program make them without end, they must not stay alive for us.
_MAX_CLASSES = 512

# A metaclass may answer for its classes as it likes; these read what `type` itself stores.
_mro = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__
_qualname = type.__dict__["__qualname__"].__get__
_module = type.__dict__["__module__"].__get__


class Methods:
    """The classes in which one function is a method."""

    __slots__ = ("_func", "_known")

    def __init__(self, func: Callable[..., Any]) -> None:
        self._func = func
        self._known: dict[type, bool] = {}

    def bind(self, first: Any) -> bool:
        """Whether a call with this first argument is a method's: of an instance, or of a class for class methods."""
        kind = type(first)
        try:
            known = self._known.get(kind)
            if known is not None:
                return known
            # of a class, the answer is the class's own, not that of its metaclass
            key = first if issubclass(kind, type) else kind
            known = self._known.get(key)
            if known is None:
                known = self._look(first, kind)
                if len(self._known) >= _MAX_CLASSES:
                    self._known.clear()
                self._known[key] = known
        except TypeError:
            # a metaclass that compares its classes, and has no hash for them
            return self._look(first, kind)
        return known

    def _look(self, first: Any, kind: type) -> bool:
        is_class = issubclass(kind, type)
        return self._find(kind) is FunctionType or (is_class and self._find(first) is classmethod)

    def _find(self, cls: type) -> type | None:
        """As what the function lies in a class or its bases (FunctionType, classmethod, staticmethod), else None."""
        name = getattr(self._func, "__name__", None)
        bases = _mro(cls)
        for base in bases:
            names = _namespace(base)
            if type(name) is str and name in names and self._is_in(names[name]):
                return _form(names[name])
        for base in bases:
            for value in list(_namespace(base).values()):
                if self._is_in(value):
                    return _form(value)
        return self._find_by_name(bases)

    def _is_in(self, attribute: Any) -> bool:
        return any(layer is self._func for layer in _layers(attribute))

    def _find_by_name(self, bases: tuple[type, ...]) -> type | None:
        """Under a decorator that hides what it wraps: whether the function was written in one of these classes."""
        qualname = getattr(self._func, "__qualname__", None)
        if type(qualname) is not str:
            return None
        owner, _, name = qualname.rpartition(".")
        module = getattr(self._func, "__module__", None)
        if not owner or owner.endswith("<locals>"):
            return None
        for base in bases:
            if _qualname(base) == owner and _module(base) == module and name in _namespace(base):
                return _form(_namespace(base)[name])
        return None


def _form(attribute: Any) -> type:
    for form in (staticmethod, classmethod):
        if issubclass(type(attribute), form):
            return form
    return FunctionType


def _layers(attribute: Any) -> Iterator[Any]:
    """An attribute of a class and what it wraps, as far as its decorators tell."""
    for _ in range(_MAX_DEPTH):
        yield attribute
        kind = type(attribute)
        if issubclass(kind, (staticmethod, classmethod)):
            attribute = attribute.__func__
        elif issubclass(kind, (functools.partial, functools.partialmethod)):
            attribute = attribute.func
        elif issubclass(kind, property):
            attribute = attribute.fget
        elif kind is FunctionType or "__verl_trace__" in _namespace(kind):
            attribute = attribute.__dict__.get("__wrapped__")
        else:
            return
