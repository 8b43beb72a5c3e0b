"""rollout_trace_op takes every callable; what it makes is what it was, and the inputs are those of the call."""

from __future__ import annotations

import abc
import asyncio
import functools
import inspect
import math
import types
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest

from verl_trace import rollout_trace_op
from verl_trace.recorder import is_traced


def run(call: Callable[[], Any]) -> Any:
    """The result of a call, of whatever kind it is."""
    result = call()
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    if inspect.isgenerator(result):
        return list(result)
    if inspect.isasyncgen(result):
        return asyncio.run(collect(result))
    return result


async def collect(items: AsyncGenerator[Any, Any]) -> list[Any]:
    return [item async for item in items]


@rollout_trace_op
def plain(self: int, b: int = 2) -> int:
    """Docs of plain."""
    return self + b


@rollout_trace_op()
async def coroutine(agent: object) -> int:
    return 7


@rollout_trace_op(name="numbers")
def generator(n: int) -> Generator[int, None, None]:
    yield from range(n)


@rollout_trace_op
async def async_generator(n: int) -> AsyncGenerator[int, None]:
    for i in range(n):
        yield i


def opaque(func: Callable[..., Any]) -> Any:
    """A decorator that hides what it wraps."""
    return lambda *args, **kwargs: func(*args, **kwargs)


def open_decorator(func: Callable[..., Any]) -> Any:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


def attached(item: Any, x: int) -> int:
    return x


class Meta(type):
    @rollout_trace_op
    def of_class(cls, x: int) -> int:
        return x


class Base:
    @rollout_trace_op
    def inherited(this, x: int) -> int:
        return x


class Agent(Base, metaclass=Meta):
    @rollout_trace_op
    def method(agent, x: int) -> int:
        return x

    @rollout_trace_op
    def only_args(*args: Any) -> int:
        return len(args)

    @staticmethod
    @rollout_trace_op
    def static_above(self: Any, x: int = 1) -> int:
        return x

    @rollout_trace_op
    @staticmethod
    def static_below(self: Any, x: int = 1) -> int:
        return x

    @classmethod
    @rollout_trace_op
    def class_above(klass, x: int) -> int:
        return x

    @rollout_trace_op
    @classmethod
    def class_below(klass, x: int) -> int:
        return x

    @opaque
    @rollout_trace_op
    def under_opaque(self, x: int) -> int:
        return x

    @staticmethod
    @opaque
    @rollout_trace_op
    def static_under_opaque(self: Any, x: int) -> int:
        return x

    @open_decorator
    @rollout_trace_op
    def under_open(self, x: int) -> int:
        return x

    @property
    @rollout_trace_op
    def computed(self) -> int:
        return 4

    def __init_subclass__(cls, **kwargs: Any) -> None:
        cls.attached = rollout_trace_op(attached)  # type: ignore[attr-defined]

    @rollout_trace_op
    async def __call__(self, x: int) -> int:
        return x

    by_partial = functools.partialmethod(method, 8)


class Sub(Agent):
    pass


def nested() -> Any:
    """Functions and classes inside of a function."""

    @rollout_trace_op
    def inner(x: int) -> int:
        return x

    class Local:
        @rollout_trace_op
        def method(self, x: int) -> int:
            return x

    return inner, Local


INNER, LOCAL = nested()
AGENT = Sub()
MARK = {"_type": "Sub"}

