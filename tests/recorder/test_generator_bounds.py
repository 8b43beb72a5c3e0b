"""What a generator's items may cost while they wait for its end, and what is made of them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from verl_trace import rollout_trace_op
from verl_trace.recorder import generators


def test_an_endless_generator_is_bounded(unstarted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit items are counted and the last one kept, with a mark where the others were."""
    monkeypatch.setenv("VERL_TRACE_YIELD_BYTES", "1k")
    unstarted.start()

    @rollout_trace_op
    def endless() -> Generator[int, None, None]:
        number = 0
        while True:
            yield number
            number += 1

    reader = endless()
    for _ in range(5000):
        last = next(reader)
    reader.close()
    (end,) = unstarted.finish("end")
    *kept, mark, final = end["output"]
    assert kept == list(range(len(kept)))
    assert end["bytes"] < 1200
    assert (final, last) == (4999, 4999)
    assert mark["_omitted"] == "items beyond VERL_TRACE_YIELD_BYTES"
    assert len(kept) + mark["size"] + 1 == 5000 == end["generator"]["yielded"]


def test_all_generators_together_are_bounded(recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all of them hold has a limit too, and is given back by each end."""
    monkeypatch.setattr(generators, "MAX_HELD", 300)

    @rollout_trace_op
    def texts() -> Generator[str, None, None]:
        for _ in range(3):
            yield "x" * 98

    first, second = texts(), texts()
    for _ in range(2):
        next(first), next(second)
    assert len(list(second)) == 1
    assert len(list(first)) == 1
    assert list(texts()) == ["x" * 98] * 3
    outputs = [e["output"] for e in recording.finish("end")]
    assert [len(o) for o in outputs] == [3, 3, 3]
    assert [[type(item) for item in o] for o in outputs] == [[str, dict, str]] * 2 + [[str] * 3]
    assert generators._held == 0


def test_an_end_that_fails_gives_its_items_back(recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trouble of ours at the end of many generators does not take the room of all later ones."""

    @rollout_trace_op
    def fails() -> Generator[str, None, None]:
        yield "x" * 98
        raise KeyError

    monkeypatch.setattr(generators, "failure", lambda error: 1 / 0)
    with pytest.raises(KeyError):
        list(fails())
    assert recording.finish("close")[0]["counters"]["reasons"] == {"internal error finishing": 1}
    assert generators._held == 0


def test_dropped_fields_of_items(unstarted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """VERL_TRACE_DROP_FIELDS reaches into what is yielded and returned."""
    monkeypatch.setenv("VERL_TRACE_DROP_FIELDS", "logprobs")
    unstarted.start()

    @rollout_trace_op
    def stream() -> Generator[dict[str, Any], None, dict[str, Any]]:
        yield {"logprobs": [1.0], "text": "a"}
        return {"logprobs": [2.0]}

    list(stream())
    output = unstarted.finish("end")[0]["output"]
    assert output["yielded"][0]["text"] == "a"
    assert "_omitted" in output["yielded"][0]["logprobs"]
    assert "_omitted" in output["returned"]["logprobs"]


def test_text_of_what_comes_last(unstarted: Any) -> None:
    """With token2text, the last item or the value returned is decoded, beside the items."""

    class Tokenizer:
        def decode(self, ids: list[int]) -> str:
            return "".join(map(chr, ids))

    class Model:
        tokenizer = Tokenizer()

        @rollout_trace_op
        async def stream(self, prompt_ids: list[int]) -> AsyncGenerator[dict[str, list[int]], None]:
            for end in (1, 2):
                yield {"token_ids": [104, 105][:end]}

        @rollout_trace_op
        def batch(self) -> Generator[int, None, dict[str, list[int]]]:
            yield 1
            return {"response_ids": [111]}

    async def main() -> None:
        async for _ in Model().stream([72]):
            pass

    unstarted.start(token2text=True)
    asyncio.run(main())
    list(Model().batch())
    records = unstarted.finish("end", "text")
    stream, batch = [r for r in records if r["kind"] == "end"]
    assert stream["output"] == {"yielded": [{"token_ids": [104]}, {"token_ids": [104, 105]}]}
    assert batch["output"] == {"yielded": [1], "returned": {"response_ids": [111]}}
    assert [r["output"] for r in records if r["kind"] == "text"] == [
        {"prompt_text": "H", "response_text": "hi"},
        {"response_text": "o"},
    ]


def test_items_live_no_longer_than_they_would(recording: Any) -> None:
    """A generator that waits does not keep what it has yielded."""

    class Big:
        pass

    @rollout_trace_op
    def make() -> Generator[Big, None, None]:
        while True:
            yield Big()

    reader = make()
    seen = weakref.ref(next(reader))
    assert seen() is None
    reader.close()
