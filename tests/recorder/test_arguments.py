"""Inputs of a record: what `inspect.Signature.bind` with defaults says, for every signature and every call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from verl_trace.recorder.arguments import ArgumentBinder

NAMES = ("a", "b", "c", "d", "e", "args", "kwargs")


@st.composite
def signatures(draw: st.DrawFn) -> str:
    """A parameter list with every kind of parameter, in an order that Python allows."""
    names = list(draw(st.permutations(NAMES[:5])))
    parts, has_default = [], False
    for group in ("positional only", "positional"):
        for _ in range(draw(st.integers(0, 2 if group == "positional" else 1))):
            has_default = has_default or draw(st.booleans())
            parts.append(names.pop() + ("='default'" if has_default else ""))
        if group == "positional only" and parts:
            parts.append("/")
    star = draw(st.sampled_from(["", "*", "*args"]))
    keyword_only = [names.pop() + draw(st.sampled_from(["", "='default'"])) for _ in range(draw(st.integers(0, 2)))]
    if star == "*args" or (star == "*" and keyword_only):
        parts += [star, *keyword_only]
    return ", ".join(parts + draw(st.sampled_from([[], ["**kwargs"]])))


def function(signature: str) -> Callable[..., Any]:
    """A function with that parameter list."""
    scope: dict[str, Any] = {}
    exec(f"def func({signature}): ...", scope)
    made: Callable[..., Any] = scope["func"]
    return made


VALUES = st.integers(0, 9)


@given(signatures(), st.lists(VALUES, max_size=5), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5))
def test_inputs_equal_those_of_the_signature(signature: str, args: list[int], kwargs: dict[str, int]) -> None:
    """Same names, same values, same order; what does not fit is recorded as it came."""
    func = function(signature)
    before = dict(kwargs)
    positional_only = [p.name for p in inspect.signature(func).parameters.values() if p.kind is p.POSITIONAL_ONLY]
    # legal with **kwargs, but `bind` of older Pythons refuses it
    assume(not (positional_only and kwargs.keys() & positional_only))
    found = ArgumentBinder(func).inputs(tuple(args), kwargs)
    try:
        bound = inspect.signature(func).bind(*args, **kwargs)
    except TypeError:
        assert found == {"args": args, "kwargs": kwargs}
    else:
        bound.apply_defaults()
        assert list(found.items()) == list(bound.arguments.items())
    assert kwargs == before


@given(signatures(), st.lists(VALUES, max_size=5), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5))
def test_a_method_leaves_out_its_instance(signature: str, args: list[int], kwargs: dict[str, int]) -> None:
    """As the signature of the bound method says it, whatever the first parameter is called."""
    func = function("me, /" + (", " + signature.replace("/, ", "").replace("/", "") if signature else "").rstrip(", "))
    instance = object()
    found = ArgumentBinder(func).inputs((instance, *args), kwargs, skip=1)
    try:
        bound = inspect.signature(func.__get__(instance)).bind(*args, **kwargs)
    except TypeError:
        assert found == {"args": args, "kwargs": kwargs}
    else:
        bound.apply_defaults()
        assert list(found.items()) == list(bound.arguments.items())


def test_an_instance_among_the_variable_arguments() -> None:
    """`def method(*args)` is a method, too."""

    def method(*args: int) -> None: ...

    assert ArgumentBinder(method).inputs((object(), 1, 2), {}, skip=1) == {"args": (1, 2)}


def test_a_callable_without_a_signature() -> None:
    """Some of C tell none: arguments as they come."""
    assert ArgumentBinder(dict.fromkeys).inputs(("ab", 1), {}) == {"iterable": "ab", "value": 1}
    assert ArgumentBinder(max).inputs((1, 2), {"key": abs}) == {"args": (1, 2), "kwargs": {"key": abs}}