CALLS: dict[str, tuple[Callable[[], Any], str, dict[str, Any]]] = {
    "a plain function keeps its first argument": (lambda: plain(1), "plain", {"self": 1, "b": 2}),
    "even an instance": (lambda: coroutine(AGENT), "coroutine", {"agent": MARK}),
    "a name": (lambda: generator(3), "numbers", {"n": 3}),
    "an async generator": (lambda: async_generator(2), "async_generator", {"n": 2}),
    "a method": (lambda: AGENT.method(1), "Agent.method", {"x": 1}),
    "a method of the class": (lambda: Agent.method(AGENT, x=1), "Agent.method", {"x": 1}),
    "a method by keyword": (lambda: Agent.method(agent=AGENT, x=1), "Agent.method", {"x": 1}),
    "a method with nothing but *args": (lambda: AGENT.only_args(1), "Agent.only_args", {"args": [1]}),
    "an inherited method": (lambda: AGENT.inherited(1), "Base.inherited", {"x": 1}),
    "static, above": (lambda: AGENT.static_above(5), "Agent.static_above", {"self": 5, "x": 1}),
    "static, with an instance": (lambda: Agent.static_above(AGENT), "Agent.static_above", {"self": MARK, "x": 1}),
    "static, below": (lambda: AGENT.static_below(AGENT), "Agent.static_below", {"self": MARK, "x": 1}),
    "class, above": (lambda: AGENT.class_above(3), "Agent.class_above", {"x": 3}),
    "class, below": (lambda: Sub.class_below(3), "Agent.class_below", {"x": 3}),
    "of a metaclass": (lambda: Sub.of_class(3), "Meta.of_class", {"x": 3}),
    "under a decorator that hides it": (lambda: AGENT.under_opaque(1), "Agent.under_opaque", {"x": 1}),
    "static under it": (
        lambda: AGENT.static_under_opaque(AGENT, 1),
        "Agent.static_under_opaque",
        {"self": MARK, "x": 1},
    ),
    "under a decorator that shows it": (lambda: AGENT.under_open(1), "Agent.under_open", {"x": 1}),
    "a property": (lambda: AGENT.computed, "Agent.computed", {}),
    "attached to a class later": (lambda: AGENT.attached(6), "attached", {"x": 6}),  # type: ignore[attr-defined]
    "__call__": (lambda: AGENT(2), "Agent.__call__", {"x": 2}),
    "a partial method": (lambda: AGENT.by_partial(), "Agent.method", {"x": 8}),
    "a nested function": (lambda: INNER(1), "nested.<locals>.inner", {"x": 1}),
    "a method of a local class": (lambda: LOCAL().method(1), "nested.<locals>.Local.method", {"x": 1}),
}


@pytest.mark.parametrize("what", CALLS)
def test_inputs_of(recording: Any, what: str) -> None:
    """Instance and class stay out of a method's inputs, decided by how it binds; everything else is in."""
    call, op, inputs = CALLS[what]
    result = run(call)

    start, end = recording.finish("start", "end")
    assert (start["op"], start["inputs"]) == (op, inputs)
    assert end["output"] == (MARK if result is AGENT else result)


class Tool:
    """A tool that is an object."""

    def __init__(self) -> None:
        self.used = 0
        self.tokenizer = None

    async def __call__(self, query: str) -> str:
        return query.upper()


class Stream:
    async def __call__(self, n: int) -> AsyncGenerator[int, None]:
        for i in range(n):
            yield i


def test_a_callable_object(recording: Any) -> None:
    """Its calls are recorded; to everybody else it is the object."""
    tool = Tool()
    traced = rollout_trace_op(tool)
    traced.used += 1
    del traced.tokenizer

    assert run(lambda: traced("q")) == "Q"
    assert run(lambda: rollout_trace_op(Stream(), name="stream")(2)) == [0, 1]
    assert (tool.used, hasattr(tool, "tokenizer"), isinstance(traced, Tool)) == (1, False, True)
    assert inspect.iscoroutinefunction(traced.__call__)
    assert str(inspect.signature(traced)) == str(inspect.signature(tool))
    starts = recording.finish("start")
    assert [(s["op"], s["inputs"]) for s in starts] == [("Tool.__call__", {"query": "q"}), ("stream", {"n": 2})]


def test_partials_bound_methods_and_builtins(recording: Any) -> None:
    """A partial records what it holds, too; a bound method leaves out its instance; what is C is called as it is."""

    async def add(a: int, b: int, c: int = 0) -> int:
        return a + b + c

    class Bare:
        def method(self, x: int) -> int:
            return x

    partial = rollout_trace_op(functools.partial(add, 1, c=3))
    cached = rollout_trace_op(functools.lru_cache(lambda x: x))
    bound: Any = rollout_trace_op(Bare().method)

    assert isinstance(partial, functools.partial)
    assert inspect.iscoroutinefunction(partial)
    assert isinstance(bound.__self__, Bare)
    results = [run(lambda: partial(2)), bound(4), rollout_trace_op(math.floor)(1.5), cached(1), cached(1)]
    assert results == [6, 4, 1, 1, 1]
    assert cached.cache_info().hits == 1
    starts = recording.finish("start")
    assert [s["inputs"] for s in starts] == [{"a": 1, "b": 2, "c": 3}, {"x": 4}, {"x": 1.5}, {"x": 1}, {"x": 1}]
    assert starts[1]["op"].endswith("Bare.method")


