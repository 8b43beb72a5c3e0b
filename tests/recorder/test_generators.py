"""Generators: one call from the first item to the end, with all that was yielded, wherever and however it is read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from verl_trace import rollout_trace_attr, rollout_trace_op
from verl_trace.recorder.context import current_span


@rollout_trace_op
def leaf(value: Any) -> Any:
    return value


@rollout_trace_op
async def co(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


@rollout_trace_op
def numbers(n: int) -> Generator[Any, Any, Any]:
    got = []
    for i in range(n):
        got.append((yield leaf(i)))
    return got if any(got) else None


@rollout_trace_op
async def words(n: int) -> AsyncGenerator[Any, Any]:
    for i in range(n):
        yield await co(i)


@rollout_trace_op
async def outer(n: int) -> AsyncGenerator[Any, Any]:
    async for word in words(n):
        yield word


@rollout_trace_op
def delegating(n: int) -> Generator[Any, Any, Any]:
    yield "first"
    return (yield from numbers(n))


def tree(records: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    """(op, parent's op) in the order of starting."""
    starts = [r for r in records if r["kind"] == "start"]
    ops = {s["id"]: s["op"].rpartition(".")[2] for s in starts}
    return [(ops[s["id"]], ops.get(s["parent_id"])) for s in starts]


def ends(records: list[dict[str, Any]], op: str) -> list[dict[str, Any]]:
    return [r for r in records if r["kind"] == "end" and r["op"] == op]


def test_items_are_the_output(recording: Any) -> None:
    """All items in order; a value returned stands beside them; the count and the way it ended are told."""
    assert list(numbers(3)) == [0, 1, 2]
    reader = numbers(2)
    assert [next(reader), reader.send("a")] == [0, 1]
    with pytest.raises(StopIteration) as stop:
        reader.send("b")

    assert stop.value.value == ["a", "b"]
    first, second = ends(recording.finish(), "numbers")
    assert first["output"] == [0, 1, 2]
    assert first["generator"] == {"yielded": 3, "ended": "exhausted"}
    assert second["output"] == {"yielded": [0, 1], "returned": ["a", "b"]}


def test_nested_async_generators_are_one_tree(recording: Any) -> None:
    """A generator that reads another one and awaits a coroutine: three levels, one trace."""

    async def main() -> list[int]:
        return [word async for word in outer(2)]

    assert asyncio.run(main()) == [0, 1]
    records = recording.finish()
    assert tree(records) == [("outer", None), ("words", "outer"), ("co", "words"), ("co", "words")]
    assert len({r["trace_id"] for r in records if r["kind"] == "start"}) == 1
    assert ends(records, "outer")[0]["output"] == [0, 1]


def test_nested_generators_are_one_tree(recording: Any) -> None:
    """`yield from` another recorded generator."""
    assert list(delegating(2)) == ["first", 0, 1]
    assert tree(recording.finish()) == [
        ("delegating", None),
        ("numbers", "delegating"),
        ("leaf", "numbers"),
        ("leaf", "numbers"),
    ]


def test_what_the_consumer_calls_is_no_child(recording: Any) -> None:
    """Between two items the consumer is where it was before; two generators read in turn do not mix."""

    @rollout_trace_op
    def consumer() -> None:
        for left, right in zip(numbers(2), numbers(2), strict=True):
            leaf([left, right])

    consumer()
    records = recording.finish()
    mine = [s for s in records if s["kind"] == "start" and isinstance(s["inputs"].get("value"), list)]
    root = next(s for s in records if s["kind"] == "start")
    assert [s["parent_id"] for s in mine] == [root["id"]] * 2
    assert [parent for op, parent in tree(records) if op == "numbers"] == ["consumer"] * 2
    assert [parent for op, parent in tree(records) if op == "leaf"] == ["numbers", "numbers", "consumer"] * 2


def test_attributes_inside_of_the_body_stay_there(recording: Any) -> None:
    """A body that waits inside of `rollout_trace_attr` gives the consumer none of it, and has it again afterwards."""

    @rollout_trace_op
    def rollouts() -> Generator[int, None, None]:
        for sample in range(2):
            with rollout_trace_attr(sample_index=sample):
                yield sample
                leaf("body")

    for _ in rollouts():
        leaf("consumer")
    starts = recording.finish("start")
    assert [(s["inputs"]["value"], s["sample_index"]) for s in starts if s["op"] == "leaf"] == [
        ("consumer", None),
        ("body", 0),
        ("consumer", None),
        ("body", 1),
    ]


def test_items_show_the_moment_of_yielding(recording: Any) -> None:
    """A list that grows between two items is recorded as it was each time."""

    @rollout_trace_op
    def growing() -> Generator[list[int], None, None]:
        ids: list[int] = []
        for i in range(3):
            ids.append(i)
            yield ids

    for _ in growing():
        pass
    assert recording.finish("end")[0]["output"] == [[0], [0, 1], [0, 1, 2]]


def test_read_in_several_tasks_and_threads(recording: Any) -> None:
    """Each item asked for elsewhere: children are the generator's, and nobody's context is changed."""

    async def step(reader: Any) -> Any:
        item = await anext(reader)
        assert current_span.get() is None
        return item

    async def main() -> list[Any]:
        reader = words(2)
        return [await asyncio.create_task(step(reader)) for _ in range(2)]

    assert asyncio.run(main()) == [0, 1]
    found: list[Any] = []
    reader = numbers(2)
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append((next(reader), current_span.get())))
        thread.start()
        thread.join()
    assert found == [(0, None), (1, None)]
    assert [t for t in tree(recording.finish()) if t[1] is None] == [("words", None), ("numbers", None)]


def test_comprehensions(recording: Any) -> None:
    """Async comprehensions read to the end like loops."""

    async def main() -> list[Any]:
        return [x + y async for x in words(2) for y in numbers(1)]

    assert asyncio.run(main()) == [0, 1]
    assert [r["generator"]["ended"] for r in recording.finish("end") if "generator" in r] == ["exhausted"] * 3


def test_without_a_recording(unstarted: Any) -> None:
    """Everything passes through."""

    async def main() -> list[Any]:
        reader = words(9)
        out = [await anext(reader), await reader.asend(None)]
        await reader.aclose()
        return [*out, *[x async for x in outer(1)]]

    assert asyncio.run(main()) == [0, 1, 0]
    assert list(delegating(1)) == ["first", 0]
    with rollout_trace_attr(trace=False):
        assert list(numbers(1)) == [0]
