"""What a call of the model gave is counted and told whole: every answer to every request, of vLLM's own objects too."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from verl_trace.reader import iter_trajectories
from verl_trace.reader.answers import requests_of, tokens_in
from verl_trace.reader.conversation import conversation
from verl_trace.reader.digest_cache import digests
from verl_trace.reader.kinds import MODEL, kind_of, tokens_of
from verl_trace.reader.outlines import iter_outlines


def completion(index: int, ids: list[int], text: str = "") -> dict[str, Any]:
    """vLLM's, with the fields that could be mistaken for its own token ids."""
    flat = {"_type": "FlatLogprobs", "token_ids": [9] * 50, "logprobs": [-0.5] * 50}
    return {"_type": "CompletionOutput", "index": index, "text": text, "token_ids": ids, "logprobs": flat}


def request(name: str, *answers: dict[str, Any], prompt: str | None = "why?") -> dict[str, Any]:
    """vLLM's `RequestOutput`, with log probabilities of the prompt before the answers."""
    before = {
        "prompt": prompt,
        "prompt_token_ids": [1, 2],
        "prompt_logprobs": {"_type": "FlatLogprobs", "token_ids": [9]},
    }
    return {"_type": "RequestOutput", "request_id": name, **before, "outputs": list(answers), "finished": True}