def test_a_cached_method_still_binds(recording: Any) -> None:
    """An object that is a descriptor stays one."""

    class Model:
        @rollout_trace_op
        @functools.lru_cache  # noqa: B019
        def size(self, x: int) -> int:
            return x

    assert Model().size(3) == 3
    assert recording.finish("start")[0]["inputs"] == {"x": 3}


KINDS = ("iscoroutinefunction", "isgeneratorfunction", "isasyncgenfunction", "isfunction")


@pytest.mark.parametrize("func", [plain, coroutine, generator, async_generator])
def test_the_form_is_kept(func: Any) -> None:
    """Kind, signature, docs, names and the original are there."""
    original = func.__wrapped__
    for kind in KINDS:
        assert getattr(inspect, kind)(func) == getattr(inspect, kind)(original), kind
    assert inspect.signature(func) == inspect.signature(original)
    same = ("__doc__", "__name__", "__qualname__", "__module__", "__annotations__")
    assert [getattr(func, name) for name in same] == [getattr(original, name) for name in same]


def test_static_class_and_abstract_methods_stay_what_they_are() -> None:
    """In the class's dictionary lies what lay there before."""

    class Shape(abc.ABC):
        @rollout_trace_op
        @abc.abstractmethod
        def area(self) -> float: ...

    assert isinstance(vars(Agent)["static_below"], staticmethod)
    assert isinstance(vars(Agent)["class_below"], classmethod)
    assert Shape.__abstractmethods__ == {"area"}


def test_twice_is_once(recording: Any) -> None:
    """Whatever is decorated already comes back as it is; a decorator in between makes another function of it."""

    @rollout_trace_op
    @rollout_trace_op(name="other")
    def func() -> int:
        return 1

    @rollout_trace_op
    @functools.wraps(func)
    def outer() -> int:
        return func()

    wrapped: Any = plain
    forms: tuple[Any, ...] = (
        plain,
        functools.partial(plain, 1),
        staticmethod(wrapped),
        classmethod(wrapped),
        AGENT.method,
    )
    objects: list[Any] = [rollout_trace_op(Tool()), rollout_trace_op(len)]
    assert all(rollout_trace_op(form) is form and is_traced(form) for form in (*forms, *objects))
    assert func() == 1
    assert not is_traced(attached)
    assert outer() == 1
    assert [s["op"].rpartition(".")[2] for s in recording.finish("start")] == ["other", "func", "other"]


@pytest.mark.parametrize("wrong", [Agent, 3, property(lambda self: 1), None.__class__])
def test_what_cannot_be_decorated_says_so(wrong: Any) -> None:
    """A class or something that cannot be called is a TypeError that says what to do."""
    with pytest.raises(TypeError, match=r"decorate (its methods|the function)|must be a function"):
        rollout_trace_op(wrong)


def test_an_awaitable_generator_is_awaited(recording: Any) -> None:
    """The old form of a coroutine function, as asyncio itself still has them."""

    @types.coroutine
    def old() -> Generator[Any, Any, int]:
        yield from asyncio.sleep(0).__await__()
        return 5

    traced = rollout_trace_op(old)

    async def main() -> Any:
        return await traced()

    assert asyncio.run(main()) == 5
    assert recording.finish("end")[0]["output"] == 5


def test_more_classes_than_can_be_remembered(recording: Any) -> None:
    """A program that makes classes without end is answered rightly, and the classes are let go."""

    @rollout_trace_op
    def method(self: Any) -> None: ...

    for number in range(1200):
        type(f"C{number}", (), {"run": method})().run()
    starts = recording.finish("start")
    assert len(starts) == 1200
    assert all(s["inputs"] == {} for s in starts)


def test_classes_without_a_hash(recording: Any) -> None:
    """A metaclass that compares its classes; they are methods' classes and arguments like others."""

    class Compared(type):
        def __eq__(cls, other: object) -> bool:
            return cls is other

    class Odd(metaclass=Compared):
        @rollout_trace_op
        def method(self, x: int) -> int:
            return x

        @classmethod
        @rollout_trace_op
        def of_class(cls, x: int) -> int:
            return x

    assert (Odd().method(1), Odd.of_class(2), Odd().of_class(3)) == (1, 2, 3)
    assert [s["inputs"] for s in recording.finish("start")] == [{"x": 1}, {"x": 2}, {"x": 3}]
