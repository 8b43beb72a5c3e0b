"""Decorated objects that bind in a class in a way of their own: what is read there is what it would have been."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest

from verl_trace import rollout_trace_op


class Hybrid:
    """A decorator of somebody's, whose methods are of the class where no instance is given."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any) -> Any:
        return self.func(*args)

    def __get__(self, instance: Any, owner: type) -> Any:
        return types.MethodType(self.func, owner if instance is None else instance)


class Counting(Hybrid):
    """One that binds by a partial, as many do."""

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else functools.partial(self, instance)


@pytest.mark.parametrize("decorate", [lambda func: func, rollout_trace_op], ids=["plain", "traced"])
def test_an_object_binds_as_it_does(recording: Any, decorate: Any) -> None:
    """In a class, whatever its `__get__` gives, and knows the name that it has there."""

    class Holder:
        @decorate  # type: ignore[untyped-decorator]
        @Hybrid
        def hybrid(self, x: int) -> Any:
            return (isinstance(self, type), x)

        @decorate  # type: ignore[untyped-decorator]
        @Counting
        def counting(self, x: int) -> Any:
            return (isinstance(self, type), x)

    assert (Holder.hybrid(1), Holder().hybrid(2), Holder().counting(3)) == ((True, 1), (False, 2), (False, 3))
    assert Holder.counting.name == "counting"
    starts = recording.finish("start")
    assert len(starts) == (3 if decorate is rollout_trace_op else 0)


class Giving(Hybrid):
    """One that gives a class where it is read, or a method around one."""

    def __get__(self, instance: Any, owner: type) -> Any:
        return dict if instance is None else types.MethodType(list, (1, 2))


def test_an_object_that_binds_as_a_class(recording: Any) -> None:
    """Which cannot be decorated: it is what it would have been."""

    class Holder:
        giving = rollout_trace_op(Giving(len))

    assert Holder.giving is dict
    assert Holder().giving() == [1, 2]
