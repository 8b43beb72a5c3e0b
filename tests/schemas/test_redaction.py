"""Credentials: which keys, and that their values are nowhere in what is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from verl_trace.schemas.redaction import KeyPatterns, redact_keys, split_patterns
from verl_trace.schemas.values import encode

SECRET = "s3cret-value"


class Model(BaseModel):
    my_password: str = SECRET
    x: int = 1


@dataclass
class Data:
    my_password: str = SECRET
    x: int = 1


class Plain:
    def __init__(self) -> None:
        self.MY_PASSWORD = SECRET
        self.x = 1


@pytest.fixture
def redacting() -> Iterator[Callable[..., None]]:
    """`redacting(*patterns)`; afterwards Weave's keys alone count again."""
    yield lambda *patterns: redact_keys(patterns)
    redact_keys()


def test_patterns_are_globs_without_case() -> None:
    """Held against the whole key; Weave's own three where nothing else is given."""
    patterns = KeyPatterns(split_patterns(" *password*, x-?-y ,tok[ex]n,ÄRGER,,"))
    hits = [key for key in ("Password", "db_password_2", "x-1-Y", "toxn", "tokxn", "ärger") if patterns.match(key)]
    assert hits == ["Password", "db_password_2", "x-1-Y", "tokxn", "ärger"]
    assert not any(patterns.match(key) for key in ("pass", "x-12-y", "tokens", "api_key", ""))
    assert [key for key in ("Api_Key", "AUTHORIZATION", "auth_headers", "api_keys") if KeyPatterns().match(key)] == [
        "Api_Key", "AUTHORIZATION", "auth_headers",
    ]  # fmt: skip
    assert not KeyPatterns(()).match("api_key")


@pytest.mark.parametrize(
    "value",
    [
        {"my_password": SECRET},
        {"a": [{"b": ({"my_Password": [SECRET] * 100},)}]},
        [{"role": "user", "my_password": SECRET}] * 300,
        [{"role": "user", "content": "x"}] * 300 + [{"my_password": SECRET}],
        {"ids": list(range(1000)), "text": "x" * 10_000, "my_password": SECRET},
        {"nan": float("nan"), "my_password": SECRET},
        {1: {"my_password": SECRET}},
        {"a": [1] * 20 + [{"my_password": {"deep": SECRET}}]},
        Model(),
        Data(),
        Plain(),
        [Model(), {"d": Data(), "p": [Plain()]}],
        np.array([{"my_password": SECRET}], dtype=object),
        {"d": {"d": {"d": {"d": {"d": {"d": {"my_password": SECRET}}}}}}},
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_redacted_value_is_written(redacting: Callable[..., None], value: Any) -> None:
    """At any depth, in any kind of container; what is beside it stays."""
    before = encode(value)
    assert SECRET.encode() in before
    redacting("*PASSWORD*")

    out = encode(value)

    assert SECRET.encode() not in out
    assert b'"REDACTED"' in out
    redacted = json.loads(
        before, object_hook=lambda d: {k: "REDACTED" if "password" in k.lower() else v for k, v in d.items()}
    )
    assert json.loads(out) == redacted


def test_patterns_take_effect_at_once(redacting: Callable[..., None]) -> None:
    """Also for keys and classes that were written before, and back again."""
    value = {"token": SECRET, "m": Model()}
    assert encode(value).count(SECRET.encode()) == 2
    redacting("token")
    assert encode(value).count(SECRET.encode()) == 1
    redacting("token", "my_*")
    assert encode(value).count(SECRET.encode()) == 0
    redacting()
    assert encode(value).count(SECRET.encode()) == 2


def test_a_recording_of_many_keys_keeps_few_of_them() -> None:
    """Keys that are data, not names, do not fill the memory."""
    from verl_trace.schemas.redaction import key_patterns

    for n in range(10_000):
        encode({f"key-{n}": n})
    assert len(key_patterns().plain_names) <= 4096
