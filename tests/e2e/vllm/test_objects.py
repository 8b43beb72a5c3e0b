"""vLLM's real objects: made by its engines and recorded from its own methods, and made by hand with every field set."""

from __future__ import annotations

import enum
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.reader.outlines import iter_outlines
from verl_trace.schemas.values import encode
from verl_trace.viewer.chat import chat_lines

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]
PROMPTS, ANSWERS, TOKENS = 3, 2, 8


@pytest.fixture(scope="module")
def vllm() -> Any:
    """The package, imported without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm
        import vllm.logprobs
        import vllm.outputs
        import vllm.sampling_params
    return vllm


@pytest.fixture(scope="module")
def folder(run: Callable[..., str], model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's folder that `examples/vllm_direct.py` left."""
    folder = tmp_path_factory.mktemp("direct")
    run(folder, ROOT / "examples/vllm_direct.py", str(model))
    return folder / "runs/vllm-direct"


@pytest.fixture(scope="module")
def recorded(folder: Path, records: Callable[[Path], Any]) -> Any:
    """What is in it."""
    return records(folder)


def names(kind: Any) -> set[str]:
    """The fields of a dataclass, a Struct, or a class whose `__init__` keeps its arguments."""
    if is_dataclass(kind):
        return {field.name for field in fields(kind)}
    if hasattr(kind, "__struct_fields__"):
        return set(kind.__struct_fields__)
    return set(kind.__init__.__code__.co_varnames[1 : kind.__init__.__code__.co_argcount])


def lost(value: Any, form: Any, place: str = "value") -> Iterator[str]:
    """Where the form of a value on a line lacks something of the value."""
    if isinstance(value, enum.Enum):
        if value.name not in str(form) and form != value.value:
            yield f"{place}: {value} is {form}"
    elif hasattr(value, "tolist"):
        yield from lost(value.tolist(), form, place)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from lost(inner, form[str(key)], f"{place}[{key}]") if str(key) in form else [f"{place}[{key}]"]
    elif isinstance(value, (list, tuple)):
        if len(value) != len(form):
            yield f"{place}: {len(value)} became {len(form)}"
        for number, (inner, shown) in enumerate(zip(value, form, strict=False)):
            yield from lost(inner, shown, f"{place}[{number}]")
    elif isinstance(value, set):
        if sorted(value) != sorted(form):
            yield f"{place}: {value} is {form}"
    elif value is None or isinstance(value, (bool, int, float, str)):
        if form != value and form != {"_type": "float", "value": repr(value)}:
            yield f"{place}: {value!r} is {form!r}"
    elif not isinstance(form, dict) or "_omitted" in form:
        yield f"{place}: {type(value).__name__} is {form!r:.100}"
    else:
        for name in names(type(value)):
            inner = getattr(value, name)
            yield from lost(inner, form[name], f"{place}.{name}") if name in form else [f"{place}.{name}"]


def test_calls_of_both_engines(recorded: Any) -> None:
    """`LLM.generate` is one call; each stream of `AsyncLLM.generate` is one, below the call that reads it."""
    starts = {head["id"]: head for head in recorded.of("start")}
    streams = recorded.of("start", op="AsyncLLM.generate")

    assert Counter(head["op"] for head in starts.values()) == {"LLM.generate": 1, "answer": 3, "AsyncLLM.generate": 3}
    assert [starts[head["parent_id"]]["op"] for head in streams] == ["answer"] * PROMPTS
    assert {head["status"] for head in recorded.of("end")} == {"success"}
    assert len(recorded.of("end")) == len(starts)


def test_outputs_of_a_batch_are_whole(recorded: Any, vllm: Any) -> None:
    """Every request, answer, token and log probability of `LLM.generate`, with all fields of their classes."""
    (output,) = (head["payload"] for head in recorded.of("end", op="LLM.generate"))

    assert len(output) == PROMPTS
    for request in output:
        assert names(vllm.outputs.RequestOutput) <= request.keys()
        assert len(request["prompt_logprobs"]) == len(request["prompt_token_ids"])
        assert len(request["outputs"]) == ANSWERS
        for answer in request["outputs"]:
            assert names(vllm.outputs.CompletionOutput) <= answer.keys()
            assert len(answer["token_ids"]) == len(answer["logprobs"]) == TOKENS
            for token, logprobs in zip(answer["token_ids"], answer["logprobs"], strict=True):
                assert str(token) in logprobs
                assert all(names(vllm.logprobs.Logprob) <= entry.keys() for entry in logprobs.values())
                assert all(type(entry["logprob"]) is float and entry["logprob"] <= 0 for entry in logprobs.values())


def test_streams_are_whole(recorded: Any, vllm: Any) -> None:
    """The record of a stream holds each output that was yielded; together they are the answer that came of them."""
    answers = {head["parent_id"]: head["id"] for head in recorded.of("start", op="AsyncLLM.generate")}
    ends = {head["id"]: head["payload"] for head in recorded.of("end")}

    for answer, stream in answers.items():
        assert sum(len(output["outputs"][0]["token_ids"]) for output in ends[stream]) == TOKENS
        assert "".join(output["outputs"][0]["text"] for output in ends[stream]) == ends[answer]
        assert [output["finished"] for output in ends[stream]][-1] is True
        assert all(names(vllm.outputs.RequestOutput) <= output.keys() for output in ends[stream])


