"""vLLM's own classes, decorated directly and recorded, without verl:  python examples/vllm_direct.py MODEL

MODEL is the folder of a model that vLLM can serve. `LLM.generate` answers a batch at once; `AsyncLLM.generate` is an
async generator whose record holds what it yielded. vLLM's outputs and parameters are recorded as they are, with every
field. Then look at the files:  verl-trace ls
"""

import asyncio
import os
import sys

from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

PROMPTS = ["the answer is", "a number is", "is the answer a number"]


def offline(model: str) -> None:
    """Three prompts in one call of `LLM.generate`, two answers each, with log probabilities of answers and prompts."""
    from vllm import LLM, SamplingParams

    llm = LLM(model=model, enforce_eager=True, max_model_len=256, seed=0)
    generate = rollout_trace_op(llm.generate)
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
        generate(PROMPTS, SamplingParams(n=2, max_tokens=8, seed=1, logprobs=2, prompt_logprobs=1))


async def online(model: str) -> None:
    """Each prompt a stream of its own, all at once, each in a trajectory of its own."""
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, enforce_eager=True, max_model_len=256, seed=0))
    generate = rollout_trace_op(engine.generate)

    @rollout_trace_op(name="answer")
    async def answer(prompt: str) -> str:
        params = SamplingParams(max_tokens=8, seed=1, logprobs=0, output_kind=RequestOutputKind.DELTA)
        stream = generate(prompt, params, request_id=prompt)
        return "".join([output.outputs[0].text async for output in stream])

    async def trajectory(sample: int) -> None:
        with rollout_trace_attr(step=2, sample_index=sample, rollout_n=0):
            await answer(PROMPTS[sample])

    try:
        await asyncio.gather(*(trajectory(sample) for sample in range(len(PROMPTS))))
    finally:
        engine.shutdown()


def main(model: str) -> None:
    """One engine after the other; the offline one lives in this process."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    RolloutTraceConfig.init("examples", "vllm-direct", "jsonl")
    offline(model)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    asyncio.run(online(model))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python examples/vllm_direct.py MODEL: the folder of a model that vLLM can serve")
    main(sys.argv[1])
