"""What `verl.utils.rollout_trace` does for every backend, as one JSON value that does not depend on who is asked.

    python -m behaviour [PROJECT_OF_A_REAL_WEAVE_SERVER]

Imports nothing of ours: whether the plugin is there is decided by whoever starts it. Weave, mlflow and trackio are
modules made here that note how they are called; with a project given, the same is also sent by the real weave client.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import sys
import types
from collections.abc import Iterator
from typing import Any

import verl
from verl.utils import rollout_trace
from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

log: list[Any] = []
# `trace=` and the sampling limit came with verl 0.7.
ATTR = inspect.signature(rollout_trace_attr).parameters
INIT = inspect.signature(RolloutTraceConfig.init).parameters


class Tokenizer:
    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


class Output:
    def __init__(self, prompt_ids: list[int], response_ids: list[int]) -> None:
        self.prompt_ids, self.response_ids = prompt_ids, response_ids

    def __repr__(self) -> str:
        return f"Output({self.prompt_ids}, {self.response_ids})"


class Agent:
    """Methods of every kind that verl decorates."""

    tokenizer = Tokenizer()

    @rollout_trace_op
    async def run(self, prompt: list[int], n: int = 2, *, mode: str = "a", **kwargs: Any) -> Output:
        """One trajectory."""
        parts = await asyncio.gather(*(self.generate(prompt, turn) for turn in range(n)))
        ids = [token for part in parts for token in part]
        self.parse(ids)
        with contextlib.suppress(ZeroDivisionError):
            await self.execute({"divide": [1, 0]})
        return Output(prompt, ids)

    @rollout_trace_op
    async def generate(self, prompt: list[int], turn: int) -> list[int]:
        await asyncio.sleep(0)
        return [*prompt, turn]

    @rollout_trace_op
    def parse(self, ids: list[int]) -> dict[str, Any]:
        return {"calls": ids[-1]}

    @rollout_trace_op
    async def execute(self, parameters: dict[str, Any]) -> float:
        return parameters["divide"][0] / parameters["divide"][1]


async def trajectory(agent: Agent, number: int, **attributes: Any) -> Any:
    """One trajectory with its attributes; what the caller got."""
    with rollout_trace_attr(sample_index=number, step=1, rollout_n=0, **attributes):
        output = await agent.run([number, 7], mode="b", extra=number)
    return type(output).__name__, sorted(vars(output)), output.response_ids


async def misuse(agent: Agent) -> list[str]:
    """What is raised to a caller with wrong arguments, or with the method's own error."""
    raised = []
    for call in (agent.run(), agent.generate([1], 2, 3), agent.execute({"divide": [1, 0]}), agent.execute({})):
        try:
            await call
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}")
    return raised


def use(backend: str | None, token2text: bool) -> dict[str, Any]:
    """Initialise, look, roll out three trajectories at once, reset."""
    RolloutTraceConfig.init(PROJECT, "exp", backend, token2text)
    RolloutTraceConfig.init("another", "later", "unknown", not token2text)
    config = RolloutTraceConfig.get_instance()
    names = ("backend", "token2text", "project_name", "experiment_name", "_initialized")
    agent = Agent()

    async def roll() -> Any:
        jobs = [trajectory(agent, n, validate=n == 1) for n in range(3)]
        if "trace" in ATTR:
            jobs.append(trajectory(agent, 3, trace=False))
        return await asyncio.gather(*jobs)

    seen = {
        "config": {name: getattr(config, name) for name in names},
        "getters": [RolloutTraceConfig.get_backend(), RolloutTraceConfig.enable_token2text()],
        "client": type(RolloutTraceConfig.get_client()).__name__,
        "trajectories": asyncio.run(roll()),
        "outside": asyncio.run(agent.generate([5], 0)),
        "raised": asyncio.run(misuse(agent)),
    }
    client = RolloutTraceConfig.get_client()
    if client is not None and hasattr(client, "finish"):
        client.finish()
    RolloutTraceConfig.reset()
    return {**seen, "after reset": RolloutTraceConfig.get_backend()}


