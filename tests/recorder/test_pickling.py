"""Decorated code travels: by name where the module can be imported, by value where it cannot."""

from __future__ import annotations

import copy
import functools
import pickle
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from verl_trace import rollout_trace_op

# A class of `__main__`, as a training script defines it: everything in it goes by value.
SENDER = """
import functools, sys
import cloudpickle
from verl_trace import RolloutTraceConfig, rollout_trace_op, with_context

class Agent:
    def __init__(self): self.factor = 2
    @rollout_trace_op
    def method(me, x): return x * me.factor
    @staticmethod
    @rollout_trace_op
    def static(self, x=1): return x
    @rollout_trace_op
    @classmethod
    def cls_method(cls, x): return x
    @rollout_trace_op
    async def coroutine(self, x): return self.method(x)
    @rollout_trace_op(name="numbers")
    def generator(self, n): yield from range(n)
    @rollout_trace_op
    async def async_generator(self, n):
        for i in range(n): yield i
    def bare(self, x): return x

class Tool:
    def __call__(self, query): return query

@rollout_trace_op
def plain(x): return x

agent = Agent()
{before}
goods = (agent, Agent, plain, rollout_trace_op(Tool()), rollout_trace_op(functools.partial(plain, 4)),
         rollout_trace_op(agent.bare), with_context(lambda: 1) and plain)
sys.stdout.buffer.write(cloudpickle.dumps(goods))
"""
RECEIVER = """
import asyncio, inspect, pickle, sys
from verl_trace import RolloutTraceConfig, rollout_trace_op
from verl_trace.recorder import is_traced

agent, Agent, plain, tool, partial, bare, _ = pickle.loads(sys.stdin.buffer.read())
assert inspect.iscoroutinefunction(Agent.coroutine) and inspect.isasyncgenfunction(Agent.async_generator)
assert all(is_traced(f) for f in (Agent.method, Agent.static, plain, tool, partial, bare))
assert rollout_trace_op(Agent.method) is Agent.method
RolloutTraceConfig.init("p", "exp1", "jsonl")

async def main():
    assert await agent.coroutine(3) == 6
    assert [i async for i in agent.async_generator(1)] == [0]

asyncio.run(main())
class Heir(Agent): pass
results = (Heir().method(1), agent.static(agent), Agent.cls_method(2), list(agent.generator(1)), plain(1))
assert results == (2, 1, 2, [0], 1), results
assert (tool("q"), partial(), bare(9)) == ("q", 4, 9)
RolloutTraceConfig.reset()
"""
INPUTS = [
    ("Agent.coroutine", {"x": 3}),
    ("Agent.method", {"x": 3}),
    ("Agent.async_generator", {"n": 1}),
    ("Agent.method", {"x": 1}),
    ("Agent.static", {"self": {"_type": "Agent", "factor": 2}, "x": 1}),
    ("Agent.cls_method", {"x": 2}),
    ("numbers", {"n": 1}),
    ("plain", {"x": 1}),
    ("Tool.__call__", {"query": "q"}),
    ("plain", {"x": 4}),
    ("Agent.bare", {"x": 9}),
]


def python(program: str, data: bytes = b"") -> bytes:
    """Run a program as `__main__`."""
    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_by_value(unstarted: Any, used: bool) -> None:
    """A class of `__main__` and its decorated functions arrive in another process and record there, also after use."""
    before = 'RolloutTraceConfig.init("p", "sender", "jsonl"); agent.method(1); plain(2)' if used else ""
    python(RECEIVER, python(SENDER.replace("{before}", before)))

    assert [(s["op"], s["inputs"]) for s in unstarted.records("start")] == INPUTS
    assert (Path(unstarted.root) / "sender").exists() == used


class Model:
    @rollout_trace_op
    def generate(self, x: int) -> int:
        return x

    @staticmethod
    @rollout_trace_op
    def static(x: int) -> int:
        return x


@rollout_trace_op
def numbers(n: int) -> Generator[int, None, None]:
    yield from range(n)


class Tool:
    name = "search"

    def __call__(self, x: int) -> int:
        return x


def test_by_name() -> None:
    """pickle stores the name and finds the decorated function under it."""
    for func in (numbers, Model.generate, Model.static):
        assert pickle.loads(pickle.dumps(func)) is func
    bound = pickle.loads(pickle.dumps(Model().generate))
    assert bound(1) == 1


def test_objects_and_partials(recording: Any) -> None:
    """A stand-in is pickled and copied as its object and records again."""
    for tool in (rollout_trace_op(Tool(), name="t"), rollout_trace_op(functools.partial(Model.static, 5), name="t")):
        for again in (pickle.loads(pickle.dumps(tool)), copy.copy(tool), copy.deepcopy(tool)):
            assert again(*([] if isinstance(again, functools.partial) else [5])) == 5
    assert rollout_trace_op(Tool()).name == "search"
    assert [s["inputs"] for s in recording.finish("start")] == [{"x": 5}] * 6
