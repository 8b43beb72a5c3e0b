"""Functions, streams, a tool object and a thread pool, recorded:  python examples/threads_and_streams.py

Then look at the files:  verl-trace ls
"""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor

from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op, with_context

pool = ThreadPoolExecutor(2)


@rollout_trace_op
async def stream(prompt: str) -> AsyncGenerator[str, None]:
    """A stand-in for a streaming server; the record's output is the list of all pieces."""
    for word in f"you asked: {prompt}".split():
        await asyncio.sleep(0.001)
        yield word


@rollout_trace_op(name="length_reward")
def score(answer: str) -> float:
    """A plain function, under a name of its own."""
    return min(1.0, len(answer) / 100)


class Search:
    """A tool that is an object: `rollout_trace_op(Search())` records its calls."""

    async def __call__(self, query: str) -> list[str]:
        return [f"a page about {query}"]

    @staticmethod
    @rollout_trace_op
    def tokenize(text: str) -> list[int]:
        """Runs in a thread, below the call that handed it over."""
        return [len(word) for word in text.split()]


search = rollout_trace_op(Search())


@rollout_trace_op
async def rollout(question: str) -> float:
    """One call tree: the stream, the tool, one call in a thread, and two scores in two threads."""
    answer = " ".join([word async for word in stream(question)])
    pages = await search(question)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(pool, with_context(search.tokenize), answer)
    return sum(pool.map(with_context(score), [answer, *pages]))


async def main() -> None:
    """Two samples at once; each keeps its own tree, in the threads too."""
    RolloutTraceConfig.init("examples", "threads-and-streams", "jsonl")

    async def trajectory(sample: int) -> None:
        with rollout_trace_attr(step=1, sample_index=sample, rollout_n=0):
            await rollout(f"question {sample}")

    await asyncio.gather(*(trajectory(sample) for sample in range(2)))


if __name__ == "__main__":
    asyncio.run(main())
