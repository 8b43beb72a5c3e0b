"""Arbitrary values: recorded, read, uploaded, read back from the real server as docs/values.md says."""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import math
import secrets
import tempfile
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
from verl_trace.demo.server_env import Server
from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.uploader.pipeline import upload


class Model(BaseModel):
    x: Any = None
    name: str = ""


@dataclass
class Data:
    x: Any
    y: int = 0


class Color(enum.Enum):
    RED = "red"
    TWO = 2


@rollout_trace_op
def echo(value: Any) -> Any:
    return value


def normal(value: Any) -> Any:
    """The documented form of a value as it arrives in Weave."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return normal(value.value)
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else {"_type": "int", "value": str(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"_type": "float", "value": repr(value)}
    if isinstance(value, str):
        return normal_text(value)
    if isinstance(value, np.ndarray):
        return normal(value.tolist())
    if isinstance(value, np.generic):
        return normal(value.item())
    if isinstance(value, bytes):
        return {"_type": "bytes", "size": len(value), "base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=datetime.timezone.utc).isoformat()
        return {"_type": "CustomWeaveType", "weave_type": {"type": "datetime.datetime"}, "val": text}
    if isinstance(value, (datetime.date, uuid.UUID)):
        return str(value)
    if isinstance(value, decimal.Decimal):
        return {"_type": "Decimal", "value": str(value)}
    if isinstance(value, (Model, Data)):
        name, bases = type(value).__name__, ["BaseModel"] if isinstance(value, Model) else []
        fields = {key: normal(inner) for key, inner in vars(value).items()}
        return {"_type": name, **fields, "_class_name": name, "_bases": bases}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, dict):
        return normal_dict(value)
    return [normal(inner) for inner in value]


def normal_text(text: str) -> Any:
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"_type": "str", "backslashreplace": text.encode("utf-8", "backslashreplace").decode()}
    return f"text:{text}" if text.startswith(("weave:///", "weave-trace-internal:///")) else text


def normal_dict(value: dict[Any, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    clashes = []
    for key, inner in value.items():
        name = key.encode("utf-8", "backslashreplace").decode() if isinstance(key, str) else str(key)
        form = "REDACTED" if name.lower() in ("api_key", "auth_headers", "authorization") else normal(inner)
        if name in out:
            clashes.append({"key": normal(key), "key_type": type(key).__name__, "value": form})
        else:
            out[name] = form
    return out | ({"_colliding_keys": clashes} if clashes else {})


texts = st.text(st.characters(), max_size=12) | st.sampled_from(
    [
        "weave:///a/b/op/c:d",
        "weave-trace-internal:///x",
        "data:image/png;base64,AAAA",
        "\u2028\x85\0\r\n\x1b[31m",
        "null",
    ]
)
# what is a mark of ours, or an attribute of Weave's, is not made up by these
keys = (
    st.text(st.characters(), max_size=8).filter(lambda key: not key.startswith("_"))
    | st.integers(-3, 3) | st.none() | st.sampled_from(["Api_Key", "1", "None"])
)  # fmt: skip
scalars = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**70) | st.floats() | texts
    | st.binary(max_size=8) | st.dates() | st.datetimes() | st.uuids() | st.decimals() | st.sampled_from(Color)
    | st.floats(width=32).map(np.float32) | st.integers(0, 255).map(np.uint8)
    | st.lists(st.floats(width=16), max_size=3).map(lambda row: np.array(row, dtype="float16"))
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4) | st.tuples(inner, inner)
        | st.builds(Model, x=inner, name=texts) | st.builds(Data, x=inner, y=st.integers())
        | st.sets(st.integers(-9, 9), max_size=4) | st.lists(inner, max_size=3).map(deque)
        | st.lists(st.floats(), min_size=20, max_size=300) | st.lists(st.integers(), min_size=20, max_size=300)
        | st.lists(st.dictionaries(st.sampled_from("abc"), scalars, max_size=3), min_size=2, max_size=6)
    ),
    max_leaves=12,
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Equal, types of numbers included."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and bool(one == other)


# a failing example costs an upload for each step of shrinking, and names the value without it
@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(values, min_size=20, max_size=60))
@example([[{"a": float("nan")}] * 300, [{"a": None, "b": "x"}] * 300, {1: "a", "1": "b"}, [1] * 300 + [float("inf")]])
@example([{"t": "x" * 9000}, ["y" * 9000], -0.0, 1e300, 5e-324, 2**64 - 1, -(2**63), {"a": {}}, [], [[]], "", {}])
def test_values_arrive_in_their_documented_form(
    wandb_login: Server, stored: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, sample: list[Any]
) -> None:
    """In the file and in Weave: the same, for inputs and outputs, and no call is refused."""
    project = f"trip-{secrets.token_hex(6)}"
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("VERL_TRACE_DIR", folder)
        monkeypatch.setenv("VERL_TRACE_MIN_FREE", "0")
        RolloutTraceConfig.init(project, "exp1", "jsonl")
        try:
            for number, value in enumerate(sample):
                with rollout_trace_attr(step=number, sample_index=0):
                    assert echo(value) is value
        finally:
            RolloutTraceConfig.reset()
        (run,) = find_runs(Path(folder))
        result = upload(folder)
        recorded = {t.attributes["step"]: t.calls[0] for t in iter_trajectories(run)}

    assert (result.sent, result.failed) == (len(sample), 0)
    rows = {row["attributes"]["step"]: row for row in stored(project).values()}
    assert len(rows) == len(recorded) == len(sample)
    for number, value in enumerate(sample):
        expected = normal(value)
        assert same(rows[number]["inputs"]["value"], expected), (rows[number]["inputs"]["value"], expected)
        assert same(rows[number]["output"], expected), (rows[number]["output"], expected)
