"""A training of one process, without Ray: rollouts traced by verl's decorator, metrics by verl's own `Tracking`.

python tracked.py PROJECT EXPERIMENT FIRST_STEP STEPS ENDING

ENDING "finish" ends as verl's trainers do; "goes-on" logs on until it is killed, a line on standard output each step.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
from verl.utils.tracking import Tracking

from verl_trace import record_score

CONFIG: dict[str, Any] = {
    "trainer": {"logger": ["console", "wandb"]},
    "actor_rollout_ref": {"rollout": {"trace": {"backend": "jsonl"}}},
}


class Loop:
    """What verl's agent loops look like to the decorator."""

    @rollout_trace_op
    async def run(self, prompt: str) -> str:
        """One trajectory."""
        return await self.generate(prompt)

    @rollout_trace_op
    async def generate(self, prompt: str) -> str:
        """The model."""
        return prompt[::-1]


async def roll(step: int) -> None:
    """Two rollouts of a step, with rewards that tell them apart."""
    for number in range(2):
        with rollout_trace_attr(sample_index=number, step=step, rollout_n=0):
            await Loop().run(f"question {number} of step {step}")
            record_score("reward", step + number / 10)


def main(project: str, experiment: str, first: int, steps: int, ending: str) -> None:
    """Train."""
    RolloutTraceConfig.init(project, experiment, "jsonl")
    tracking: Any = Tracking(project, experiment, CONFIG["trainer"]["logger"], CONFIG)
    step = first
    while step < first + steps or ending == "goes-on":
        asyncio.run(roll(step))
        tracking.log(data={"critic/rewards/mean": step + 0.05, "step": step}, step=step)
        print(f"did {step}", flush=True)
        step += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
