"""verl's own agent-loop worker of the version at hand, in this process: one trajectory per agent and kind of tool call.

    python -m roll MODEL_FOLDER WORKER

The worker, its client of the language model, agent loops, tools and parser are verl's. Behind the client stands a
model that follows a script, and what comes after a trajectory (padding, reward, the queue) is left out. The report
says how often what was really called.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tiny_model import END_OF_TURN
from transformers import AutoTokenizer
from verl.experimental.agent_loop import agent_loop
from verl.utils.rollout_trace import RolloutTraceConfig

try:
    from verl.workers.rollout.replica import TokenOutput
except ImportError:  # verl 0.5: a list of ids
    TokenOutput = None

HERE = Path(__file__).resolve().parent
ROLLOUT = "actor_rollout_ref.rollout"
NEW_TOOLS = hasattr(agent_loop, "ToolListWrap")
# Agent, what the model writes in its first turn.
SCRIPT = [
    ("single_turn_agent", "an answer"),
    ("plain_loop", "an answer"),
    ("decorated_loop", "an answer"),
    ("tool_agent", '[decorated {"text": "a"}]'),
    ("tool_agent", '[plain {"text": "b"}]'),
    ("tool_agent", '[plain {"wrong": "b"}]'),
    ("tool_agent", '[no_such_tool {"text": "c"}]'),
    ("tool_agent", "[plain {no JSON]"),
    ("own_tool_agent", '[plain {"text": "d"}]'),
    *([("tool_agent", '[shout {"text": "e"}]')] if NEW_TOOLS else []),
]
generated: Counter[int] = Counter()


def configuration(model: str) -> Any:
    """verl's own, with our model, tools and parser."""
    tools = {"tools": [{"class_name": f"agents.{n}", "config": {"type": "native"}} for n in ("Decorated", "Plain")]}
    Path("tools.yaml").write_text(json.dumps(tools))
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
        config = compose("ppo_trainer")
    OmegaConf.set_struct(config, False)
    settings = {
        "actor_rollout_ref.model.path": model,
        "trainer.project_name": "me/proj",
        "trainer.experiment_name": "exp",
        "trainer.device": "cpu",
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.n": 1,
        f"{ROLLOUT}.prompt_length": 1024,
        f"{ROLLOUT}.response_length": 1024,
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.multi_turn.enable": True,
        f"{ROLLOUT}.multi_turn.format": "raw",
        f"{ROLLOUT}.multi_turn.max_parallel_calls": 2,
        f"{ROLLOUT}.multi_turn.tool_config_path": str(Path("tools.yaml").resolve()),
        f"{ROLLOUT}.trace.backend": "jsonl",
        f"{ROLLOUT}.trace.token2text": True,
        **({f"{ROLLOUT}.multi_turn.function_tool_path": str(HERE / "function_tools.py")} if NEW_TOOLS else {}),
    }
    for name, value in settings.items():
        OmegaConf.update(config, name, value, force_add=True)
    return config


class Remote:
    """Like a method of a Ray actor."""

    def __init__(self, call: Any) -> None:
        self.remote = call


class Model:
    """Like the actor that serves the model: follows the script by the question's number and the turn."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.generate = Remote(self._generate)

    async def _generate(self, *, prompt_ids: list[int], **_: Any) -> Any:
        text = self.tokenizer.decode(prompt_ids)
        number = int(text.partition("question ")[2][:2])
        first = text.count("<|im_start|>assistant\n") < 2
        generated[number] += 1
        reply = SCRIPT[number][1] if first else "done"
        ids = list(self.tokenizer.encode(reply + END_OF_TURN))
        if TokenOutput is None:
            return ids
        known = TokenOutput.model_fields
        extra = {"num_preempted": 0, "extra_fields": {"global_steps": 0}, "stop_reason": "completed"}
        return TokenOutput(
            token_ids=ids, log_probs=[-0.5] * len(ids), **{name: extra[name] for name in extra if name in known}
        )


def client(config: Any, model: Model) -> Any:
    """verl's client, whichever this version has, in front of the model."""
    nothing = Remote(lambda *args, **kwargs: asyncio.sleep(0, []))
    one = getattr(agent_loop, "LLMServerClient", None) or agent_loop.AsyncLLMServerManager
    if "load_balancer_handle" not in inspect.signature(one).parameters:
        return one(config, [model])
    pairs = "servers" in inspect.signature(one).parameters
    balancer = SimpleNamespace(
        acquire_server=Remote(lambda *args, **kwargs: asyncio.sleep(0, "s" if pairs else ("s", model))),
        release_server=Remote(lambda *args, **kwargs: None),
        require_acquire_fields=nothing,
        require_release_fields=nothing,
    )
    handle = {"load_balancer_handle": balancer}
    return one(config, [("s", model)], **handle) if pairs else one(config, **handle)


