"""rollout_trace_op: what a call leaves behind, and that the call itself is untouched."""

from __future__ import annotations

import asyncio
import inspect
import time
from datetime import datetime
from typing import Any

import pytest

from verl_trace import rollout_trace_op


class Agent:
    """A little of everything that a rollout calls."""

    @rollout_trace_op
    async def run(self, params: dict[str, Any], **kwargs: Any) -> list[Any]:
        """Docs of run."""
        return list(await asyncio.gather(self.turn(1), self.turn(2)))

    @rollout_trace_op
    async def turn(self, number: int) -> int:
        await asyncio.sleep(0)
        return self.tool(number)

    @rollout_trace_op
    def tool(self, number: int, scale: int = 10, *rest: int, flag: bool = False) -> int:
        return number * scale

    @rollout_trace_op
    def mutate(self, messages: list[Any]) -> list[Any]:
        messages.append("later")
        messages[0]["content"] = "changed"
        return messages

    @rollout_trace_op
    def fail(self, error: BaseException) -> None:
        raise error

    @rollout_trace_op
    async def fail_async(self, error: BaseException) -> None:
        raise error

    @rollout_trace_op
    async def forever(self) -> None:
        await asyncio.Event().wait()


def test_parents_follow_the_context(recording: Any) -> None:
    """Siblings under gather are siblings; a sync call inside a turn is that turn's child; trace_id is the root's id."""
    asyncio.run(Agent().run({"t": 1}, uid="u"))

    starts = recording.finish("start")
    root = next(s for s in starts if s["op"] == "Agent.run")
    turns = [s for s in starts if s["op"] == "Agent.turn"]
    tools = [s for s in starts if s["op"] == "Agent.tool"]
    assert root["parent_id"] is None
    assert {root["id"]} == {t["parent_id"] for t in turns} == {s["trace_id"] for s in starts}
    assert {t["id"] for t in turns} == {t["parent_id"] for t in tools}
    assert len({s["id"] for s in starts}) == 5


def test_inputs_are_those_of_the_signature(recording: Any) -> None:
    """Names, defaults, *args and **kwargs appear as `Signature.bind` with defaults gives them, without `self`."""
    agent = Agent()
    agent.tool(1)
    agent.tool(2, 3, 4, 5, flag=True)
    asyncio.run(agent.run(params={"p": 1}, extra=None))

    inputs = [s["inputs"] for s in recording.finish("start")]
    assert inputs[0] == {"number": 1, "scale": 10, "rest": [], "flag": False}
    assert inputs[1] == {"number": 2, "scale": 3, "rest": [4, 5], "flag": True}
    assert inputs[2] == {"params": {"p": 1}, "kwargs": {"extra": None}}


def test_inputs_are_taken_at_call_time_and_outputs_at_return(recording: Any) -> None:
    """A list that the method changes shows its old value in the inputs and the new one in the output."""
    Agent().mutate([{"content": "old"}])

    start, end = recording.finish("start", "end")
    assert start["inputs"] == {"messages": [{"content": "old"}]}
    assert end["output"] == [{"content": "changed"}, "later"]


def test_the_same_objects_come_back(recording: Any) -> None:
    """The result is the very object that the method returned, and the exception the very one that it raised."""
    messages: list[Any] = [{"content": "x"}]
    error = ValueError("no")

    assert Agent().mutate(messages) is messages
    with pytest.raises(ValueError, match="no") as caught:
        Agent().fail(error)
    assert caught.value is error


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt("stop"), asyncio.CancelledError("c")])
def test_every_exception_is_an_end(recording: Any, error: BaseException) -> None:
    """Exceptions, KeyboardInterrupt and CancelledError are recorded with type, message and traceback, and go on."""
    with pytest.raises(type(error)):
        Agent().fail(error)

    (end,) = recording.finish("end")
    assert end["status"] == "error"
    assert end["output"] is None
    assert end["exception"]["type"] == type(error).__name__
    assert end["exception"]["message"] == str(error)
    assert [f["function_name"] for f in end["exception"]["traceback"]][-1] == "fail"


