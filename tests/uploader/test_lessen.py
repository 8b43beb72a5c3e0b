"""Sending less: what is left out, and that it says so."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_trace.uploader.lessen import LEFT_OUT, Lessen

CALL: dict[str, Any] = {
    "prompt_ids": list(range(2000)),
    "kwargs": {"raw_prompt": [{"role": "user", "content": "x" * 500}], "logprobs": [0.5] * 3},
    "output": [{"logprobs": None, "text": "y" * 30}],
}


def lessened(lessen: Lessen | None, value: Any) -> tuple[Any, int]:
    assert lessen is not None
    data, count = lessen(orjson.dumps(value))
    return orjson.loads(data), count


def test_named_fields_at_any_depth() -> None:
    """Each leaves what it was, how many items and bytes; all else stays."""
    found, count = lessened(Lessen.of("logprobs, prompt_ids"), CALL)

    assert count == 3
    assert found["prompt_ids"] == {"_omitted": LEFT_OUT, "_type": "list", "items": 2000, "bytes": 8891}
    assert found["kwargs"]["logprobs"] == {"_omitted": LEFT_OUT, "_type": "list", "items": 3, "bytes": 13}
    assert found["output"][0] == {"logprobs": {"_omitted": LEFT_OUT, "_type": "NoneType", "bytes": 4}, "text": "y" * 30}
    assert found["kwargs"]["raw_prompt"] == CALL["kwargs"]["raw_prompt"]


def test_large_fields() -> None:
    """Texts and lists above the size; a list of objects is looked into before it is left out."""
    found, count = lessened(Lessen.of(None, max_field=200), CALL)

    assert count == 2
    assert found["prompt_ids"]["items"] == 2000
    assert found["kwargs"]["raw_prompt"] == [
        {"role": "user", "content": {"_omitted": LEFT_OUT, "_type": "str", "items": 500, "bytes": 502}}
    ]
    many, count = lessened(Lessen.of((), max_field=200), {"messages": [{"role": "user"}] * 100})
    assert (many["messages"]["items"], count) == (100, 1)


def test_nothing_to_leave_out() -> None:
    """The very bytes; no names and no size are no wish at all."""
    data = orjson.dumps(CALL)
    for lessen in (Lessen.of("other"), Lessen.of(None, max_field=100_000)):
        assert lessen is not None
        assert lessen(data)[0] is data
    assert Lessen.of(" , ") is None
    assert Lessen.of(None) is None


@pytest.mark.parametrize("value", [None, 1, "text", [], {}, [[[]]], ["x" * 300], [{"a": {"prompt_ids": 1}}]])
def test_any_payload(value: Any) -> None:
    """Not only objects; again it changes nothing."""
    lessen = Lessen.of("prompt_ids", max_field=250)
    once, _ = lessened(lessen, value)
    assert lessened(lessen, once) == (once, 0)


@given(
    st.recursive(
        st.none() | st.integers(0, 9) | st.text(max_size=40),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", 'q"', "ü"]), inner),
        max_leaves=20,
    )
)
def test_no_named_field_is_left(value: Any) -> None:
    """Whatever the nesting: behind a dropped name is nothing but its mark."""
    found, _ = lessened(Lessen.of(["a", 'q"', "ü"]), value)

    def check(part: Any) -> None:
        if isinstance(part, dict) and part.get("_omitted") != LEFT_OUT:
            for key, inner in part.items():
                assert key == "b" or inner["_omitted"] == LEFT_OUT
                check(inner)
        elif isinstance(part, list):
            for inner in part:
                check(inner)

    check(found)
