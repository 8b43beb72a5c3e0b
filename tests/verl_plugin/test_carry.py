"""A place travels with data to a reward worker and with the calls of a tool's actors, and with nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import pickle
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from verl_trace import rollout_trace_op
from verl_trace.verl_plugin import carry, tool_actors

Recorded = Callable[[], list[dict[str, Any]]]


class DataProto:
    """verl's, reduced to what is pickled."""

    def __init__(self, meta_info: dict[str, Any]) -> None:
        self.batch, self.non_tensor_batch, self.meta_info = b"tensors", {"uid": ["g"]}, meta_info

    def __getstate__(self) -> Any:
        return self.batch, self.non_tensor_batch, self.meta_info

    def __setstate__(self, state: Any) -> None:
        self.batch, self.non_tensor_batch, self.meta_info = state


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> DataProto:
    """Watched as in `verl.protocol`."""
    for name in ("__getstate__", "__setstate__"):
        monkeypatch.setattr(DataProto, name, DataProto.__dict__[name])
    module: Any = ModuleType("protocol")
    module.DataProto = DataProto
    carry.watch_data(module)
    return DataProto({"global_steps": 3})


def worker_class(answer: Any = None) -> Any:
    """A `RewardLoopWorker`, watched."""

    class RewardLoopWorker:
        reward_manager = SimpleNamespace()

        async def compute_score(self, data: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return judge(data.meta_info)

    module: Any = ModuleType("reward_loop")
    module.RewardLoopWorker = RewardLoopWorker
    carry.watch_reward_worker(module)
    return RewardLoopWorker


@rollout_trace_op
def judge(meta_info: Any) -> Any:
    return dict(meta_info)


@rollout_trace_op
def send(data: Any) -> bytes:
    with carry.carried():
        return pickle.dumps(data)


def test_a_reward_workers_call_is_the_senders_child(data: DataProto, recorded: Recorded) -> None:
    """What the worker sees of the data is what was sent; the data itself is not touched."""
    received = pickle.loads(send(data))
    assert data.meta_info == received.meta_info == {"global_steps": 3}
    assert received.non_tensor_batch == {"uid": ["g"]}

    answer = asyncio.run(worker_class()().compute_score(received))
    sender, there, inner = (head for head in recorded() if head["kind"] == "start")

    assert answer == {"global_steps": 3}
    assert there["op"].endswith("RewardLoopWorker.compute_score")
    assert (there["parent_id"], inner["parent_id"]) == (sender["id"], there["id"])


def test_an_error_of_the_reward_is_the_callers(data: DataProto, recorded: Recorded) -> None:
    """The very exception, recorded as one."""
    error = ValueError("no reward")
    with pytest.raises(ValueError, match="no reward") as raised:
        asyncio.run(worker_class(error)().compute_score(pickle.loads(send(data))))
    assert raised.value is error
    assert recorded()[-1]["status"] == "error"


def test_data_that_goes_elsewhere_carries_nothing(data: DataProto, recorded: Recorded) -> None:
    """Copies, files, other workers; and a call of the reward worker that no rollout asked for leaves no tree."""
    assert b"verl-trace" not in pickle.dumps(data)
    assert vars(copy.deepcopy(data)) == vars(data)
    assert asyncio.run(worker_class()().compute_score(data)) == {"global_steps": 3}
    assert [head["op"] for head in recorded() if head["kind"] == "start"] == ["judge"]


# -- tools that run as actors ----------------------------------------------------------------------------------------


def ray_wraps(cls: Any) -> None:
    """What Ray does to the methods of every actor."""

    def wrapped(method: Any) -> Any:
        signature = inspect.signature(method)
        extra = inspect.Parameter("_ray_trace_ctx", inspect.Parameter.KEYWORD_ONLY, default=None)
        method.__signature__ = signature.replace(parameters=[*signature.parameters.values(), extra])
        if inspect.iscoroutinefunction(method):

            @functools.wraps(method)
            async def resume_async(self: Any, *args: Any, _ray_trace_ctx: Any = None, **kwargs: Any) -> Any:
                return await method(self, *args, **kwargs)

            resume: Any = resume_async
        else:

            @functools.wraps(method)
            def resume_plain(self: Any, *args: Any, _ray_trace_ctx: Any = None, **kwargs: Any) -> Any:
                return method(self, *args, **kwargs)

            resume = resume_plain
        resume.__ray_tracing_wrapped__ = True
        return resume

    for name, method in inspect.getmembers(cls, inspect.isfunction):
        setattr(cls, name, wrapped(method))


def search() -> Any:
    """A class of actors, made anew since Ray changes its functions."""

    class Search:
        def look(self, query: str, limit: int = 3) -> Any:
            if query == "bad":
                raise KeyError(query)
            return judge({query: limit})

        async def wait(self, query: str) -> str:
            await asyncio.sleep(0)
            return query

    return Search


class Handle:
    """Like Ray's, to an actor in this process; keeps what was sent."""

    _ray_is_cross_language = False

    def __init__(self, actor: Any, with_parameter: bool = True) -> None:
        self.actor = actor
        self.sent: list[Any] = []
        names = ("query", "_ray_trace_ctx") if with_parameter else ("query",)
        parameters = [SimpleNamespace(name=name) for name in names]
        self._ray_method_signatures = {"look": parameters, "wait": parameters}

    def _actor_method_call(self, method_name: str, args: Any = None, kwargs: Any = None, name: str = "") -> Any:
        self.sent.append(kwargs)
        return getattr(self.actor, method_name)(*args, **(kwargs or {}))


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Handle:
    """Both sides watched."""
    monkeypatch.setattr(Handle, "_actor_method_call", Handle._actor_method_call)
    tool_actors.watch_actor_handles(SimpleNamespace(ActorHandle=Handle))  # type: ignore[arg-type]
    cls = search()
    manager = SimpleNamespace(_inject_tracing_into_class=ray_wraps)
    tool_actors.watch_actor_classes(manager)  # type: ignore[arg-type]
    manager._inject_tracing_into_class(cls)
    return Handle(cls())


@rollout_trace_op
def tool(handle: Handle, method: str, *args: Any, inside: bool = True, **kwargs: Any) -> Any:
    with tool_actors.in_tool() if inside else contextlib.nullcontext():
        result = handle._actor_method_call(method, args, kwargs)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def test_an_actors_method_is_the_tools_child(handle: Handle, recorded: Recorded) -> None:
    """With its own inputs, and what it calls below it; plain and async."""
    assert tool(handle, "look", "sun", limit=5) == {"sun": 5}
    assert tool(handle, "wait", "moon") == "moon"
    starts = [head for head in recorded() if head["kind"] == "start"]

    ops = [head["op"].rpartition("<locals>.")[2] for head in starts]
    assert ops == ["tool", "Search.look", "judge", "tool", "Search.wait"]
    assert [starts[n]["parent_id"] for n in (1, 2, 4)] == [starts[n]["id"] for n in (0, 1, 3)]
    assert [starts[n]["payload"] for n in (1, 4)] == [{"query": "sun", "limit": 5}, {"query": "moon"}]


def test_an_actors_error_is_the_callers(handle: Handle, recorded: Recorded) -> None:
    """The very exception."""
    with pytest.raises(KeyError, match="bad"):
        tool(handle, "look", "bad")
    assert [head["status"] for head in recorded() if head["kind"] == "end"] == ["error", "error"]


@pytest.mark.parametrize("case", ["not in a tool", "no parameter", "not recorded"])
def test_other_calls_carry_nothing(handle: Handle, recorded: Recorded, case: str) -> None:
    """Calls outside of tools, to actors without Ray's parameter, and where nothing is recorded."""
    if case == "no parameter":
        handle = Handle(handle.actor, with_parameter=False)
    if case == "not recorded":
        with tool_actors.in_tool():
            assert handle._actor_method_call("look", ("sun",), {}) == {"sun": 3}
    else:
        assert tool(handle, "look", "sun", inside=case != "not in a tool") == {"sun": 3}
    assert handle.sent == [{}]
    assert {head["op"] for head in recorded()} <= {"tool", "judge"}