def test_a_cancelled_task_is_recorded(recording: Any) -> None:
    """Cancelling a task ends its calls as CancelledError, and the task still counts as cancelled."""

    async def main() -> bool:
        task = asyncio.create_task(Agent().forever())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert asyncio.run(main())
    (end,) = recording.finish("end")
    assert end["exception"]["type"] == "CancelledError"


def test_a_wrong_call_raises_what_it_would_have(recording: Any) -> None:
    """Arguments that do not fit raise Python's own TypeError and are recorded as they came."""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
        Agent().tool()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
        Agent().fail(ValueError(), nope=1)  # type: ignore[call-arg]

    starts = recording.finish("start")
    assert starts[0]["inputs"] == {"args": [], "kwargs": {}}
    assert starts[1]["inputs"]["kwargs"] == {"nope": 1}


def test_signature_and_kind_are_kept() -> None:
    """Decorated methods look like the originals to inspect."""
    assert inspect.iscoroutinefunction(Agent.run)
    assert not inspect.iscoroutinefunction(Agent.tool)
    assert str(inspect.signature(Agent.tool)).startswith("(self, number")
    assert Agent.run.__doc__ == "Docs of run."
    assert Agent.run.__wrapped__.__name__ == "run"  # type: ignore[attr-defined]


def test_without_a_recording_nothing_happens(unstarted: Any) -> None:
    """No init, no files; the methods work."""
    assert asyncio.run(Agent().run({})) == [10, 20]
    assert not unstarted.folder.exists()


def test_a_record_is_on_disk_when_the_call_returns(recording: Any) -> None:
    """The end record can be read by others before anything was flushed, closed or reset."""
    Agent().tool(3)

    kinds = [r["kind"] for r in recording.records()]
    assert kinds == ["header", "start", "end"]


def test_times_and_ids(recording: Any) -> None:
    """UTC with microseconds and Z; ended_at = started_at + duration; ids are UUIDv7 and rise."""
    for number in range(50):
        Agent().tool(number)

    records = recording.finish("start", "end")
    starts = [r for r in records if r["kind"] == "start"]
    ids = [s["id"] for s in starts]
    assert ids == sorted(ids)
    assert {i[14] for i in ids} == {"7"}
    assert all(s["started_at"].endswith("Z") and len(s["started_at"]) == 27 for s in starts)
    assert all(r["ended_at"] >= r["started_at"] and r["duration"] >= 0 for r in records if r["kind"] == "end")


def test_a_call_begins_when_its_inputs_are_encoded(recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What encoding takes does not let a call end before those that it made."""
    from verl_trace.recorder import spans
    from verl_trace.schemas.values import encode_pieces

    def slow(value: Any, *rest: Any) -> Any:
        if value == {"way": "slow"}:
            time.sleep(0.5)
        return encode_pieces(value, *rest)

    @rollout_trace_op
    def outer(way: str) -> int:
        return Agent().tool(1)

    monkeypatch.setattr(spans, "encode_pieces", slow)
    called = time.time()
    outer("slow")

    inner_end, outer_end = recording.finish("end")
    began = datetime.fromisoformat(outer_end["started_at"].replace("Z", "+00:00")).timestamp()
    assert began > called + 0.45
    assert outer_end["duration"] < 0.45
    assert outer_end["started_at"] <= inner_end["started_at"]


def test_trouble_of_ours_is_not_the_callers(recording: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """When capturing itself breaks, the call goes on; one warning and a count tell of it."""
    from verl_trace.recorder import session, spans

    def broken(*_: object) -> bytes:
        raise RuntimeError("our bug")

    monkeypatch.setattr(spans, "encode_pieces", broken)
    assert [Agent().tool(n) for n in range(5)] == [0, 10, 20, 30, 40]

    running = session.current()
    assert running is not None
    assert running.counters.dropped == {"internal error starting": 5}
    assert capfd.readouterr().err.count("our bug") == 1
