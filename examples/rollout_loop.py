"""Record a rollout loop of your own, without verl:  python examples/rollout_loop.py

The decorators are verl's; only the import differs. Then look at the files:  verl-trace ls
"""

import asyncio
import random
from typing import Any

from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op


class Model:
    """A stand-in for an inference server: token ids in, token ids out."""

    @rollout_trace_op
    async def generate(self, prompt_ids: list[int], temperature: float = 1.0) -> dict[str, list[int]]:
        await asyncio.sleep(0.01)
        return {"token_ids": [random.randrange(32_000) for _ in range(8)]}


class Search:
    """A tool; the second query of a trajectory finds nothing and raises."""

    @rollout_trace_op
    async def execute(self, query: str) -> list[str]:
        if query == "turn 1":
            raise LookupError(f"nothing found for {query!r}")
        return [f"a page about {query}"]


class Agent:
    """Two turns of model and tool."""

    def __init__(self) -> None:
        self.model = Model()
        self.search = Search()

    @rollout_trace_op
    async def run(self, raw_prompt: list[dict[str, Any]]) -> dict[str, Any]:
        ids: list[int] = [1, 2, 3]
        found: list[str] = []
        for turn in range(2):
            ids += (await self.model.generate(prompt_ids=ids))["token_ids"]
            try:
                found += await self.search.execute(f"turn {turn}")
            except LookupError as error:
                found.append(str(error))
        return {"response_ids": ids, "found": found}


async def trajectory(step: int, sample: int, rollout: int) -> None:
    """One rollout of one sample: everything traced inside belongs to it."""
    with rollout_trace_attr(step=step, sample_index=sample, rollout_n=rollout):
        await Agent().run([{"role": "user", "content": f"question {sample}"}])


async def main() -> None:
    """Two steps of three samples with two rollouts each."""
    RolloutTraceConfig.init("examples", "rollout-loop", "jsonl")
    for step in (1, 2):
        await asyncio.gather(*(trajectory(step, sample, rollout) for sample in range(3) for rollout in range(2)))


if __name__ == "__main__":
    asyncio.run(main())