STREAM = {"yielded": 2, "ended": "exhausted"}
# name -> output, whether a generator gave it, (text, number of ids) of each answer to each request
SHAPES: dict[str, tuple[Any, bool, list[list[tuple[str | None, int | None]]]]] = {
    "verl's": ({"token_ids": [5, 6], "response_text": "a"}, False, [[("a", 2)]]),
    "text": ("a", False, [[("a", None)]]),
    "nothing": (None, False, [[(None, None)]]),
    "a number": (0.5, False, [[(None, None)]]),
    "ids": ([5, 6, 7], False, [[(None, 3)]]),
    "no ids": ([], False, [[(None, 0)]]),
    "lists of ids": ([[5, 6], [], [7]], False, [[(None, 2)], [(None, 0)], [(None, 1)]]),
    "texts": (["a", "b"], False, [[("a", None)], [("b", None)]]),
    "verl's in a list": ([{"token_ids": [5], "text": "a"}, {"token_ids": [6, 7]}], False, [[("a", 1)], [(None, 2)]]),
    "verl's and what else": ([{"token_ids": [5, 6]}, {"seconds": 1.0}, 0.5], False, [[(None, 2)]]),
    "parts of a message": ([{"type": "text", "text": "a"}, {"type": "image"}], False, [[("a\n<image>", None)]]),
    "odd": ([{"x": 1}, 0.5], False, [[(None, None)]]),
    "one of vLLM": (request("0", completion(0, [5, 6], "a"), completion(1, [7], "b")), False, [[("a", 2), ("b", 1)]]),
    "vLLM's": (
        [request('0"', completion(0, [5, 6], "a"), completion(1, [7], "b")),
         request("1", completion(0, [8], '"_type":"c'))],
        False,
        [[("a", 2), ("b", 1)], [('"_type":"c', 1)]],
    ),
    "vLLM's without answer": ([request("0"), request("1", completion(0, [], ""))], False, [[], [("", 0)]]),
    "vLLM's pieces": (
        [request("0", completion(0, [5], "a")), request("0", completion(0, [5], "b")),
         request("0", completion(0, [], ""))],
        True, [[("ab", 2)]],
    ),
    "vLLM's so far": (
        [request("0", completion(0, [1], "a")), request("0", completion(0, [1, 12], "ab")),
         request("0", completion(0, [1, 12], "ab"))],
        True, [[("ab", 2)]],
    ),
    "vLLM's pieces of two": (
        [request("0", completion(0, [5], "a"), completion(1, [6], "x")),
         request("0", completion(1, [7], "y"), completion(0, [8], "b"))],
        True, [[("ab", 2), ("xy", 2)]],
    ),
    "pieces with a gap": (
        [request("0", completion(0, [5], "a")), {"_omitted": "too large", "_type": "items", "size": 3},
         request("0", completion(0, [6], "z"))],
        True, [[(None, 2)]],
    ),
    "so far with a gap": (
        [request("0", completion(0, [5], "a")), {"_omitted": "too large", "_type": "items", "size": 3},
         request("0", completion(0, [5, 6, 7], "abc"))],
        True, [[("abc", 3)]],
    ),
    "pieces of text": (["Hel", "lo"], True, [[("Hello", None)]]),
    "text so far": (["H", "Hel", "Hello"], True, [[("Hello", None)]]),
    "ids one by one": ([5, 6, 7], True, [[(None, 3)]]),
    "verl's so far": ([{"token_ids": [5]}, {"token_ids": [5, 6]}], True, [[(None, 2)]]),
    "what it returned": (
        {"yielded": ["a"], "returned": {"token_ids": [5, 6]}, "response_text": "ab"}, True, [[("ab", 2)]],
    ),
    "yielded with text": (
        {"yielded": [{"token_ids": [5]}, {"token_ids": [6]}], "response_text": "b"}, True, [[("b", 2)]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_every_answer_is_found_and_counted(name: str, spans: Any) -> None:
    """By whoever reads a whole trajectory, its digest, or only its outline."""
    output, streamed, expected = SHAPES[name]
    more = {"generator": STREAM} if streamed else {}
    end = spans.end(2, 1, op="Client.generate", output=output, **more)
    spans.sealed(
        spans.header(), spans.start(1), spans.start(2, 1, op="Client.generate"), end, spans.end(1), spans.close()
    )
    (trajectory,), _ = spans.read()
    (light,) = iter_trajectories(spans.run(), source=digests)
    (outline,) = iter_outlines(spans.run())
    calls = [trajectory.calls[1], light.calls[1]]
    found = [
        [(answer.text, None if answer.ids is None else len(answer.ids)) for answer in asked.answers]
        for asked in requests_of(output, streamed=streamed)
    ]
    counts = [count for answers in expected for _, count in answers if count is not None]
    total = sum(counts) if counts else None

    assert found == expected
    assert [*map(tokens_of, calls), outline.calls[1].tokens] == [total] * 3
    assert {*map(kind_of, calls), outline.calls[1].kind} == {MODEL}
    assert outline.figures.tokens == total


@pytest.mark.parametrize("op", ["Client.generate", "Client.steps"])
def test_a_stream_of_another_form_counts_the_same_for_all(op: str, spans: Any) -> None:
    """What is not known as an answer has the count of any object, also in its digest."""
    output = {"yielded": [{"step": {"token_ids": [5, 6]}}, {"step": {"token_ids": [7]}}], "response_text": "abc"}
    end = spans.end(2, 1, op=op, output=output, generator=STREAM)
    spans.sealed(spans.header(), spans.start(1), spans.start(2, 1, op=op), end, spans.end(1), spans.close())
    (trajectory,), _ = spans.read()
    (light,) = iter_trajectories(spans.run(), source=digests)
    (outline,) = iter_outlines(spans.run())

    assert [tokens_of(trajectory.calls[1]), tokens_of(light.calls[1]), outline.calls[1].tokens] == [2] * 3
    assert {kind_of(trajectory.calls[1]), kind_of(light.calls[1]), outline.calls[1].kind} == {MODEL}


@pytest.mark.parametrize("seed", range(10))
def test_streams_and_batches_of_vllm_by_chance(seed: int) -> None:
    """Counted without parsing, they have as many tokens as when they are parsed, and as were made."""
    chance = random.Random(seed)
    for _ in range(30):
        made, outputs = 0, []
        streamed = chance.random() < 0.5
        for number in range(1 if streamed else chance.randint(1, 4)):
            indices = range(chance.randint(1, 3))
            # ids of many lengths, never twice the same, since pieces and all so far could not be told apart then
            whole = {index: chance.sample(range(2000), chance.randint(2, 9)) for index in indices}
            made += sum(map(len, whole.values()))
            if not streamed:
                outputs.append(request(f"r{number}", *(completion(index, whole[index]) for index in indices)))
                continue
            all_so_far = chance.random() < 0.5
            for end in range(1, 10):
                begin = 0 if all_so_far else end - 1
                parts = [completion(index, whole[index][begin:end]) for index in indices]
                outputs.append(request("r0", *chance.sample(parts, len(parts))))
        data = orjson.dumps(outputs)
        asked = requests_of(outputs, streamed=streamed)

        assert sum(len(answer.ids or ()) for one in asked for answer in one.answers) == made
        assert tokens_in(b"..." + data + b"}", 3, 3 + len(data), by_name=True, streamed=streamed) == made


@pytest.mark.parametrize("output", [[1, 2, 3], [[1], [2]], [], ["a", "b"], "[1,2]", 7])
def test_lists_of_anything_else_have_no_tokens(output: Any) -> None:
    """Bare numbers are token ids where the call's name says that a model gave them, and nowhere else."""
    data = orjson.dumps(output)

    assert tokens_in(data, 0, len(data), by_name=False, streamed=False) is None
    assert tokens_in(data, 0, 0, by_name=True, streamed=False) is None


def said(spans: Any, output: Any, inputs: Any, **more: Any) -> list[tuple[Any, ...]]:
    """The turns of a trajectory that is one call of the model."""
    head = {**spans.ids(1, None, None), "op": "LLM.generate", "attributes": {}}
    spans.raw(spans.header(), spans.line("start", head, "inputs", inputs),
              spans.end(1, op="LLM.generate", output=output, **more), spans.close())  # fmt: skip
    (trajectory,), _ = spans.read()
    return [(turn.role, turn.text, turn.tokens, turn.request, turn.answer) for turn in conversation(trajectory)]


def test_a_batch_is_a_conversation_a_request(spans: Any) -> None:
    """Each prompt stands before its answers, with the number of its ids."""
    output = [request("0", completion(0, [5], "a"), completion(1, [6, 7], "b"), prompt="p"),
              request("1", completion(0, [8], "c"), completion(1, [9], "d"), prompt=None)]  # fmt: skip

    assert said(spans, output, {"prompts": ["p", {"prompt": "q"}]}) == [
        ("prompt", "p", 2, 0, None), ("assistant", "a", 1, 0, 0), ("assistant", "b", 2, 0, 1),
        ("prompt", "q", 2, 1, None), ("assistant", "c", 1, 1, 0), ("assistant", "d", 1, 1, 1),
    ]  # fmt: skip


def test_a_batch_of_one_is_a_turn(spans: Any) -> None:
    """As of any call of the model."""
    output = [request("0", completion(0, [5], "a"), prompt="p")]

    assert said(spans, output, {"prompts": ["p"]}) == [
        ("prompt", "p", 2, None, None),
        ("assistant", "a", 1, None, None),
    ]


def test_a_stream_is_a_turn(spans: Any) -> None:
    """However many pieces it came in."""
    output = [request("0", completion(0, [5], "a"), prompt="p"), request("0", completion(0, [6], "b"), prompt="p")]

    assert said(spans, output, {"prompt": "p"}, generator=STREAM) == [
        ("prompt", "p", 2, None, None), ("assistant", "ab", 2, None, None),
    ]  # fmt: skip


def test_messages_of_a_batch(spans: Any) -> None:
    """What went into `LLM.chat` is known by role."""
    inputs = {"messages": [[{"role": "system", "content": "s"}, {"role": "user", "content": "p"}],
                           [{"role": "user", "content": "q"}]]}  # fmt: skip
    output = [request(name, completion(0, [5], name), prompt="<marks>") for name in "ab"]

    assert [(role, text, number) for role, text, _, number, _ in said(spans, output, inputs)] == [
        ("system", "s", 0), ("user", "p", 0), ("assistant", "a", 0), ("user", "q", 1), ("assistant", "b", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "roles"),
    [
        ({"prompt": "p"}, "prompt 0.0 0.1"), ({"prompt_ids": [1, 2]}, "prompt 0.0 0.1"),
        ({"messages": [{"role": "user", "content": "p"}, {"role": "user", "content": "q"}]}, "user user 0.0 0.1"),
        ({"prompts": ["p", "q"]}, "prompt 0.0 prompt 1.0"), ({"prompt_ids": [[1], [2]]}, "prompt 0.0 prompt 1.0"),
    ],
)  # fmt: skip
def test_several_texts_answer_one_prompt_or_several(inputs: Any, roles: str, spans: Any) -> None:
    """A list of as many prompts went in, or one prompt was answered twice."""
    turns = said(spans, ["a", "b"], inputs)

    assert " ".join(f"{number}.{which}" if which is not None else role for role, _, _, number, which in turns) == roles


def test_ids_take_the_text_of_the_whole(spans: Any) -> None:
    """`generate` of verl 0.5 gives bare ids, of which no text is recorded; the trajectory has that of the same ids."""
    start = {**spans.ids(2, 1, None), "op": "Manager.generate", "attributes": {}}
    whole = {"prompt_ids": [1, 2], "response_ids": [5, 6], "prompt_text": "p", "response_text": "a"}
    for number, ids in ((1, [5, 6]), (2, [5, 7])):
        spans.raw(
            spans.header(number), spans.start(1), spans.line("start", start, "inputs", {"prompt_ids": [1, 2]}),
            spans.end(2, 1, op="Manager.generate", output=ids), spans.end(1, output=whole), spans.close(),
        )  # fmt: skip
        (trajectory,), _ = spans.read()
        assert [(turn.role, turn.text, turn.tokens) for turn in conversation(trajectory)] == [
            ("prompt", "p", 2), ("assistant", "a" if ids == [5, 6] else None, 2),
        ]  # fmt: skip
