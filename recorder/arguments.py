"""From a call's arguments to the inputs of its record, as `Signature.bind` plus defaults would give them, but decided
once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["ArgumentBinder"]

_EMPTY = inspect.Parameter.empty


class ArgumentBinder:
    """Binds the arguments of one function. `skip_first` leaves out the instance (or class) of a method."""

    __slots__ = ("_args_name", "_keyword_only", "_kwargs_name", "_positional", "_required", "_skip")

    def __init__(self, func: Callable[..., Any], skip_first: bool) -> None:
        self._skip = 1 if skip_first else 0
        self._positional: list[tuple[str, Any]] = []
        self._keyword_only: list[tuple[str, Any]] = []
        self._args_name: str | None = None
        self._kwargs_name: str | None = None
        for parameter in inspect.signature(func).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._args_name = parameter.name
            elif parameter.kind is parameter.VAR_KEYWORD:
                self._kwargs_name = parameter.name
            elif parameter.kind is parameter.KEYWORD_ONLY:
                self._keyword_only.append((parameter.name, parameter.default))
            else:
                self._positional.append((parameter.name, parameter.default))

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Name -> value in the order of the signature; arguments that do not fit appear as `args` and `kwargs`."""
        out: dict[str, Any] = {}
        rest = kwargs
        if kwargs:
            rest = dict(kwargs)
        count = len(args)
        position = 0
        for name, default in self._positional:
            if position < count:
                value = args[position]
            elif name in rest:
                value = rest.pop(name)
            elif default is not _EMPTY:
                value = default
            else:
                return {"args": list(args[self._skip :]), "kwargs": kwargs}
            if position >= self._skip:
                out[name] = value
            position += 1
        if self._args_name is not None:
            if position >= self._skip:
                out[self._args_name] = args[position:]
            else:
                out[self._args_name] = args[self._skip :]
        elif count > position:
            return {"args": list(args[self._skip :]), "kwargs": kwargs}
        for name, default in self._keyword_only:
            if name in rest:
                out[name] = rest.pop(name)
            elif default is not _EMPTY:
                out[name] = default
            else:
                return {"args": list(args[self._skip :]), "kwargs": kwargs}
        if self._kwargs_name is not None:
            out[self._kwargs_name] = rest
        elif rest:
            return {"args": list(args[self._skip :]), "kwargs": kwargs}
        return out
