"""Objects of inference engines on a line: whole and readable, however many. These have the shapes of vLLM 0.32's and
SGLang 0.5's; the real ones of vLLM are tested in tests/e2e/vllm."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any

import msgspec

from verl_trace.schemas.values import encode


def form(value: Any) -> Any:
    """The value as a reader of the line gets it."""
    return json.loads(encode(value))


class Kind(enum.Enum):
    CUMULATIVE = 0


class Sampling(msgspec.Struct, omit_defaults=True, dict=True):
    """Like vLLM's SamplingParams: defaults left out when msgspec encodes it, private fields, a place for caches."""

    temperature: float = 1.0
    logprobs: int | None = None
    stop: list[str] = []
    kind: Kind = Kind.CUMULATIVE
    logit_bias: dict[int, float] | None = None
    _all_stop_token_ids: set[int] = msgspec.field(default_factory=set)


class Child(Sampling):
    extra: Any = None


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class Completion:
    index: int
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None


class Output:
    """Like vLLM's RequestOutput: a plain class."""

    def __init__(self, request_id: str, outputs: list[Completion], prompt_logprobs: Any = None) -> None:
        self.request_id = request_id
        self.outputs = outputs
        self.prompt_logprobs = prompt_logprobs
        self.fields = {f"field_{number}": number for number in range(15)}
        self.__dict__.update(self.fields)

    def __repr__(self) -> str:
        raise AssertionError("no code of the object runs")


# the recorder knows such classes by where they are defined
Output.__module__ = "vllm.outputs"


class Pooled(Output):
    """Like those of other modules that build on vLLM's."""


def test_a_struct_has_every_field_in_its_order() -> None:
    """Defaults and private fields too, though msgspec itself would leave defaults out."""
    assert form(Sampling(logprobs=2, logit_bias={7: 0.5}, _all_stop_token_ids={3})) == {
        "_type": "Sampling",
        "temperature": 1.0,
        "logprobs": 2,
        "stop": [],
        "kind": 0,
        "logit_bias": {"7": 0.5},
        "_all_stop_token_ids": [3],
    }
    assert list(form(Child(extra=1))) == ["_type", *Child.__struct_fields__]


def test_what_a_struct_carries_besides_is_there() -> None:
    """An attribute in its dictionary, a nested one, and keys of credentials are treated as everywhere."""
    params = Sampling(stop=["x"])
    params.__dict__["api_key"] = "secret"
    params.__dict__["nested"] = Child(extra=Sampling())
    found = form({"params": params})["params"]

    assert found["api_key"] == "REDACTED"
    assert found["nested"]["extra"]["_type"] == "Sampling"


def test_maps_of_log_probabilities() -> None:
    """`{token id: Logprob}` keeps every token, numbers that JSON lacks included."""
    first = {11: Logprob(-0.5, 1, "a"), 12: Logprob(float("-inf"), 2)}
    output = Output("r", [Completion(0, [11], [first])], prompt_logprobs=[None, first])
    found = form(output)

    assert found["prompt_logprobs"][0] is None
    for logprobs in (found["prompt_logprobs"][1], found["outputs"][0]["logprobs"][0]):
        assert {
            token: (entry["logprob"], entry["rank"], entry["decoded_token"]) for token, entry in logprobs.items()
        } == {
            "11": (-0.5, 1, "a"),
            "12": ({"_type": "float", "value": "-inf"}, 2, None),
        }


def test_a_batch_is_not_cut() -> None:
    """Outputs and parameters of 500 requests: each with every field, where plain objects would end at a bound."""
    outputs = [Output(str(n), [Completion(0, [n], None)]) for n in range(500)]
    batch = {
        "outputs": outputs,
        "params": [Sampling(logprobs=n) for n in range(500)],
        "pooled": [Pooled("p", [])] * 200,
    }
    found = form(batch)

    assert b"_omitted" not in encode(batch)
    assert [output["outputs"][0]["token_ids"] for output in found["outputs"]] == [[n] for n in range(500)]
    assert all(len(output) == 20 for output in found["outputs"])
    assert [one["logprobs"] for one in found["params"]] == list(range(500))


def test_deep_inside_other_values() -> None:
    """Ten levels down an output is as whole as at the top."""
    value: Any = Output("deep", [Completion(0, [1], None)])
    for _ in range(10):
        value = [value]
    found = form(value)
    for _ in range(10):
        found = found[0]

    assert found == form(Output("deep", [Completion(0, [1], None)]))


def test_a_cycle_ends() -> None:
    """An output that holds itself is marked where it does."""
    output = Output("loop", [])
    output.prompt_logprobs = [output]

    assert form(output)["prompt_logprobs"] == [{"_omitted": "cycle", "_type": "Output"}]


def test_answers_of_sglang() -> None:
    """Its dict with `meta_info`: tuples of (log probability, token id, text) become lists, in order, none missing."""
    answer: dict[str, Any] = {
        "text": "hi",
        "output_ids": [5, 6],
        "meta_info": {
            "id": "abc",
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "cached_tokens": 0,
            "e2e_latency": 0.25,
            "weight_version": "default",
            "input_token_logprobs": [(None, 1, None), (-1.5, 2, "b")],
            "output_token_logprobs": [(-0.25, 5, "h"), (-0.5, 6, None)],
            "output_top_logprobs": [[(-0.25, 5, "h"), (float("-inf"), 9, None)], None],
        },
    }
    expected = json.loads(json.dumps({**answer, "meta_info": {**answer["meta_info"], "output_top_logprobs": []}}))
    expected["meta_info"]["output_top_logprobs"] = [
        [[-0.25, 5, "h"], [{"_type": "float", "value": "-inf"}, 9, None]],
        None,
    ]

    assert form(answer) == expected
