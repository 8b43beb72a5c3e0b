"""How Python values look on a line."""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import json
import math
import pathlib
import sys
import types
import uuid
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from verl_trace.schemas.values import encode


class Point(BaseModel):
    x: int
    inner: Any = None


class Point3(Point):
    z: float = 0.0


@dataclass
class Data:
    a: int
    b: Any = field(default_factory=list)


@dataclass
class Empty:
    _hidden: int = 1


class Plain:
    def __init__(self) -> None:
        self.name = "n"
        self.text = "x" * 10_000


class Slots:
    __slots__ = ("a", "unset")

    def __init__(self) -> None:
        self.a = 1


class Color(enum.Enum):
    RED = "red"


Pair = namedtuple("Pair", ["left", "right"])
NAN = {"_type": "float", "value": "nan"}
DATA_NAN = {"_type": "Data", "a": 1, "b": NAN, "_class_name": "Data", "_bases": []}
EMPTY = {"_type": "Empty", "_hidden": 1, "_class_name": "Empty", "_bases": []}
LONG = [0.5] * 600


def wire(value: Any) -> Any:
    return json.loads(encode(value), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (2**63 - 1, 2**63 - 1),
        (1.5, 1.5),
        ("héllo \u2028\x85\0\x1b[31m", "héllo \u2028\x85\0\x1b[31m"),
        ([1, (2, "x")], [1, [2, "x"]]),
        ({"k": {"l": []}}, {"k": {"l": []}}),
        (Data(1, [2]), {"_type": "Data", "a": 1, "b": [2], "_class_name": "Data", "_bases": []}),
        (np.int64(3), 3),
        (np.float32(1.5), 1.5),
        (np.float64(0.1), 0.1),
        (np.bool_(True), True),
        (np.str_("s"), "s"),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.arange(8)[::2], [0, 2, 4, 6]),
        (np.array([0.5, 1], dtype=np.float16), [0.5, 1.0]),
        (np.array([{"role": "user"}, None], dtype=object), [{"role": "user"}, None]),
        (np.array(7), 7),
        (float("nan"), NAN),
        (np.float32("nan"), NAN),
        (np.float16("nan"), NAN),
        ([1.0, float("-inf")], [1.0, {"_type": "float", "value": "-inf"}]),
        ([*LONG, math.inf], [*LONG, {"_type": "float", "value": "inf"}]),
        (np.array([1.0, float("nan")]), [1.0, NAN]),
        (
            {"a": [Data(1, float("nan"))]},
            {"a": [DATA_NAN]},
        ),
        (2**64, {"_type": "int", "value": str(2**64)}),
        (-(2**63) - 1, {"_type": "int", "value": str(-(2**63) - 1)}),
        (10**30, {"_type": "int", "value": "1" + "0" * 30}),
        ("hello \ud83d", {"_type": "str", "backslashreplace": "hello \\ud83d"}),
        ({"k\ud83d": 1}, {"k\\ud83d": 1}),
        (b"\xff\0", {"_type": "bytes", "size": 2, "base64": "/wA="}),
        (Pair(1, [2]), {"left": 1, "right": [2]}),
        ({datetime.date(2026, 1, 2): 1, uuid.UUID(int=5): 2}, {"2026-01-02": 1, f"{uuid.UUID(int=5)}": 2}),
        ({datetime.datetime(2026, 1, 2): 1, decimal.Decimal("1.10"): 2}, {"2026-01-02T00:00:00": 1, "1.10": 2}),
        ({pathlib.Path("/a"): 1, frozenset({2, 1}): 2, frozenset({3}): 3}, {"/a": 1, "1,2": 2, "3": 3}),
        (np.array(None), None),
        (np.ma.masked, None),
        ({"a": 1}.keys(), ["a"]),
        ({"a": [1]}.values(), [[1]]),
        ({"a": [1]}.items(), [["a", [1]]]),
        (types.MappingProxyType({"a": {"b": NAN}}), {"a": {"b": NAN}}),
        (array.array("i", [1, 2]), [1, 2]),
        ({"a": [1, Empty()]}, {"a": [1, EMPTY]}),
        ({"a": [*range(300), Empty()]}, {"a": [*range(300), EMPTY]}),
        ({1: [*range(300), Empty()]}, {"1": [*range(300), EMPTY]}),
        ({3, 1, 2}, [1, 2, 3]),
        (deque([3, 1]), [3, 1]),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Color.RED, "red"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (decimal.Decimal("1.10"), {"_type": "Decimal", "value": "1.10"}),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (1 + 2j, "(1+2j)"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (ValueError("boom"), {"_type": "ValueError", "message": "boom"}),
        (Plain(), {"_type": "Plain", "name": "n", "text": "x" * 10_000}),
        (Slots(), {"_type": "Slots", "a": 1}),
        (len, "<builtin_function_or_method len>"),
        (Plain, "<type Plain>"),
        (
            {"API_KEY": "s", "nested": [{"Authorization": "b"}]},
            {"API_KEY": "REDACTED", "nested": [{"Authorization": "REDACTED"}]},
        ),
        ({"long": "x" * 5000, "h": {"auth_headers": 1}}, {"long": "x" * 5000, "h": {"auth_headers": "REDACTED"}}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_form_of_a_value(value: Any, expected: Any) -> None:
    """One row per kind of value: the line is valid JSON and says what the table in values.py says."""
    assert wire(value) == expected


def test_pydantic_models_look_as_weave_writes_them() -> None:
    """Fields first after `_type`, then class name and bases; nested models alike."""
    assert wire(Point3(x=1, inner=Point(x=2))) == {
        "_type": "Point3",
        "x": 1,
        "inner": {"_type": "Point", "x": 2, "inner": None, "_class_name": "Point", "_bases": ["BaseModel"]},
        "z": 0.0,
        "_class_name": "Point3",
        "_bases": ["Point", "BaseModel"],
    }


def test_a_datetime_is_weaves_custom_type() -> None:
    """Naive times count as UTC, as in Weave."""
    assert wire(datetime.datetime(2026, 1, 2, 3, 4, 5)) == {
        "_type": "CustomWeaveType",
        "weave_type": {"type": "datetime.datetime"},
        "val": "2026-01-02T03:04:05+00:00",
    }


def test_keys_that_are_no_text_are_all_kept() -> None:
    """Keys become text as Weave writes them; what would collide is kept beside, with its type."""
    form = wire({1: "a", "1": "b", None: "c", 1.5: "d", (1, 2): "e", b"x": "f", Color.RED: "g"})

    assert form.pop("_colliding_keys") == [{"key": "1", "key_type": "str", "value": "b"}]
    assert form == {"1": "a", "None": "c", "1.5": "d", "1,2": "e", "x": "f", "red": "g"}


def test_one_odd_field_costs_only_itself() -> None:
    """Large neighbours keep the fast path, and all arrive."""
    value = {"ids": list(range(5000)), "odd": {1: 2**70}, "bad": "\ud800", "log_probs": [*LONG, float("nan")]}
    assert wire(value) == {
        "ids": list(range(5000)),
        "odd": {"1": {"_type": "int", "value": str(2**70)}},
        "bad": {"_type": "str", "backslashreplace": "\\ud800"},
        "log_probs": [*LONG, NAN],
    }


def test_cycles_and_depth_are_marked() -> None:
    """A cycle ends with a mark, and so does nesting that no JSON reader would follow."""
    cycle: list[Any] = [1]
    cycle.append(cycle)
    assert wire(cycle) == [1, {"_omitted": "cycle", "_type": "list"}]

    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert "nested deeper" in encode(deep).decode()


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary(max_size=8)
    | st.dates()
    | st.datetimes(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.integers() | st.none(), inner, max_size=4)
        | st.builds(Point, x=st.integers(), inner=inner)
        | st.tuples(inner, inner)
    ),
    max_leaves=15,
)


@given(values)
def test_anything_becomes_valid_json(value: Any) -> None:
    """Never an exception, never NaN or a lone surrogate in the text, never a newline in the line."""
    out = encode(value)
    assert b"\n" not in out
    json.loads(out.decode(), parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize("name", ["decimal", "pathlib", "numpy", "torch", "pandas", "PIL.Image"])
def test_a_module_that_another_thread_is_still_loading(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a name already and no classes yet; values of other types look as ever."""
    values = [len, ValueError("x"), int]
    before = encode(values)
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    assert encode(values) == before
    assert json.loads(before)[1] == {"_type": "ValueError", "message": "x"}
