"""Dicts with long lists of numbers are written in one go where their bytes show that orjson got them right."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_trace.schemas import long_lists
from verl_trace.schemas.objects import Budget
from verl_trace.schemas.values import _fields, encode, encode_pieces

MANY = 300
NAN = float("nan")
IDS = list(range(MANY))

# What may be at the end of a long list, right or wrong.
TAILS: list[Any] = [
    [], [NAN], [None], ["x"], ["],"], [True, False], [1.5, -2], [[1], NAN], [[1], [NAN]], [[1], None], [[1], "b", NAN],
    [{}, NAN], [{"b": NAN}], [{"b": [1]}, NAN], [[{"b": 1}], "b", NAN], [[1], {"b": 2}, [NAN]], [float("inf")],
    ["data:audio/wav;base64," + "A" * 9000], [{"api_key": "sk"}], [1 << 70],
]  # fmt: skip
# What may be before, between and after them; some of it looks like them.
OTHERS: list[Any] = [
    0, "", "n", NAN, '"a":[1,2]', 'x],"b":', {"a": [1, 2], "b": 3}, {"a": [NAN], "b": [1]}, {"a": [1.25] * 16, "b": 1},
    [1, 2, 3], [0.123456789012345678] * 16, {"b": {"a": [1], "b": 2}}, {"a": "],"}, list(range(20)),
]  # fmt: skip
KEYS = ["a", "b", 'x"a', "a]", "c", "\\", "ü", "n"]

long_ones = st.builds(lambda n, tail: IDS[:n] + tail, st.sampled_from([17, 255, 256, MANY]), st.sampled_from(TAILS))
values = st.dictionaries(st.sampled_from(KEYS), st.one_of(long_ones, st.sampled_from(OTHERS)), max_size=6)


def field_by_field(value: dict[str, Any]) -> bytes:
    """What is written where nothing is taken together."""
    return bytes(_fields(value, value, 0, Budget(None)))


@given(values)
def test_one_go_says_what_field_by_field_says(value: dict[str, Any]) -> None:
    """Whatever is in the lists, and whatever around them looks like them."""
    assert encode(value) == field_by_field(value)


@pytest.mark.parametrize("tail", TAILS, ids=repr)
@pytest.mark.parametrize("after", [{}, {"b": 1}, {"b": [1, NAN]}])
@pytest.mark.parametrize("before", [{}, {"first": {"a": [0.12345678901234568] * 16, "b": 1}}])
@pytest.mark.parametrize("items", [17, MANY])
def test_the_end_of_a_list(tail: list[Any], after: dict[str, Any], before: dict[str, Any], items: int) -> None:
    """Also behind a dict with a list of the same name, of as many bytes as few items can have."""
    value = {**before, "a": IDS[:items] + tail, **after}
    assert encode(value) == field_by_field(value)


def test_one_call_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An LLM turn costs one call of orjson for its inputs and one for its output, and is one piece."""
    calls = []
    real = orjson.dumps

    def counting(value: Any, *options: Any) -> bytes:
        calls.append(value)
        return real(value)

    values = (
        {"request_id": "r", "prompt_ids": IDS, "sampling_params": {"top_p": 1.0, "logprobs": True}},
        {"token_ids": IDS, "log_probs": [-0.25] * MANY, "text": "none", "stop_reason": None},
        {"log_probs": [-0.25] * MANY, "token_ids": IDS},
    )
    encode(dict.fromkeys(name for value in values for name in value))  # names are looked at once a process
    monkeypatch.setattr(long_lists, "_dumps", counting)
    for value in values:
        calls.clear()
        assert encode_pieces(value) == real(value)
        assert len(calls) == 1