def test_every_answer_is_read_as_one(folder: Path, recorded: Any) -> None:
    """Tokens of all prompts' answers, a conversation for each of them, and one for each stream."""
    (run,) = find_runs(folder)
    outlines = {outline.calls[-1].op: outline.figures for outline in iter_outlines(run)}
    (batch,) = (head["payload"] for head in recorded.of("end", op="LLM.generate"))
    texts = [answer["text"] for request in batch for answer in request["outputs"]]
    lines = [line for trajectory in iter_trajectories(run) for line in chat_lines(trajectory)]
    said = [[message["content"] for message in line["messages"]] for line in lines]
    prompts = [prompt for prompt in ("the answer is", "a number is", "is the answer a number") for _ in range(ANSWERS)]

    assert {op: figures.tokens for op, figures in outlines.items()} == {
        "LLM.generate": PROMPTS * ANSWERS * TOKENS,
        "AsyncLLM.generate": TOKENS,
    }
    assert said[: PROMPTS * ANSWERS] == [list(pair) for pair in zip(prompts, texts, strict=True)]
    streams = {head["payload"] for head in recorded.of("end", op="answer")}
    assert len(said) == PROMPTS * ANSWERS + PROMPTS
    assert {answer for _, answer in said[PROMPTS * ANSWERS :]} == streams


def test_parameters_are_whole(recorded: Any, vllm: Any) -> None:
    """`SamplingParams` with each of its fields, as they were when the call began."""
    (batch,) = (head["payload"]["sampling_params"] for head in recorded.of("start", op="LLM.generate"))
    streams = [head["payload"]["sampling_params"] for head in recorded.of("start", op="AsyncLLM.generate")]

    assert names(vllm.SamplingParams) | {"_type"} == batch.keys()
    assert (batch["n"], batch["max_tokens"], batch["logprobs"], batch["prompt_logprobs"]) == (ANSWERS, TOKENS, 2, 1)
    # vLLM's RequestOutputKind.DELTA
    assert {params["output_kind"] for params in streams} == {1}


def test_nothing_in_the_records_was_left_out(recorded: Any) -> None:
    """No value was cut, and none became a Python repr."""
    text = json.dumps([head["payload"] for head in recorded.heads])

    assert "_omitted" not in text
    assert " object at 0x" not in text
    assert "Output(" not in text


def make_objects(vllm: Any) -> dict[str, Any]:
    """Objects with as much in them as they can hold; whole batches of the large ones."""
    import numpy as np
    import torch

    outputs, logprob = vllm.outputs, vllm.logprobs.Logprob
    maps = [{n: logprob(-0.5, 1, "a"), 7: logprob(float("-inf"), 3), 8: logprob(-1.5, 2, "é")} for n in range(100, 140)]
    flat = vllm.logprobs.FlatLogprobs()
    flat.extend(maps)

    def completion(logprobs: Any) -> Any:
        more = {"finish_reason": "stop", "stop_reason": 2, "routed_experts": np.arange(12).reshape(3, 2, 2)}
        return outputs.CompletionOutput(0, "text", list(range(40)), -20.0, logprobs, **more)

    def request(number: int) -> Any:
        done = [completion(maps), completion(flat)]
        return outputs.RequestOutput(str(number), "p", [1, 2], [None, maps[0]], done, True, num_cached_tokens=1)

    params = vllm.SamplingParams(
        n=2,
        seed=4,
        stop=["a"],
        stop_token_ids=[5],
        logprobs=3,
        logit_bias={3: 0.5},
        bad_words=["b"],
        extra_args={"x": 1},
    )
    pooled = outputs.PoolingOutput(torch.tensor([0.5, float("nan")]))
    return {
        "one request": request(0),
        "requests": [request(number) for number in range(200)],
        "parameters": params,
        "many parameters": [params] * 100,
        "grammar": vllm.SamplingParams(structured_outputs=vllm.sampling_params.StructuredOutputsParams(json={"a": 1})),
        "pooling parameters": vllm.PoolingParams(task="embed"),
        "pooling": outputs.PoolingRequestOutput("r", pooled, [1, 2], num_cached_tokens=0, finished=True),
        "embedding": outputs.EmbeddingRequestOutput(
            "r", outputs.EmbeddingOutput([0.5, 0.25]), [1, 2], num_cached_tokens=0, finished=True
        ),
    }


def test_every_field_of_every_object(vllm: Any) -> None:
    """What is in an object is on the line: no field, token, number or text is missing."""
    objects = make_objects(vllm)
    problems = {name: list(lost(value, json.loads(encode(value))))[:5] for name, value in objects.items()}

    assert problems == {name: [] for name in objects}
    # a check that finds nothing must be known to find something
    assert list(lost(objects["one request"], {"request_id": "0"}))
