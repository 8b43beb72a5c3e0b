"""Generators: one call from the first item to the end, with all that was yielded, wherever and however it is read."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_trace import rollout_trace_attr, rollout_trace_op
from verl_trace.recorder import generators
from verl_trace.recorder.context import current_attributes, current_span, tracing


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


@rollout_trace_op
def robust() -> Generator[Any, Any, Any]:
    """Answers every exception but ValueError with its name."""
    while True:
        try:
            yield "ready"
        except ValueError:
            raise
        except Exception as error:
            yield type(error).__name__
        finally:
            leaf("cleaned")


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


ERRORS = [ValueError("bad"), KeyboardInterrupt("stop"), asyncio.CancelledError("c"), SystemExit(3)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_failing_body(recording: Any, error: BaseException) -> None:
    """Every exception is an end with what was yielded before it, and is the caller's own object."""

    @rollout_trace_op
    def sync() -> Generator[int, None, None]:
        yield 1
        raise error

    @rollout_trace_op
    async def asynchronous() -> AsyncGenerator[int, None]:
        yield 1
        raise error

    with pytest.raises(type(error)) as caught:
        list(sync())
    assert caught.value is error
    step = asynchronous()
    assert drive(step.__anext__()) == 1
    with pytest.raises(type(error)) as caught:
        drive(step.__anext__())
    assert caught.value is error
    for end in recording.finish("end"):
        assert (end["status"], end["output"]) == ("error", [1])
        assert end["generator"] == {"yielded": 1, "ended": "failed"}
        assert end["exception"]["type"] == type(error).__name__
        assert end["exception"]["traceback"][-1]["function_name"] in ("sync", "asynchronous")
        assert end["text"] is False


def drive(awaitable: Any) -> Any:
    """The result of an awaitable that never waits, without any event loop."""
    try:
        awaitable.__await__().send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waited")


def leave_loop(reader: Any) -> None:
    for _ in reader:
        break


def close(reader: Any) -> None:
    next(reader)
    reader.close()


def drop(reader: Any) -> None:
    next(reader)


def drop_in_a_cycle(reader: Any) -> None:
    next(reader)
    cycle: list[Any] = [reader]
    cycle.append(cycle)


def in_a_thread(step: Callable[[], Any]) -> None:
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()


def close_in_a_thread(reader: Any) -> None:
    next(reader)
    in_a_thread(reader.close)


def close_in_a_context(reader: Any) -> None:
    contextvars.copy_context().run(next, reader)
    contextvars.Context().run(reader.close)


@pytest.mark.parametrize("leave", [leave_loop, close, drop, drop_in_a_cycle, close_in_a_thread, close_in_a_context])
def test_an_abandoned_generator(recording: Any, leave: Callable[[Any], None]) -> None:
    """Left, closed or collected, here or elsewhere: its end says so, with what was read, and is no error."""

    @rollout_trace_op
    def reading() -> Any:
        leave(numbers(5))
        gc.collect()
        return leaf("after")

    assert reading() == "after"
    assert current_span.get() is None
    records = recording.finish()
    (end,) = ends(records, "numbers")
    assert end["generator"] == {"yielded": 1, "ended": "abandoned"}
    assert (end["status"], end["exception"], end["output"]) == ("success", None, [0])
    assert tree(records) == [("reading", None), ("numbers", "reading"), ("leaf", "numbers"), ("leaf", "reading")]


def test_never_read_is_never_recorded(recording: Any) -> None:
    """A generator of which nobody asked an item ran no code and leaves nothing."""
    numbers(3)
    numbers(3).close()
    drive(words(3).aclose())
    assert recording.finish("start", "end") == []


def test_cleaning_up_is_the_bodys(recording: Any) -> None:
    """What `finally` calls while the generator is closed is its child, sync and async."""

    @rollout_trace_op
    async def careful() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            await co("cleaned")

    async def main() -> None:
        reader = careful()
        assert await anext(reader) == 1
        await reader.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(reader)

    asyncio.run(main())
    reader = robust()
    next(reader)
    reader.close()
    records = recording.finish()
    assert tree(records) == [("careful", None), ("co", "careful"), ("robust", None), ("leaf", "robust")]
    assert [e["generator"]["ended"] for e in records if e["kind"] == "end" and "generator" in e] == ["abandoned"] * 2


def test_throwing_into_a_body(recording: Any) -> None:
    """`throw` reaches the body, which may answer; what it does not answer comes out."""
    reader = robust()
    assert next(reader) == "ready"
    assert reader.throw(KeyError("k")) == "KeyError"
    assert next(reader) == "ready"
    error = ValueError("v")
    with pytest.raises(ValueError, match="v") as caught:
        reader.throw(error)
    assert caught.value is error
    (end,) = ends(recording.finish(), "robust")
    assert end["output"] == ["ready", "KeyError", "ready"]
    assert end["exception"]["type"] == "ValueError"


