"""token2text: which ids are decoded, from where, and that nobody waits for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from verl_trace import rollout_trace_op
from verl_trace.recorder.token2text import lent_tokenizer


class Tokenizer:
    def decode(self, ids: list[int]) -> str:
        return " ".join(f"<{i}>" for i in ids)


class Inner(BaseModel):
    score: float = 0.5


class Turn(BaseModel):
    token_ids: list[int] = field(default_factory=lambda: [4, 5])
    inner: Inner = Inner()


@dataclass
class Rollout:
    prompt_ids: list[int]
    response_ids: list[int]


class Model:
    def __init__(self, output: Any, tokenizer: Any = None) -> None:
        self.output = output
        if tokenizer is not None:
            self.tokenizer = tokenizer

    @rollout_trace_op
    async def generate(self, request_id: str, *, prompt_ids: Any = None) -> Any:
        return self.output

    @rollout_trace_op
    def generate_sync(self, prompt_ids: Any = None) -> Any:
        return self.output


def run(recording: Any, model: Model, **kwargs: Any) -> tuple[Any, dict[str, Any], dict[str, Any] | None]:
    import asyncio

    recording.start(token2text=True)
    result = asyncio.run(model.generate("r", **kwargs))
    records = recording.finish("end", "text")
    texts = [r for r in records if r["kind"] == "text"]
    return result, records[0], texts[0]["output"] if texts else None


def test_prompt_from_the_inputs_and_response_from_token_ids(unstarted: Any) -> None:
    """A turn of an LLM client: prompt ids are an input, response ids are called token_ids."""
    turn = Turn(token_ids=[4, 5])
    result, end, text = run(unstarted, Model(turn, Tokenizer()), prompt_ids=[1, 2])

    assert result is turn
    assert end["text"] is True
    assert end["output"] == {"token_ids": [4, 5], "inner": {"score": 0.5}}
    assert text == {"prompt_text": "<1> <2>", "response_text": "<4> <5>"}


def test_both_from_the_output(unstarted: Any) -> None:
    """The output of an agent loop carries both; they win over the inputs."""
    _, _, text = run(unstarted, Model(Rollout([7], [8]), Tokenizer()), prompt_ids=[1])
    assert text == {"prompt_text": "<7>", "response_text": "<8>"}


def test_a_dict_output(unstarted: Any) -> None:
    """A dict is looked into like an object and comes back unchanged."""
    output = {"response_ids": [3], "x": 1}
    result, end, text = run(unstarted, Model(output, Tokenizer()))

    assert result is output == {"response_ids": [3], "x": 1}
    assert end["output"] == {"response_ids": [3], "x": 1}
    assert text == {"response_text": "<3>"}


@pytest.mark.parametrize("output", [None, (1, 2), {"neither": 1}, "text", 3])
def test_outputs_without_ids_are_recorded_as_they_are(unstarted: Any, output: Any) -> None:
    """None, tuples, dicts with neither field: no text, no exception."""
    _, end, text = run(unstarted, Model(output, Tokenizer()))

    assert text is None
    assert end["text"] is False
    assert end["output"] == (list(output) if isinstance(output, tuple) else output)


def test_an_object_without_a_tokenizer(unstarted: Any) -> None:
    """Nothing to decode with: ids as they are, with Weave's tags of the model."""
    _, end, text = run(unstarted, Model(Turn(token_ids=[1])), prompt_ids=[1])

    assert text is None
    assert end["output"]["_type"] == "Turn"
    assert end["output"]["_bases"] == ["BaseModel"]


def test_a_lent_tokenizer(unstarted: Any) -> None:
    """An object without a tokenizer uses the one that was lent to its trajectory; the result stays the same object."""
    lent = lent_tokenizer.set(Tokenizer())
    try:
        output = Turn(token_ids=[1])
        result, _, text = run(unstarted, Model(output), prompt_ids=[2])
    finally:
        lent_tokenizer.reset(lent)

    assert result is output
    assert output.model_dump() == Turn(token_ids=[1]).model_dump()
    assert text == {"prompt_text": "<2>", "response_text": "<1>"}


def test_a_plain_object_is_untouched(unstarted: Any) -> None:
    """The attributes of the object that the caller gets are those that it had."""
    output = SimpleNamespace(response_ids=[1], other="x")
    result, end, text = run(unstarted, Model(output, Tokenizer()))

    assert vars(result) == {"response_ids": [1], "other": "x"}
    assert end["output"] == {"response_ids": [1], "other": "x"}
    assert text == {"response_text": "<1>"}


def test_the_caller_does_not_wait_for_decoding(unstarted: Any) -> None:
    """The call returns, with its end record on disk, while the tokenizer is still busy."""
    go = threading.Event()

    class Slow(Tokenizer):
        def decode(self, ids: list[int]) -> str:
            assert go.wait(10)
            return "late"

    unstarted.start(token2text=True)
    Model({"response_ids": [1]}, Slow()).generate_sync()
    assert [r["kind"] for r in unstarted.records()] == ["header", "start", "end"]
    go.set()
    assert unstarted.finish("text")[0]["output"] == {"response_text": "late"}


def test_a_tokenizer_that_raises(unstarted: Any, capfd: Any) -> None:
    """The ids are recorded, the text is not, one warning says why, and the reader is not left waiting."""

    class Broken:
        def decode(self, ids: list[int]) -> str:
            raise OverflowError("id out of range")

    _, end, text = run(unstarted, Model({"response_ids": [1]}, Broken()))
    assert end["output"] == {"response_ids": [1]}
    assert text == {}
    assert "id out of range" in capfd.readouterr().err


def test_ids_changed_after_the_call(unstarted: Any) -> None:
    """Text is made from the ids of the moment of return."""
    go = threading.Event()

    class Slow(Tokenizer):
        def decode(self, ids: list[int]) -> str:
            assert go.wait(10)
            return super().decode(ids)

    ids = [1]
    unstarted.start(token2text=True)
    Model({"response_ids": ids}, Slow()).generate_sync()
    ids.append(2)
    go.set()
    assert unstarted.finish("text")[0]["output"] == {"response_text": "<1>"}
