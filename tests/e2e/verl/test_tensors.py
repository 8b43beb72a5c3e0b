"""Tensors of a real torch, as tools and agent loops pass them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from verl_trace.schemas.values import encode

pytestmark = pytest.mark.e2e

NAN = {"_type": "float", "value": "nan"}
ROWS: list[tuple[str, Any, Any]] = [
    ("ids", torch.tensor([1, 2, 3]), [1, 2, 3]),
    ("bf16", torch.tensor([0.5, 1.0], dtype=torch.bfloat16), [0.5, 1.0]),
    ("0-d", torch.tensor(2.5), 2.5),
    ("0-d nan", torch.tensor(float("nan")), NAN),
    ("nan inside", torch.tensor([1.0, float("nan")]), [1.0, NAN]),
    ("needs grad", torch.ones(2, requires_grad=True), [1.0, 1.0]),
    ("shape", torch.zeros(2, 3).shape, [2, 3]),
    ("dtype", torch.float16, "torch.float16"),
    ("meta", torch.ones(2, 3, device="meta"), None),
    ("sparse", torch.eye(2).to_sparse(), None),
]


@pytest.mark.parametrize(("value", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_tensor_becomes_numbers_or_a_description(value: Any, expected: Any) -> None:
    """Content on the CPU, shape and type and device where there is none to read; the line is valid JSON."""
    form = json.loads(encode({"value": value, "beside": 1}))

    assert form["beside"] == 1
    if expected is None:
        assert form["value"]["shape"] == list(value.shape)
        assert form["value"]["device"] == str(value.device)
    else:
        assert form["value"] == expected