class Client:
    """Stands for weave's client."""

    def create_call(self, op: str, inputs: Any, attributes: Any) -> str:
        log.append(["create", op, repr(inputs), dict(attributes)])
        return op

    def finish_call(self, call: str, output: Any = None, exception: Any = None) -> None:
        shown = vars(output) if isinstance(output, Output) else output
        log.append(["finish", call, repr(shown), repr(exception)])


@contextlib.contextmanager
def noted(name: str, value: Any) -> Iterator[Any]:
    log.append([name, value])
    yield types.SimpleNamespace(
        trace_id="t",
        set_inputs=lambda inputs: log.append(["inputs", repr(inputs)]),
        set_outputs=lambda outputs: log.append(["outputs", type(outputs).__name__]),
    )
    log.append([f"end of {name}"])


def stand_ins() -> dict[str, types.ModuleType]:
    """Modules in place of weave, mlflow and trackio."""
    weave, mlflow, trackio = (types.ModuleType(name) for name in ("weave", "mlflow", "trackio"))
    package, context = types.ModuleType("weave.trace"), types.ModuleType("weave.trace.context")
    current: dict[str, Any] = {}

    @contextlib.contextmanager
    def attributes(values: Any) -> Iterator[None]:
        log.append(["attributes", values])
        yield

    def notes(name: str, result: Any = None) -> Any:
        def noted_call(*args: Any, **kwargs: Any) -> Any:
            log.append([name, repr(args), repr(kwargs)])
            return result

        return noted_call

    def trace(func: Any) -> Any:
        log.append(["trace", func.__qualname__])
        return func

    members: dict[types.ModuleType, dict[str, Any]] = {
        weave: {"init": notes("init", Client()), "attributes": attributes},
        context: {"call_context": types.SimpleNamespace(call_attributes=types.SimpleNamespace(get=lambda: current))},
        mlflow: {
            "config": types.SimpleNamespace(enable_async_logging=notes("async logging")),
            "set_tracking_uri": notes("uri"),
            "set_experiment": notes("experiment"),
            "start_span": lambda name: noted("span", name),
            "set_trace_tag": notes("tag"),
            "trace": trace,
        },
        trackio: {
            "context_vars": types.SimpleNamespace(current_run=types.SimpleNamespace(get=lambda: None)),
            "init": notes("trackio init"),
            "Trace": lambda messages, metadata: [messages, sorted(metadata)],
            "log": notes("trackio log"),
        },
    }
    for module, names in members.items():
        vars(module).update(names)
    return {module.__name__: module for module in (weave, package, context, mlflow, trackio)}


def shapes() -> dict[str, Any]:
    """What the decorated methods look like to those who ask."""
    return {
        name: [
            inspect.iscoroutinefunction(func),
            str(inspect.signature(func)),
            func.__doc__,
            func.__qualname__,
            inspect.unwrap(func).__code__.co_name,
        ]
        for name, func in vars(Agent).items()
        if inspect.isfunction(func)
    }


def refused() -> list[str]:
    """What is raised for arguments that this verl does not know."""
    calls: list[Any] = [
        lambda: RolloutTraceConfig.init("p"),
        lambda: RolloutTraceConfig.init("p", "e", None, nonsense=1),
        lambda: rollout_trace_attr(nonsense=1).__enter__(),
    ]
    raised = []
    for call in calls:
        try:
            call()
        except TypeError as error:
            raised.append(str(error))
    return raised


PROJECT = sys.argv[1] if len(sys.argv) > 1 else "me/proj"


def main() -> None:
    """Everything, the stand-ins before the real client."""
    known = sys.modules.copy()
    sys.modules.update(stand_ins())
    report: dict[str, Any] = {"verl": verl.__version__, "shapes": shapes(), "refused": refused()}
    report["names"] = sorted(name for name in vars(rollout_trace) if not name.startswith("__"))
    report["parameters"] = [list(ATTR), list(INIT)]
    for backend in (None, "unknown", "weave", "mlflow", "trackio"):
        for token2text in (False, True):
            report[f"{backend} {token2text}"] = use(backend, token2text)
    for name in stand_ins():
        sys.modules.pop(name, None)
    sys.modules.update({name: module for name, module in known.items() if name not in sys.modules})
    report["log"] = log
    if len(sys.argv) > 1:
        report["real weave"] = use("weave", True)
    print(json.dumps(report, default=repr))


if __name__ == "__main__":
    main()
