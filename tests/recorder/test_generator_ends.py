"""How generators end: exhausted, by an exception, left by whoever reads; all as it would be without us."""

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

from verl_trace import rollout_trace_op
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
    for i in range(n):
        yield leaf(i)


@rollout_trace_op
async def words(n: int) -> AsyncGenerator[Any, Any]:
    for i in range(n):
        yield await co(i)


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
