"""Values that fight back: result and exception of the method are untouched, time is bounded, what can be is kept."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections import UserDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, computed_field

from verl_trace import rollout_trace_attr, rollout_trace_op


class Trap(BaseException):
    """Raised by every method that capture must not call; not an Exception, so that nothing swallows it."""


def trap(*args: Any, **kwargs: Any) -> Any:
    raise Trap


class Raises:
    """Every method that a serialiser might call raises."""

    def __init__(self) -> None:
        self.__dict__["kept"] = 1

    __repr__ = __str__ = __iter__ = __len__ = __eq__ = __bool__ = __getattr__ = __dir__ = __format__ = trap
    __getitem__ = __contains__ = __reduce__ = __reduce_ex__ = __float__ = __int__ = __index__ = trap
    __hash__ = trap
    model_dump = dict = json = to_dict = tolist = keys = items = values = trap


class RaisesOnAttribute:
    def __init__(self) -> None:
        object.__setattr__(self, "kept", 2)

    def __getattribute__(self, name: str) -> Any:
        raise Trap


class Endless(list[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.count()

    def __len__(self) -> int:
        return 2**62


class EndlessDict(dict[str, int]):
    def items(self) -> Any:
        return ((str(n), n) for n in itertools.count())

    keys = values = __iter__ = items


class LyingStr(str):
    __slots__ = ()
    __str__ = __repr__ = encode = trap


class LyingInt(int):
    __int__ = __index__ = __repr__ = __str__ = trap


def with_meta() -> Any:
    """An instance whose class refuses to be looked at (made here, since a test runner looks at a module's classes)."""

    class Meta(type):
        __instancecheck__ = __subclasscheck__ = __eq__ = trap
        __hash__ = type.__hash__

        def __getattribute__(cls, name: str) -> Any:
            raise Trap

    return type.__call__(Meta("WithMeta", (), {}))


class Model(BaseModel):
    x: int = 1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def costly(self) -> int:
        raise Trap

    model_dump = trap
    __iter__ = trap
    __repr__ = trap


@dataclass
class Data:
    x: int = 1

    @property
    def y(self) -> int:
        raise Trap


class Property:
    def __init__(self) -> None:
        self.stored = 5

    @property
    def computed(self) -> int:
        raise Trap


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {"name": "loop"}
    value["self"] = value
    return value


class Client:
    """A door to half the program."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.logger = logging.getLogger("x")
        self.modules = dict(sys.modules)
        self.parent = self
        self.api_key = "secret-of-the-client"


ODD: dict[str, tuple[Callable[[], Any], Any]] = {
    "raises": (Raises, {"_type": "Raises", "kept": 1}),
    "raises on attribute": (RaisesOnAttribute, {"_type": "RaisesOnAttribute", "kept": 2}),
    "endless list": (lambda: Endless([1, 2]), [1, 2]),
    "endless dict": (lambda: EndlessDict(a=1), {"a": 1}),
    "lying str": (lambda: LyingStr("text"), "text"),
    "lying int": (lambda: LyingInt(7), 7),
    "meta class": (with_meta, None),
    "model": (Model, {"_type": "Model", "x": 1, "_class_name": "Model", "_bases": ["BaseModel"]}),
    "dataclass": (Data, {"_type": "Data", "x": 1, "_class_name": "Data", "_bases": []}),
    "property": (Property, {"_type": "Property", "stored": 5}),
    "cycle": (cyclic, {"name": "loop", "self": {"_omitted": "cycle", "_type": "dict"}}),
    "5,000 deep": (lambda: deep(5000), None),
    "big int": (lambda: 2**70, {"_type": "int", "value": str(2**70)}),
    "huge int": (lambda: 10**6000, None),
    "lone surrogate": (lambda: "half \ud83d", {"_type": "str", "backslashreplace": "half \\ud83d"}),
    "bytes": (lambda: b"\xff", {"_type": "bytes", "size": 1, "base64": "/w=="}),
    "memoryview": (lambda: memoryview(b"ab"), {"_type": "memoryview", "size": 2, "base64": "YWI="}),
    "colliding keys": (
        lambda: {1: "a", "1": "b"},
        {"1": "a", "_colliding_keys": [{"key": "1", "key_type": "str", "value": "b"}]},
    ),
    "numpy keys": (lambda: {np.int64(1): "a"}, {"1": "a"}),
    "object keys": (lambda: {Property(): 1}, {"<Property>": 1}),
    "client": (Client, None),
    "module": (lambda: sys, "<module sys>"),
    "lambda": (lambda: lambda: 1, None),
    "generator": (lambda: (i for i in [1]), None),
    "open file": (lambda: open(__file__), None),  # noqa: SIM115
    "lock": (threading.Lock, "<_thread.lock>"),
    "user dict": (lambda: UserDict(a=1), {"_type": "UserDict", "data": {"a": 1}}),
    "defaultdict": (lambda: defaultdict(trap, a=1), {"a": 1}),
    "nan": (lambda: float("nan"), {"_type": "float", "value": "nan"}),
    "structured array": (lambda: np.zeros(2, dtype=[("a", "i4")]), [[0], [0]]),
    "datetime64": (lambda: np.datetime64("2026-01-02"), None),
    "line breaks": (lambda: "a\u2028b\x85c\0\r\nd\x1b[31m", "a\u2028b\x85c\0\r\nd\x1b[31m"),
}


class Tool:
    @rollout_trace_op
    def echo(self, value: Any) -> Any:
        return value

    @rollout_trace_op
    def refuse(self, value: Any) -> Any:
        raise ValueError("the tool's own")


@pytest.mark.parametrize("name", ODD)
def test_an_odd_value_is_survived_and_kept(recording: Any, name: str) -> None:
    """As argument, as result, and beside an exception; the record says what could be kept; neighbours are whole."""
    make, expected = ODD[name]
    value = make()
    began = time.perf_counter()

    assert Tool().echo(value) is value
    with pytest.raises(ValueError, match="the tool's own"):
        Tool().refuse(value)
    assert Tool().echo({"neighbour": 1, "value": value, "ids": list(range(1000))})["value"] is value

    assert time.perf_counter() - began < 2
    if name == "open file":
        value.close()
    records = recording.finish("start", "end")
    assert len(records) == 6
    if name != "5,000 deep":  # cut at a depth that is counted from the top of the record
        assert records[1]["output"] == records[0]["inputs"]["value"]
    assert records[4]["inputs"]["value"]["ids"] == list(range(1000))
    assert records[4]["inputs"]["value"]["neighbour"] == 1
    if expected is not None:
        assert records[0]["inputs"]["value"] == expected
        assert records[4]["inputs"]["value"]["value"] == expected


def test_no_credential_of_a_client_is_written(recording: Any) -> None:
    """A client as an argument, or anything that holds one: its api_key is not in the file."""
    Tool().echo(Client())
    Tool().echo([{"x": [Client()]}])
    recording.finish()
    for path in recording.folder.glob("*"):
        assert b"secret-of-the-client" not in path.read_bytes()
    assert "secret-of-the-client" not in str(recording.records())


def test_keys_of_the_users_choice(unstarted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """VERL_TRACE_REDACT: in inputs, outputs, attributes and yielded items, and nothing of it in any file."""
    monkeypatch.setenv("VERL_TRACE_REDACT", "*password*, Cookie")
    unstarted.start()
    value = {"db_password": "s3cret", "nested": [{"COOKIE": ["s3cret"]}], "kept": 1}

    assert Tool().echo(value) is value
    with rollout_trace_attr(sample_index={"password": "s3cret"}, step=1):
        Tool().echo([value])

    records = unstarted.finish("start", "end")
    redacted = {"db_password": "REDACTED", "nested": [{"COOKIE": "REDACTED"}], "kept": 1}
    assert [r.get("inputs", {"value": r.get("output")})["value"] for r in records] == [redacted] * 2 + [[redacted]] * 2
    assert records[2]["sample_index"] == {"password": "REDACTED"}
    assert "s3cret" not in str(unstarted.records())


def test_an_exception_that_cannot_be_printed(recording: Any) -> None:
    """`__str__` of an exception is one of the few methods that are called; it may raise."""

    class Odd(Exception):
        __str__ = __repr__ = lambda self: 1 / 0  # type: ignore[assignment,return-value]

    class Fails:
        @rollout_trace_op
        def run(self) -> None:
            raise Odd

    with pytest.raises(Odd):
        Fails().run()
    (end,) = recording.finish("end")
    assert end["exception"]["type"] == "Odd"
    assert end["exception"]["message"] == "<__str__ raised ZeroDivisionError>"


class Loader:
    """One that cannot give the source of its module."""

    def get_source(self, name: str) -> str:
        raise KeyError(name)


class Untraceable(Exception):
    __traceback__ = property(lambda self: 1 / 0)


@pytest.mark.parametrize(
    "change",
    [{"co_filename": "a\0b"}, {"co_filename": "a\ud800"}, {"co_filename": "<m>.py"}, {"co_linetable": b""}, None],
    ids=str,
)
def test_an_exception_from_nowhere(recording: Any, change: dict[str, Any] | None) -> None:
    """Code that was generated: of a file with an odd name, of a loader that raises, without lines, and an error that
    hides its traceback. The record of the call is there, and says what was raised."""
    scope: dict[str, Any] = {"__name__": "generated", "__loader__": Loader(), "error": ValueError("x")}
    exec("def fails():\n    raise error\n", scope)
    if change is None:
        scope["error"] = Untraceable("x")
    else:
        scope["fails"].__code__ = scope["fails"].__code__.replace(**change)
    with pytest.raises(type(scope["error"])):
        rollout_trace_op(scope["fails"])()

    (end,) = recording.finish("end")
    assert (end["exception"]["type"], end["exception"]["message"]) == (type(scope["error"]).__name__, "x")
    assert end["exception"]["traceback"][-1]["function_name"] == "fails"


def test_odd_attributes(recording: Any) -> None:
    """A trajectory with attributes that are no JSON is recorded all the same."""
    with rollout_trace_attr(sample_index=Raises(), step=float("nan"), rollout_n=2**80, validate=b"?"):  # type: ignore[arg-type]
        assert Tool().echo(1) == 1

    start = recording.finish("start")[0]
    assert start["sample_index"] == {"_type": "Raises", "kept": 1}
    assert start["rollout_n"] == {"_type": "int", "value": str(2**80)}


def test_a_very_long_text(recording: Any) -> None:
    """200 MB in one string: kept whole, in bounded time."""
    text = "x" * 200_000_000
    began = time.perf_counter()
    Tool().echo(text)
    assert time.perf_counter() - began < 30
    lines = recording.finish("start", "end")
    assert [len(lines[0]["inputs"]["value"]), len(lines[1]["output"])] == [200_000_000] * 2


def test_at_the_edge_of_the_call_stack(recording: Any) -> None:
    """Traced code that is nearly at the recursion limit keeps its result; the record may hold a mark."""

    def descend(left: int) -> Any:
        return Tool().echo([[1]]) if left == 0 else descend(left - 1)

    frame, used = sys._getframe(), 0
    while frame is not None:
        frame, used = frame.f_back, used + 1  # type: ignore[assignment]
    for margin in range(8, 60, 4):
        try:
            bare = descend_plain(sys.getrecursionlimit() - used - margin)
        except RecursionError:
            continue
        assert descend(sys.getrecursionlimit() - used - margin - 40) == bare == [[1]]


def descend_plain(left: int) -> Any:
    return [[1]] if left == 0 else descend_plain(left - 1)


def test_an_interrupt_while_a_call_begins(recording: Any) -> None:
    """Ctrl-C inside of the recorder passes through, and later calls are no children of the one that never began."""

    class Interrupting(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tool().echo(Interrupting())
    assert Tool().echo(1) == 1

    (start,) = recording.finish("start")
    assert start["parent_id"] is None
