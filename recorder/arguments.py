"""From a call's arguments to the inputs of its record, as `Signature.bind` plus defaults would give them, but decided
once."""

from __future__ import annotations

import inspect
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ArgumentBinder"]

_EMPTY = inspect.Parameter.empty
# A program passes a function's arguments in few ways.
_MAX_TEMPLATES = 64


class ArgumentBinder:
    """Binds the arguments of one function; a `skip` of 1 leaves out the first: the instance (or class) of a method.

    A callable without a signature (some that are written in C) has its arguments recorded as `args` and `kwargs`.
    """

    __slots__ = (
        "_after",
        "_args_name",
        "_has_names_only",
        "_is_plain",
        "_keyword_only",
        "_keywords",
        "_kwargs_name",
        "_names",
        "_positional",
        "_positional_only",
        "_templates",
        "_whole",
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
        self._has_names_only = self._args_name is None and self._kwargs_name is None
        self._is_plain = not self._keyword_only and self._has_names_only
        # the names of inputs by how many arguments are skipped
        self._after = self._names, self._names[1:]
        # the same where passing all of them as keywords says all
        self._whole = self._after if self._is_plain and not self._positional_only else (None, None)
        # how a call passed its arguments -> its inputs, with defaults where it passed none
        self._templates: dict[tuple[Any, ...], dict[str, Any]] = {}

    @property
    def first_name(self) -> str | None:
        """Name of the first parameter where it can be passed as a keyword."""
        return self._names[0] if self._names and not self._positional_only else None

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], skip: int = 0) -> dict[str, Any]:
        """Name -> value in the order of the signature; arguments that do not fit appear as `args` and `kwargs`.

        It may be `kwargs` itself, which is the caller's to keep.
        """
        given = len(args)
        if kwargs:
            if given == skip and tuple(kwargs) == self._whole[skip]:
                return kwargs
        elif self._is_plain and given == len(self._names):
            return dict(zip(self._after[skip], args[skip:], strict=True))
        template = self._templates.get((given, skip, *kwargs))
        if template is not None:
            out = template.copy()
            out.update(zip(self._after[skip], args[skip:], strict=False))
            out.update(kwargs)
            return out
        return self._inputs(args, kwargs, skip)

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], skip: int) -> dict[str, Any]:
        """The same for a kind of call that was not met before."""
        names = self._names
        bound = self._bind(args, kwargs)
        if bound is None:
            return {"args": list(args[skip:]), "kwargs": kwargs}
        out = bound
        if skip:
            if names:
                del out[names[0]]
            elif self._args_name is not None:
                out[self._args_name] = args[skip:]
        if self._has_names_only and skip <= len(args) and len(self._templates) < _MAX_TEMPLATES:
            given = {*names[: len(args)], *kwargs}
            # what is given is put in its place later, what is not has its default for good
            template = {name: None if name in given else value for name, value in out.items()}
            key = (len(args), skip, *kwargs)
            self._templates[key] = template
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
