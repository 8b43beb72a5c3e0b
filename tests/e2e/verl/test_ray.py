"""Decorated code in Ray: everything a training script defines goes to the workers by value, and records there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

PROGRAM = """
import asyncio, functools, inspect, json, os, sys
import ray
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op, with_context

class Agent:
    def __init__(self): self.factor = 2
    @rollout_trace_op
    def method(self, x): return x * self.factor
    @rollout_trace_op
    async def coroutine(self, x): return self.method(x)
    @staticmethod
    @rollout_trace_op
    def static(x): return x + 1
    @rollout_trace_op
    @classmethod
    def cls_method(cls, x): return x + 2
    @rollout_trace_op(name="numbers")
    def generator(self, n):
        for i in range(n): yield self.method(i)
    @rollout_trace_op
    async def async_generator(self, n):
        for i in range(n): yield await self.coroutine(i)

class Tool:
    def __call__(self, query): return query.upper()

@rollout_trace_op
def plain(x): return x + 3

# Ray sends statistics into a streaming generator, which a range would not take
@rollout_trace_op
def stream(n):
    for i in range(n): yield i

agent, tool = Agent(), rollout_trace_op(Tool())
partial = rollout_trace_op(functools.partial(plain, 4))

async def use(agent, tool, partial):
    items = [i async for i in agent.async_generator(2)]
    calls = agent.static(1), agent.cls_method(1), list(agent.generator(2)), tool("q"), partial(), plain(0)
    return [*items, *calls, await agent.coroutine(5)]

def begin(sample):
    RolloutTraceConfig.init("me/proj", "ray", "jsonl")
    return rollout_trace_attr(step=1, sample_index=sample, rollout_n=0)

# as an argument and as a part of what is sent; by a task, by an actor, by an actor that is itself decorated
@ray.remote
def in_a_task(agent, tool, partial):
    with begin(1):
        done = asyncio.run(use(agent, tool, partial))
    RolloutTraceConfig.reset()
    return done

@ray.remote
class InAnActor:
    def __init__(self, agent): self.agent = agent
    @rollout_trace_op
    async def roll(self, tool, partial):
        return await use(self.agent, tool, partial)
    async def run(self, tool, partial):
        with begin(2):
            return await self.roll(tool, partial)
    @rollout_trace_op
    def streamed(self, n):
        for i in range(n): yield i
    def kinds(self):
        kind = type(self)
        return inspect.iscoroutinefunction(kind.roll), inspect.isgeneratorfunction(kind.streamed)
    def end(self): RolloutTraceConfig.reset()

ray.init(address=sys.argv[1], log_to_driver=False)
decorated_task = ray.remote(plain)
streaming_task = ray.remote(num_returns="streaming")(stream)
actor = InAnActor.remote(agent)
out = {
    "task": ray.get(in_a_task.remote(agent, tool, partial)),
    "actor": ray.get(actor.run.remote(tool, partial)),
    "decorated task": ray.get(decorated_task.remote(1)),
    "streaming task": [ray.get(item) for item in streaming_task.remote(3)],
    "streaming actor": [ray.get(item) for item in actor.streamed.options(num_returns="streaming").remote(3)],
    "kinds": ray.get(actor.kinds.remote()),
}
ray.get(actor.end.remote())
print(json.dumps(out))
"""
EXPECTED = [0, 2, 2, 3, [0, 2], "Q", 7, 3, 10]
# What `use` calls: async generator with coroutines with methods, the plain kinds, generator with methods, coroutine.
CALLS = {
    "Agent.async_generator": 1,
    "Agent.coroutine": 3,
    "Agent.method": 5,
    "Agent.static": 1,
    "Agent.cls_method": 1,
    "numbers": 1,
    "Tool.__call__": 1,
    "plain": 2,
}


@pytest.fixture(scope="module")
def ran(
    cluster: str, verl_environment: Callable[..., dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """The program's own report, and its folder."""
    folder = tmp_path_factory.mktemp("ray")
    program = folder / "program.py"
    # the variables are Ray's business here: no verl is in between
    variables = {"env_vars": {"VERL_TRACE_DIR": str(folder / "runs")}}
    program.write_text(PROGRAM.replace("log_to_driver=False", f"log_to_driver=False, runtime_env={variables!r}"))
    done = subprocess.run(
        [sys.executable, str(program), cluster],
        cwd=folder,
        env=verl_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), folder / "runs/ray"


def test_every_kind_works_where_it_was_sent(ran: tuple[dict[str, Any], Path]) -> None:
    """Results are those of undecorated code; Ray sees coroutine functions and generators as what they are."""
    assert ran[0] == {
        "task": EXPECTED,
        "actor": EXPECTED,
        "decorated task": 4,
        "streaming task": [0, 1, 2],
        "streaming actor": [0, 1, 2],
        "kinds": [True, True],
    }


def test_every_kind_records_where_it_was_sent(ran: tuple[dict[str, Any], Path], records: Callable[[Path], Any]) -> None:
    """The calls of task and actor are in the files of their processes, each in its trajectory and below its caller."""
    found = records(ran[1])
    starts = {head["id"]: head for head in found.of("start")}
    task, actor = (found.of("start", sample_index=sample) for sample in (1, 2))

    assert Counter(head["op"] for head in task) == CALLS
    assert Counter(head["op"] for head in actor) == {**CALLS, "InAnActor.roll": 1}
    assert len({head["file"] for head in task}) == len({head["file"] for head in actor}) == 1
    assert {head["file"] for head in task}.isdisjoint({head["file"] for head in actor})
    assert [head["op"] for head in actor if head["parent_id"] is None] == ["InAnActor.roll"]
    for head in starts.values():
        if head["op"] == "Agent.method":
            assert starts[head["parent_id"]]["op"] in ("Agent.coroutine", "numbers")
    assert starts.keys() == {head["id"] for head in found.of("end", status="success")}
