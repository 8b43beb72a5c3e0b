"""Whose child a call is: in tasks, threads and pools, and at any depth."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from verl_trace import rollout_trace_attr, rollout_trace_op, with_context
from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.recorder.context import current_span


@rollout_trace_op
def work(value: int) -> int:
    return value


@rollout_trace_op
async def turn(value: int) -> int:
    await asyncio.sleep(0)
    return work(value)


def roots(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [r for r in records if r["kind"] == "start" and r["parent_id"] is None]


def children(records: list[dict[str, Any]], parent: dict[str, Any]) -> list[tuple[str, Any]]:
    """(op, sample) of a start's children."""
    return [(r["op"], r["sample_index"]) for r in records if r["kind"] == "start" and r["parent_id"] == parent["id"]]


def test_gather_and_tasks(recording: Any) -> None:
    """What runs at once under one call are siblings; each one's calls are its own."""

    @rollout_trace_op
    async def root() -> None:
        await asyncio.gather(turn(1), turn(2), asyncio.create_task(turn(3)), asyncio.to_thread(work, 4))

    asyncio.run(root())
    records = recording.finish()
    (start,) = roots(records)
    assert sorted(children(records, start)) == [("turn", None)] * 3 + [("work", None)]
    turns = [r for r in records if r["kind"] == "start" and r["op"] == "turn"]
    assert [children(records, turn) for turn in turns] == [[("work", None)]] * 3


def test_bare_threads_are_roots(recording: Any) -> None:
    """Without the context a call in a thread is a root of its own, never in another sample's tree."""
    meet = threading.Barrier(2, timeout=10)

    def in_pool(value: int) -> int:
        meet.wait()
        return work(value)

    @rollout_trace_op
    async def root() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(in_pool, [1, 2]))
            await loop.run_in_executor(pool, work, 3)

    with rollout_trace_attr(sample_index=7):
        asyncio.run(root())
    records = recording.finish()
    assert [(r["op"].rpartition(".")[2], r["sample_index"]) for r in roots(records)][1:] == [("work", None)] * 3
    assert len({r["trace_id"] for r in roots(records)}) == 4


def test_carried_into_pools_and_threads(recording: Any) -> None:
    """`with_context` gives the parent and the sample, in `map`, `submit`, `run_in_executor` and bare threads."""
    meet = threading.Barrier(2, timeout=10)

    def in_pool(value: int) -> int:
        meet.wait()
        return work(value)

    @rollout_trace_op
    async def root(pool: ThreadPoolExecutor) -> None:
        assert list(pool.map(with_context(in_pool), [1, 2])) == [1, 2]
        assert pool.submit(with_context(work), 3).result() == 3
        assert await asyncio.get_running_loop().run_in_executor(pool, with_context(work), 4) == 4
        thread = threading.Thread(target=with_context(lambda: asyncio.run(turn(5))))
        thread.start()
        thread.join()

    with ThreadPoolExecutor(2) as pool:
        for sample in (7, 8):
            with rollout_trace_attr(sample_index=sample):
                asyncio.run(root(pool))
        assert pool.submit(current_span.get).result() is None
    records = recording.finish()
    first, second = roots(records)
    assert sorted(children(records, first)) == [("turn", 7)] + [("work", 7)] * 4
    assert sorted(children(records, second)) == [("turn", 8)] + [("work", 8)] * 4


def test_a_carried_coroutine_function(recording: Any) -> None:
    """In a task that somebody else starts, it belongs where `with_context` was called."""

    @rollout_trace_op
    async def root() -> Any:
        return with_context(turn)

    async def main() -> None:
        carried = await root()
        with rollout_trace_attr(sample_index=1):
            await asyncio.gather(carried(1), carried(2))
            await carried(3)
            assert current_span.get() is None
            await turn(4)

    asyncio.run(main())
    records = recording.finish()
    start, other = roots(records)
    assert children(records, start) == [("turn", None)] * 3
    assert (other["op"], other["sample_index"]) == ("turn", 1)


def test_what_sampling_left_out_stays_out_in_threads(recording: Any) -> None:
    """A trajectory that is not recorded is not recorded in the threads that it hands work to."""
    with rollout_trace_attr(trace=False), ThreadPoolExecutor(1) as pool:
        pool.submit(with_context(work), 1).result()
    assert recording.finish("start") == []


def test_carrying_keeps_results_and_exceptions() -> None:
    """The carried function is the function, as far as its caller sees."""

    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        with_context(fail)()
    assert with_context(fail).__name__ == "fail"
    assert with_context(len)([1]) == 1


@rollout_trace_op
def descend(left: int) -> int:
    return 0 if left == 0 else descend(left - 1) + 1


def test_three_thousand_levels(recording: Any) -> None:
    """A chain of 3,000 calls is recorded and read back as one tree, by a reader that has the usual stack."""
    limit = sys.getrecursionlimit()
    found: list[int] = []

    def run() -> None:
        sys.setrecursionlimit(20_000)
        try:
            found.append(descend(2_999))
        finally:
            sys.setrecursionlimit(limit)

    stack = threading.stack_size(256 << 20)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(stack)
    assert found == [2_999]
    recording.finish()
    (one,) = find_runs(recording.root)
    (trajectory,) = iter_trajectories(one)
    by_id = {call.id: call for call in trajectory.calls}
    call = next(c for c in trajectory.calls if c.inputs == b'{"left":0}')
    depth = 0
    while call.parent_id is not None:
        call, depth = by_id[call.parent_id], depth + 1
    assert (len(by_id), depth, trajectory.root) == (3_000, 2_999, call)
    assert not any(c.unfinished or c.orphan for c in trajectory.calls)
