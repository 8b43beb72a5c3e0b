"""Tensors and models of a real torch, as tools and agent loops pass them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from verl_trace.schemas.values import encode

pytestmark = pytest.mark.e2e

NAN = {"_type": "float", "value": "nan"}
# functions of the module torch: it is there only where these tests run, not where they are collected
ROWS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "ids": (lambda torch: torch.tensor([1, 2, 3]), [1, 2, 3]),
    "bf16": (lambda torch: torch.tensor([0.5, 1.0], dtype=torch.bfloat16), [0.5, 1.0]),
    "0-d": (lambda torch: torch.tensor(2.5), 2.5),
    "0-d nan": (lambda torch: torch.tensor(float("nan")), NAN),
    "nan inside": (lambda torch: torch.tensor([1.0, float("nan")]), [1.0, NAN]),
    "needs grad": (lambda torch: torch.ones(2, requires_grad=True), [1.0, 1.0]),
    "shape": (lambda torch: torch.zeros(2, 3).shape, [2, 3]),
    "dtype": (lambda torch: torch.float16, "torch.float16"),
    "meta": (lambda torch: torch.ones(2, 3, device="meta"), None),
    "sparse": (lambda torch: torch.eye(2).to_sparse(), None),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_tensor_becomes_numbers_or_a_description(name: str) -> None:
    """Content on the CPU, shape and type and device where there is none to read; the line is valid JSON."""
    import torch

    make, expected = ROWS[name]
    value = make(torch)
    form = json.loads(encode({"value": value, "beside": 1}))

    assert form["beside"] == 1
    if expected is None:
        assert form["value"]["shape"] == list(value.shape)
        assert form["value"]["device"] == str(value.device)
    else:
        assert form["value"] == expected


def test_models_and_tokenizers_are_named(model: str) -> None:
    """An argument with weights or a vocabulary is its class, in a few bytes, wherever it lies."""
    import torch
    from transformers import AutoTokenizer

    class Policy(torch.nn.Sequential):
        pass

    policy = Policy(torch.nn.Linear(1000, 1000))
    values = {"policy": policy, "inside": [{"layer": policy[0]}], "tokenizer": AutoTokenizer.from_pretrained(model)}
    form = json.loads(encode({**values, "beside": 1}))

    assert form["policy"] == f"<{__name__}.Policy>"
    assert form["inside"] == [{"layer": "<torch.nn.modules.linear.Linear>"}]
    assert form["tokenizer"].startswith("<transformers.")
    assert form["beside"] == 1