def test_async_send_and_throw(recording: Any) -> None:
    """`asend` and `athrow` reach the body."""

    @rollout_trace_op
    async def echo() -> AsyncGenerator[Any, Any]:
        value: Any = "ready"
        while True:
            try:
                value = yield value
            except KeyError:
                value = "key"

    async def main() -> list[Any]:
        reader = echo()
        out = [await anext(reader), await reader.asend(1), await reader.athrow(KeyError()), await reader.asend(2)]
        await reader.aclose()
        return out

    assert asyncio.run(main()) == ["ready", 1, "key", 2]
    assert recording.finish("end")[0]["output"] == ["ready", 1, "key", 2]


def test_a_body_that_ignores_closing(recording: Any) -> None:
    """Python's own RuntimeError, as without us."""

    @rollout_trace_op
    def stubborn() -> Generator[int, None, None]:
        while True:
            try:
                yield 1
            except GeneratorExit:
                yield 2
                return

    reader = stubborn()
    next(reader)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        reader.close()
    assert list(reader) == []
    assert recording.finish("end")[0]["output"] == [1, 2]


def test_a_cancelled_reader(recording: Any) -> None:
    """Cancelling the task that reads ends the generator as CancelledError, while it waits."""

    @rollout_trace_op
    async def waiting() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.Event().wait()

    async def main() -> None:
        first = asyncio.Event()

        async def read() -> None:
            async for _ in waiting():
                first.set()

        task = asyncio.create_task(read())
        await first.wait()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(main())
    (end,) = recording.finish("end")
    assert (end["exception"]["type"], end["output"]) == ("CancelledError", [1])


def test_left_in_an_event_loop(recording: Any, capfd: Any) -> None:
    """Left by `break`, or still open when the loop ends: closed once, with awaits in `finally`, in silence."""
    closed = []

    @rollout_trace_op
    async def slow(name: str, done: asyncio.Event) -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append(name)
            done.set()

    async def main() -> Any:
        done = asyncio.Event()
        async for _ in slow("broken", done):
            break
        await done.wait()
        kept = slow("kept", done)
        await anext(kept)
        return kept

    kept = asyncio.run(main())
    assert closed == ["broken", "kept"]
    assert kept.ag_frame is None
    records = recording.finish("end")
    assert [r["generator"]["ended"] for r in records] == ["abandoned"] * 2
    assert "error" not in capfd.readouterr().err.lower()


def test_left_without_an_event_loop(recording: Any) -> None:
    """A loop that was stopped and closed runs no body any more; the record has its end all the same."""
    loop = asyncio.new_event_loop()
    reader = words(3)
    loop.run_until_complete(anext(reader))
    loop.close()
    del reader
    gc.collect()
    (end,) = ends(recording.finish(), "words")
    assert end["generator"] == {"yielded": 1, "ended": "abandoned"}
    assert end["output"] == [0]


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
        in_a_thread(lambda: found.append((next(reader), current_span.get())))
    assert found == [(0, None), (1, None)]
    assert [t for t in tree(recording.finish()) if t[1] is None] == [("words", None), ("numbers", None)]


def test_comprehensions(recording: Any) -> None:
    """Async comprehensions read to the end like loops."""

    async def main() -> list[Any]:
        return [x + y async for x in words(2) for y in numbers(1)]

    assert asyncio.run(main()) == [0, 1]
    assert [r["generator"]["ended"] for r in recording.finish("end") if "generator" in r] == ["exhausted"] * 3


def test_an_endless_generator_is_bounded(unstarted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit items are counted and the last one kept, with a mark where the others were."""
    monkeypatch.setenv("VERL_TRACE_YIELD_BYTES", "1k")
    unstarted.start()
    reader = numbers(10**9)
    for _ in range(5000):
        last = next(reader)
    reader.close()
    (end,) = ends(unstarted.finish(), "numbers")
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


def test_items_live_no_longer_than_they_would(recording: Any) -> None:
    """A generator that waits does not keep what it has yielded."""
    import weakref

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


MOVES = st.lists(st.sampled_from(["next", "send", "throw", "throw value", "close"]), max_size=8)


def play(reader: Any, moves: list[str]) -> list[Any]:
    """What a reader answers to a series of moves."""
    out: list[Any] = []
    for number, move in enumerate(moves):
        try:
            if move == "next":
                out.append(next(reader))
            elif move == "send":
                out.append(reader.send(number))
            elif move == "close":
                out.append(reader.close())
            else:
                out.append(reader.throw(KeyError(number) if move == "throw" else ValueError(number)))
        except BaseException as error:
            out.append((type(error), error.args))
    return out


@settings(max_examples=200)
@given(MOVES)
def test_a_recorded_generator_behaves_as_the_bare_one(moves: list[str]) -> None:
    """next, send, throw and close in any order give what they give without us, and leave the context alone."""
    bare, traced = numbers.__wrapped__, numbers  # type: ignore[attr-defined]
    for plain, recorded in ((robust.__wrapped__(), robust()), (bare(3), traced(3))):  # type: ignore[attr-defined]
        assert play(recorded, moves) == play(plain, moves)
    assert (current_span.get(), current_attributes.get(), tracing.get()) == (None, None, True)