def worker_class(kind: str) -> Any:
    """The class below Ray's actor class."""
    if kind == "tq":
        try:
            from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ as found
        except ImportError:
            from verl.trainer.main_ppo_sync import AgentLoopWorkerTQ as found
    else:
        found = getattr(agent_loop, "AgentLoopWorkerBase", None) or agent_loop.AgentLoopWorker
    return found if inspect.isclass(found) else found.__ray_metadata__.modified_class


def make_worker(kind: str, config: Any, model: Model) -> Any:
    """A worker without what it does after a trajectory; its own `__init__` where that needs no cluster."""
    cls = worker_class(kind)
    if hasattr(agent_loop, "AgentLoopWorkerBase"):
        # 0.6 starts a reward actor there
        worker = cls.__new__(cls)
        trace = config.actor_rollout_ref.rollout.trace
        RolloutTraceConfig.init("me/proj", "exp", trace.backend, trace.token2text)
        worker.config, worker.tokenizer, worker.processor = config, model.tokenizer, None
        worker.server_manager = client(config, model)
        scored = {"reward_score": 1.0, "reward_extra_info": {}}
        worker.reward_manager_worker = SimpleNamespace(compute_score=Remote(lambda data: asyncio.sleep(0, scored)))
        worker.reward_router_address = None
    elif kind == "tq":
        # the class below starts no queue
        worker = cls.__new__(cls)
        agent_loop.AgentLoopWorker.__init__(worker, config, client(config, model))
        worker.background_tasks = set()
    elif hasattr(agent_loop, "LLMServerClient"):
        worker = cls(config, client(config, model))
    else:
        worker = cls(config, [], None) if "servers" in inspect.signature(cls).parameters else cls(config, [model])
        worker.server_manager = client(config, model)

    async def after(*args: Any, **kwargs: Any) -> None:
        return None

    worker._agent_loop_postprocess = after
    worker._postprocess = lambda *args, **kwargs: None
    return worker


def columns() -> dict[str, list[Any]]:
    """The rows of the batch: question `i` is for line `i` of the script."""
    return {
        "raw_prompt": [[{"role": "user", "content": f"question {i:02d}"}] for i in range(len(SCRIPT))],
        "index": [100 + i for i in range(len(SCRIPT))],
        "agent_name": [agent for agent, _ in SCRIPT],
        "uid": [f"group-{i}" for i in range(len(SCRIPT))],
        "tools_kwargs": [{} for _ in SCRIPT],
    }


async def roll_v0(worker: Any) -> None:
    """`generate_sequences` with a batch as the manager hands it to each worker."""
    from verl import DataProto

    arrays = {}
    for name, rows in columns().items():
        arrays[name] = np.empty(len(rows), dtype=object)
        for position, row in enumerate(rows):
            arrays[name][position] = np.array(row, dtype=object) if name == "raw_prompt" else row
    batch = DataProto(batch=None, non_tensor_batch=arrays, meta_info={"global_steps": 3, "validate": False})
    await worker.generate_sequences(batch)


async def roll_tq(worker: Any) -> None:
    """The default trainer's worker: it starts tasks, which end by telling the queue."""
    from verl.utils import tensordict_utils

    ended: list[Any] = []

    async def put(**kwargs: Any) -> None:
        ended.append(kwargs["tag"]["status"])

    vars(sys.modules[type(worker).__module__])["tq"] = SimpleNamespace(async_kv_put=put)
    batch = tensordict_utils.get_tensordict(columns())
    tensordict_utils.assign_non_tensor_data(batch, "global_steps", 3)
    await worker.generate_sequences(batch)
    while worker.background_tasks:
        await asyncio.gather(*worker.background_tasks)
    assert [status for status in ended if status != "running"] == ["finished"] * len(SCRIPT), ended


def main() -> None:
    """Roll out and report."""
    import agents  # noqa: F401  (registers its agents and its parser)

    model = Model(AutoTokenizer.from_pretrained(sys.argv[1]))

    async def roll() -> None:
        worker = make_worker(sys.argv[2], configuration(sys.argv[1]), model)
        await (roll_tq if sys.argv[2] == "tq" else roll_v0)(worker)

    asyncio.run(roll())
    RolloutTraceConfig.reset()
    print(json.dumps({"script": SCRIPT, "generated": [generated[i] for i in range(len(SCRIPT))]}))


if __name__ == "__main__":
    main()
