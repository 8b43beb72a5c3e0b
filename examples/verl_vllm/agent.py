"""An agent loop of our own, with traced methods of its own: it drafts an answer, checks it, and drafts once more."""

from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.utils.rollout_trace import rollout_trace_op


class CheckingAgent(AgentLoopBase):
    """Registered as `checking_agent` by the file that `rollout.agent.agent_loop_config_path` names."""

    @rollout_trace_op
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Two drafts; what is recorded of the trajectory is the tree of the methods below."""
        messages = list(kwargs["raw_prompt"])
        prompt_ids = await self.ct_build_initial_tokens(messages)
        attempt = 0
        output = await self.draft(prompt_ids, sampling_params)
        while not self.check(output.token_ids, attempt):
            attempt += 1
            output = await self.draft(prompt_ids, sampling_params)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=output.token_ids,
            response_mask=[1] * len(output.token_ids),
            response_logprobs=output.log_probs,
            num_turns=2,
            metrics=AgentLoopMetrics(),
        )

    @rollout_trace_op
    async def draft(self, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        """One answer of the model, as verl's client gives it."""
        return await self.server_manager.generate(
            request_id=uuid4().hex, prompt_ids=prompt_ids, sampling_params=sampling_params
        )

    @rollout_trace_op
    def check(self, token_ids: list[int], attempt: int) -> bool:
        """A plain method; the first draft is never good enough."""
        return attempt > 0
