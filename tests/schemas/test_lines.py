"""Splitting a line into head and payload."""

from __future__ import annotations

import contextlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_trace.schemas.lines import parse_line

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.text(), json_values, st.dictionaries(st.text(), json_values, max_size=3))
def test_the_payload_is_cut_out_byte_for_byte(op: str, payload: object, attributes: dict[str, object]) -> None:
    """Whatever strings and keys stand before it, `"inputs":` and `"bytes":` among them."""
    body = orjson.dumps(payload)
    head = orjson.dumps({"op": op, "attributes": {**attributes, "inputs": 1, "bytes": 2}})
    line = b'{"kind":"start","bytes":%d,' % len(body) + head[1:-1] + b',"inputs":' + body + b"}\n"

    parsed = parse_line(line)

    assert parsed.kind == "start"
    assert parsed.payload == body
    assert parsed.head["op"] == op
    assert "inputs" not in parsed.head


def test_keys_behind_the_payload_or_a_wrong_length_cost_only_speed() -> None:
    """A line of another shape is parsed whole, with the same result."""
    for line in (
        b'{"kind":"end","bytes":99,"id":"x","output":{"a":1}}',
        b'{"id":"x","kind":"end","output":{"a":1}}',
        b'{"kind":"end","bytes":7,"output":{"a":1},"id":"x"}',
    ):
        parsed = parse_line(line)
        assert parsed.payload == b'{"a":1}'
        assert parsed.head["id"] == "x"


@pytest.mark.parametrize(
    "line", [b"", b"[1]", b'{"kind":"start"', b'"text"', b"\0\0\0\0", b'{"kind":"start","bytes":1,']
)
def test_what_is_no_record_raises_value_error(line: bytes) -> None:
    """Damage is a ValueError, nothing else."""
    with pytest.raises(ValueError, match=r"JSON|[Ii]nput|unexpected"):
        parse_line(line)


@given(st.binary(max_size=200))
def test_any_bytes_either_parse_or_raise_value_error(data: bytes) -> None:
    """No other exception leaves the parser."""
    with contextlib.suppress(ValueError):
        parse_line(b'{"kind":"start","bytes":' + data)
