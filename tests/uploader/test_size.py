"""The bytes that the server will count, against what it does."""

from __future__ import annotations

import json

import orjson
from hypothesis import given
from hypothesis import strategies as st

from verl_trace.uploader.size import stored_size

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=30,
)


@given(VALUES)
def test_equals_what_the_server_writes(value: object) -> None:
    """Text of any alphabet, nested lists and dicts: the length of `json.dumps`."""
    assert stored_size(orjson.dumps(value)) == len(json.dumps(value))


def test_token_ids_and_logprobs() -> None:
    """A turn's ids and log-probs, to one in a hundred (Python writes 1e-07 for 1e-7)."""
    value = {"ids": list(range(150_000, 154_096)), "logprobs": [-(n + 1) / 7e6 for n in range(512)]}
    assert abs(stored_size(orjson.dumps(value)) / len(json.dumps(value)) - 1) < 0.01
