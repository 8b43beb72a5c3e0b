"""A reward function of a user, which verl's own reward workers load from this file.

The same answer gets another reward each time, so that only the right record can match it. What the question is decides
what goes wrong: `REWARD_FAULTS` maps numbers of questions to a fault.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

from verl.utils.rollout_trace import rollout_trace_op


@rollout_trace_op
async def judge(text: str) -> float:
    """Traced by the user; verl itself traces nothing in a reward worker."""
    await asyncio.sleep(0)
    return round(random.random(), 6)


async def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any, **_: Any) -> Any:
    """The score and three extras."""
    question = int(ground_truth) // 7
    fault = json.loads(os.environ.get("REWARD_FAULTS", "{}")).get(str(question))
    if fault == "raise":
        raise ValueError(f"no reward for question {question}")
    if fault == "slow":
        await asyncio.sleep(0.5)
    if fault == "die":
        os._exit(1)
    score = await judge(solution_str)
    return {"score": score, "acc": score > 0.5, "format.ok": 1, "odd": os.environ.get}
