"""Tensors and models of a real torch, as tools and agent loops pass them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from verl_trace.schemas.side import SideFile
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
    "-inf in bf16": (
        lambda torch: torch.tensor([1.0, float("-inf")], dtype=torch.bfloat16),
        [1.0, {"_type": "float", "value": "-inf"}],
    ),
    "float8": (lambda torch: torch.tensor([1.5, 2], dtype=torch.float8_e4m3fn), [1.5, 2.0]),
    "bool": (lambda torch: torch.tensor([[True], [False]]), [[True], [False]]),
    "complex": (lambda torch: torch.tensor([1 + 2j]), ["(1+2j)"]),
    "parameter": (lambda torch: torch.nn.Parameter(torch.ones(2)), [1.0, 1.0]),
    "device": (lambda torch: torch.device("cpu"), "cpu"),
    "jagged": (
        lambda torch: torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])], layout=torch.jagged),
        [[1, 2], [3]],
    ),
    "nested": (
        lambda torch: torch.nested.nested_tensor([torch.ones(2), torch.tensor([float("nan")])]),
        [[1.0, 1.0], [NAN]],
    ),
    "meta": (lambda torch: torch.ones(2, 3, device="meta"), None),
    "sparse": (lambda torch: torch.eye(2).to_sparse(), None),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
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


class Kept(SideFile):
    """A side file in memory."""

    accelerators = False

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def keep(self, digest: str, content: bytes, *, in_background: bool) -> str:
        self.contents[digest] = content
        return ""


def test_conjugate_numbers_are_stored_as_they_are() -> None:
    """What is in memory is not: torch marks the tensor and leaves the numbers."""
    import torch

    side = Kept()
    tensor = torch.full((70_000,), 1 + 2j).conj()
    form = json.loads(encode(tensor, side))
    assert side.contents[form["blob"]["digest"]] == tensor.resolve_conj().numpy().tobytes()


def test_a_large_tensor_goes_to_the_side_file() -> None:
    """Of a type that numpy lacks, not contiguous, and in need of a gradient: every byte is there."""
    import torch

    side = Kept()
    tensor = torch.arange(140_000, dtype=torch.float32).reshape(2, 70_000).t().to(torch.bfloat16).requires_grad_()
    form = json.loads(encode({"routed_experts": tensor}, side))["routed_experts"]

    assert (form["_type"], form["shape"], form["dtype"], form["device"]) == ("Tensor", [70_000, 2], "bfloat16", "cpu")
    assert (form["summary"]["min"], form["summary"]["head"][:2]) == (0.0, [0.0, 70_144.0])
    (content,) = side.contents.values()
    back = torch.frombuffer(bytearray(content), dtype=torch.bfloat16).reshape(form["shape"])
    assert torch.equal(back, tensor.detach())


def test_verls_and_pandas_containers() -> None:
    """DataProto, TensorDict with objects beside tensors, and tables: names and values, never a repr."""
    import numpy as np
    import pandas as pd
    import torch
    from tensordict import NonTensorData, TensorDict
    from verl import DataProto

    data = DataProto.from_dict(
        tensors={"ids": torch.arange(4).reshape(2, 2)},
        non_tensors={"uid": np.array(["x", "y"], dtype=object)},
        meta_info={"step": 1},
    )
    assert json.loads(encode(data)) == {
        "_type": "DataProto",
        "batch": {"_type": "TensorDict", "batch_size": [2], "fields": {"ids": [[0, 1], [2, 3]]}},
        "non_tensor_batch": {"uid": ["x", "y"]},
        "meta_info": {"step": 1},
        "_class_name": "DataProto",
        "_bases": [],
    }
    mixed = TensorDict({"a": torch.ones(2), "note": NonTensorData({"k": [1]})}, batch_size=[])
    fields = json.loads(encode(mixed))["fields"]
    assert fields == {"a": [1.0, 1.0], "note": {"_type": "NonTensorData", "data": {"k": [1]}}}
    table = pd.DataFrame({"a": [1, 2], "b": ["x", None], "t": pd.to_datetime(["2026-01-01", None])}, index=["p", "q"])
    form = json.loads(encode([table]))[0]
    assert (form["shape"], form["index"], form["columns"]["a"]) == ([2, 3], ["p", "q"], [1, 2])
    assert form["columns"]["t"] == ["2026-01-01 00:00:00", "NaT"]
    assert json.loads(encode(pd.Series([1.5], name="s"))) == {
        "_type": "Series", "name": "s", "index": None, "values": [1.5],
    }  # fmt: skip
    assert json.loads(encode(pd.Timestamp("2026-01-02 03:04:05.000000006"))) == "2026-01-02 03:04:05.000000006"


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
