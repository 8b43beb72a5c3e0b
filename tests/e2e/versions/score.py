"""Rollouts scored as the version at hand scores them, in this process; prints what verl's batch or queue got.

    python -m score MODEL_FOLDER WORKER

Everything up to the reward worker is verl's: agent loop, post-processing, batch. The reward differs with every call, so
that only the right record can match it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import roll
from transformers import AutoTokenizer
from verl.experimental.agent_loop import agent_loop
from verl.utils.rollout_trace import RolloutTraceConfig

# loops that give log-probabilities and loops that give none do not go into one batch
roll.SCRIPT[:] = [line for line in roll.SCRIPT if not line[0].endswith("_loop")]
numbers = itertools.count(1)


async def compute_score(data: Any) -> dict[str, Any]:
    """Like a reward worker's; the second sample's fails."""
    await asyncio.sleep(0.01)
    number = next(numbers)
    return {"reward_score": number / 8, "reward_extra_info": {"acc": number, "odd": print}}


def ready(kind: str) -> Any:
    """A worker with its own post-processing and one reward worker."""
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    config = roll.configuration(sys.argv[1])
    worker = roll.make_worker(kind, config, roll.Model(tokenizer))
    for name in ("_agent_loop_postprocess", "_postprocess"):
        vars(worker).pop(name, None)
    handle = SimpleNamespace(compute_score=roll.Remote(compute_score))
    worker.reward_loop_worker_handles = [handle]
    if hasattr(worker, "reward_manager_worker"):
        worker.reward_manager_worker = handle
    return worker


def batch() -> Any:
    """The rows of `roll`, with what a reward needs."""
    from verl import DataProto

    rows = {**roll.columns(), **more()}
    arrays = {}
    for name, column in rows.items():
        arrays[name] = np.empty(len(column), dtype=object)
        for position, row in enumerate(column):
            arrays[name][position] = np.array(row, dtype=object) if name == "raw_prompt" else row
    return DataProto(batch=None, non_tensor_batch=arrays, meta_info={"global_steps": 3, "validate": False})


def more() -> dict[str, list[Any]]:
    """Columns of the data set."""
    count = len(roll.SCRIPT)
    return {
        "data_source": ["tests"] * count,
        "reward_model": [{"style": "rule", "ground_truth": str(i)} for i in range(count)],
        "extra_info": [{"index": i} for i in range(count)],
    }


async def score_v0(worker: Any) -> list[dict[str, Any]]:
    """What the batch holds."""
    output = await worker.generate_sequences(batch())
    if "rm_scores" not in output.batch.keys():  # noqa: SIM118  # a TensorDict has no `in`
        return score_in_the_trainer(worker, output)
    rewards = output.batch["rm_scores"].sum(-1).tolist()
    turns = output.non_tensor_batch["__num_turns__"].tolist()
    return [{"reward": reward, "num_turns": count} for reward, count in zip(rewards, turns, strict=True)]


def score_in_the_trainer(worker: Any, output: Any) -> list[dict[str, Any]]:
    """verl 0.5: the trainer joins what the agent loops made with its rows and calls its reward function."""
    from verl import DataProto
    from verl.trainer.ppo.reward import compute_reward, load_reward_manager

    config = worker.config
    rows = batch()
    rows.non_tensor_batch.pop("raw_prompt")
    columns = {**rows.non_tensor_batch, **output.non_tensor_batch}
    whole = DataProto(batch=output.batch, non_tensor_batch=columns, meta_info={"global_steps": 3})
    manager = load_reward_manager(config, worker.tokenizer, num_examine=0)

    def judge(**_: Any) -> dict[str, Any]:
        number = next(numbers)
        return {"score": number / 8, "acc": number, "odd": print}

    manager.compute_score = judge
    order = list(reversed(range(len(whole))))
    tensor, _ = compute_reward(whole.select_idxs(order), manager)
    rewards = dict(zip(order, tensor.sum(-1).tolist(), strict=True))
    turns = output.non_tensor_batch["__num_turns__"].tolist()
    return [{"reward": rewards[row], "num_turns": turns[row]} for row in range(len(whole))]


async def score_tq(worker: Any) -> list[dict[str, Any]]:
    """What the queue gets."""
    from verl.utils import tensordict_utils

    got: dict[str, dict[str, Any]] = {}

    async def put(**_: Any) -> None:
        return None

    async def put_batch(keys: Any, fields: Any, **_: Any) -> None:
        for position, key in enumerate(keys):
            reward = fields["rm_scores"].unbind()[position].sum().item()
            got[key] = {"reward": reward, "num_turns": int(list(fields["num_turns"])[position])}

    queue = SimpleNamespace(async_kv_put=put, async_kv_batch_put=put_batch)
    vars(sys.modules[type(worker).__module__])["tq"] = queue
    rows = tensordict_utils.get_tensordict({**roll.columns(), **more()})
    tensordict_utils.assign_non_tensor_data(rows, "global_steps", 3)
    await worker.generate_sequences(rows)
    while worker.background_tasks:
        await asyncio.gather(*worker.background_tasks)
    return [got[f"group-{number}_0_0"] for number in range(len(roll.SCRIPT))]


def main() -> None:
    """Roll out, score, report."""
    import agents  # noqa: F401  (registers its agents and its parser)

    async def play() -> list[dict[str, Any]]:
        worker = ready(sys.argv[2])
        return await (score_tq if sys.argv[2] == "tq" else score_v0)(worker)

    rows = asyncio.run(play())
    RolloutTraceConfig.reset()
    print(json.dumps({"rows": rows, "in_task": hasattr(agent_loop.AgentLoopOutput, "model_fields")}))


if __name__ == "__main__":
    main()
