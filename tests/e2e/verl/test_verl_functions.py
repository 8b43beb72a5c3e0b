"""What is, and what is not, replaced in an installed verl; each check is a program of its own, since imports count."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

NAMES = """
import inspect, json
import verl.utils.rollout_trace as trace
import verl.experimental.agent_loop.agent_loop as loop
import verl.trainer.constants_ppo as constants
functions = {
    "op": trace.rollout_trace_op,
    "attr": trace.rollout_trace_attr,
    "init": trace.RolloutTraceConfig.__dict__["init"].__func__,
    "reset": trace.RolloutTraceConfig.__dict__["reset"].__func__,
    "run": loop.AgentLoopWorker._run_agent_loop,
    "info": loop.get_trajectory_info,
    "start": loop.AgentLoopManager._init_agent_loop_workers,
    "env": constants.get_ppo_ray_runtime_env,
}
def file_of(function):
    # contextmanager's own wrapper, which verl's rollout_trace_attr is, lies in contextlib
    code = function.__code__
    return function.__wrapped__.__code__.co_filename if "contextlib" in code.co_filename else code.co_filename
where = {name: "verl_trace" if "verl_plugin" in file_of(f) else "verl" for name, f in functions.items()}
print(json.dumps({"where": where, "names": {name: f.__name__ for name, f in functions.items()}}))
"""

OTHER_BACKENDS = """
import asyncio, contextlib, json, sys, types
log = []
class Client:
    def create_call(self, op, inputs, attributes):
        log.append(["weave call", op, sorted(inputs), attributes])
        return "call"
    def finish_call(self, call, output=None, exception=None):
        log.append(["weave end", output])
weave = types.ModuleType("weave")
weave.init = lambda project: log.append(["weave init", project]) or Client()
@contextlib.contextmanager
def attributes(values):
    state.values = values
    yield
weave.attributes = attributes
trace = types.ModuleType("weave.trace"); context = types.ModuleType("weave.trace.context")
class State:
    values = {}
    def get(self):
        return self.values
state = State()
context.call_context = types.SimpleNamespace(call_attributes=state)
sys.modules.update({"weave": weave, "weave.trace": trace, "weave.trace.context": context})

from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
from verl_trace.recorder.session import current

class Agent:
    @rollout_trace_op
    async def run(self, x):
        return x + 1
    @rollout_trace_op
    def step(self, x):
        return x + 2

def roll():
    with rollout_trace_attr(step=3, sample_index=4):
        return asyncio.run(Agent().run(1)), Agent().step(1)

for backend in (None, "nonsense", "weave"):
    RolloutTraceConfig.init("p", "e", backend)
    log.append([backend, RolloutTraceConfig.get_backend(), roll(), current() is None])
    RolloutTraceConfig.reset()
RolloutTraceConfig.init("p", "e", "jsonl")
log.append(["jsonl", roll(), current() is not None])
RolloutTraceConfig.reset()
log.append(["after", RolloutTraceConfig.get_backend(), current() is None])
print(json.dumps(log))
"""

SENDER = """
import asyncio, inspect, json, cloudpickle
from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_op

class Agent:
    @rollout_trace_op
    async def run(self, x: int = 1, *, y: str = "a") -> int:
        return x
    @rollout_trace_op
    def step(self, x):
        return x

asyncio.run(Agent().run(1)); Agent().step(1)
RolloutTraceConfig.init("p", "sender", "jsonl")
asyncio.run(Agent().run(1)); Agent().step(1)
open("agent.pickle", "wb").write(cloudpickle.dumps(Agent))
print(json.dumps({
    "kinds": [inspect.iscoroutinefunction(Agent.run), inspect.iscoroutinefunction(Agent.step)],
    "signature": str(inspect.signature(Agent.run)),
    "wrapped": inspect.unwrap(Agent.run).__code__.co_name,
    "name": Agent.run.__qualname__,
}))
RolloutTraceConfig.reset()
"""

RECEIVER = """
import asyncio, json, cloudpickle
from verl.utils.rollout_trace import RolloutTraceConfig
RolloutTraceConfig.init("p", "receiver", "jsonl")
Agent = cloudpickle.load(open("agent.pickle", "rb"))
print(json.dumps([asyncio.run(Agent().run(5)), Agent().step(6)]))
RolloutTraceConfig.reset()
"""


@pytest.fixture
def program(verl_environment: Callable[..., dict[str, str]], tmp_path: Path) -> Callable[..., Any]:
    """Run a program in an empty folder; what it printed last, as JSON."""

    def run(text: str, **variables: str) -> Any:
        environment = verl_environment(**variables)
        command = [sys.executable, "-c", text]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.parametrize(("variables", "owner"), [({}, "verl_trace"), ({"VERL_TRACE_DISABLED": "1"}, "verl")])
def test_disabled_leaves_every_function(program: Callable[..., Any], variables: dict[str, str], owner: str) -> None:
    """With VERL_TRACE_DISABLED=1 all eight names are verl's own functions; without, all eight are replaced."""
    found = program(NAMES, **variables)

    assert set(found["where"].values()) == {owner}
    assert found["names"]["op"] == "rollout_trace_op"
    assert found["names"]["run"] == "_run_agent_loop"


def test_variable_loads_the_plugin_too(program: Callable[..., Any]) -> None:
    """Where entry points are off, VERL_USE_EXTERNAL_MODULES does the same, and nothing is replaced without it."""
    off = {"VERL_USE_EXTERNAL_PLUGINS": "none"}

    assert set(program(NAMES, **off)["where"].values()) == {"verl"}
    by_variable = program(NAMES, **off, VERL_USE_EXTERNAL_MODULES="verl_trace.verl_plugin")
    assert set(by_variable["where"].values()) == {"verl_trace"}


def test_other_backends_are_verls_own(program: Callable[..., Any], tmp_path: Path) -> None:
    """No backend, an unknown one, and weave online (here a module that notes its calls) run verl's code, unrecorded."""
    log = program(OTHER_BACKENDS)
    attributes = {"sample_index": 4, "step": 3, "validate": False, "experiment_name": "e"}

    assert log == [
        [None, None, [2, 3], True],
        ["nonsense", "nonsense", [2, 3], True],
        ["weave init", "p"],
        ["weave call", "Agent.run", ["x"], attributes],
        ["weave end", 2],
        ["weave call", "Agent.step", ["x"], attributes],
        ["weave end", 3],
        ["weave", "weave", [2, 3], True],
        ["jsonl", [2, 3], True],
        ["after", None, True],
    ]
    assert len(list((tmp_path / "runs/e").glob("*.jsonl*"))) == 1


def test_decorated_classes_travel_by_value(
    program: Callable[..., Any], records: Callable[[Path], Any], tmp_path: Path
) -> None:
    """A class of the user's program, decorated and used, records where it was sent to, and looks as written."""
    assert program(SENDER) == {
        "kinds": [True, False],
        "signature": "(self, x: int = 1, *, y: str = 'a') -> int",
        "wrapped": "run",
        "name": "Agent.run",
    }
    assert program(RECEIVER) == [5, 6]
    for experiment in ("sender", "receiver"):
        assert records(tmp_path / "runs" / experiment).ops() == {"Agent.run": 1, "Agent.step": 1}
