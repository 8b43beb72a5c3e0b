"""From a call's arguments to the inputs of its record, as `Signature.bind` plus defaults would give them, but decided
once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["ArgumentBinder"]

_EMPTY = inspect.Parameter.empty


class ArgumentBinder:
    """Binds the arguments of one function; a `skip` of 1 leaves out the first: the instance (or class) of a method.

    A callable without a signature (some that are written in C) has its arguments recorded as `args` and `kwargs`.
    """

    __slots__ = (
        "_args_name",
        "_is_plain",
        "_keyword_only",
        "_keywords",
        "_kwargs_name",
        "_names",
        "_positional",
        "_positional_only",
    )

    def __init__(self, func: Callable[..., Any]) -> None:
        self._positional: list[tuple[str, Any]] = []
        self._keyword_only: list[tuple[str, Any]] = []
        self._positional_only = 0
        self._args_name: str | None = None
        self._kwargs_name: str | None = None
        for parameter in _parameters(func):
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._args_name = parameter.name
            elif parameter.kind is parameter.VAR_KEYWORD:
                self._kwargs_name = parameter.name
            elif parameter.kind is parameter.KEYWORD_ONLY:
                self._keyword_only.append((parameter.name, parameter.default))
            else:
                self._positional.append((parameter.name, parameter.default))
                self._positional_only += parameter.kind is parameter.POSITIONAL_ONLY
        self._names = tuple(name for name, _ in self._positional)
        self._keywords = frozenset((*self._names[self._positional_only :], *(name for name, _ in self._keyword_only)))
        self._is_plain = not self._keyword_only and self._args_name is None and self._kwargs_name is None

    @property
    def first_name(self) -> str | None:
        """Name of the first parameter where it can be passed as a keyword."""
        return self._names[0] if self._names and not self._positional_only else None

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], skip: int = 0) -> dict[str, Any]:
        """Name -> value in the order of the signature; arguments that do not fit appear as `args` and `kwargs`."""
        names = self._names
        if not kwargs and self._is_plain and len(args) == len(names):
            return dict(zip(names[skip:], args[skip:], strict=True))
        out = self._bind(args, kwargs)
        if out is None:
            return {"args": list(args[skip:]), "kwargs": kwargs}
        if skip:
            if names:
                del out[names[0]]
            elif self._args_name is not None:
                out[self._args_name] = args[skip:]
        return out

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        names, first = self._names, self._positional_only
        count, given, taken = len(args), len(names), 0
        if count > given and self._args_name is None:
            return None
        out: dict[str, Any] = dict(zip(names, args, strict=False))
        if kwargs and count > first:
            for name in names[first:count]:
                if name in kwargs:
                    # given twice
                    return None
        for position in range(count, given):
            name, default = self._positional[position]
            if position >= first and name in kwargs:
                out[name] = kwargs[name]
                taken += 1
            elif default is not _EMPTY:
                out[name] = default
            else:
                return None
        if self._args_name is not None:
            out[self._args_name] = args[given:]
        for name, default in self._keyword_only:
            if name in kwargs:
                out[name] = kwargs[name]
                taken += 1
            elif default is not _EMPTY:
                out[name] = default
            else:
                return None
        if self._kwargs_name is not None:
            out[self._kwargs_name] = {k: v for k, v in kwargs.items() if k not in self._keywords} if kwargs else {}
        elif taken != len(kwargs):
            return None
        return out


def _parameters(func: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(func).parameters.values())
    except (TypeError, ValueError):
        both = (("args", inspect.Parameter.VAR_POSITIONAL), ("kwargs", inspect.Parameter.VAR_KEYWORD))
        return [inspect.Parameter(name, kind) for name, kind in both]
