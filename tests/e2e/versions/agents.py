"""Agents and tools of users, as they are written for verl: with its decorator, and without."""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools import schemas
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema
from verl.utils.rollout_trace import rollout_trace_op


class _Tool(BaseTool):
    """What both tools share; verl 0.5 wants a bare text as the answer."""

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        function = {"name": type(self).__name__.lower(), "description": "a tool", "parameters": parameters}
        return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})

    def answer(self, parameters: dict[str, Any]) -> tuple[Any, float, dict[str, Any]]:
        text = parameters["text"].upper()
        old = not hasattr(schemas, "ToolResponse")
        return (text if old else schemas.ToolResponse(text=text)), 0.0, {}


class Decorated(_Tool):
    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        return self.answer(parameters)


class Plain(_Tool):
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        return self.answer(parameters)


@ToolParser.register("raw")
class RawParser(ToolParser):
    """`[name arguments]`: hands on what the model wrote, as parsers other than hermes do, JSON or not."""

    async def extract_tool_calls(self, responses_ids: list[int], tools: Any = None) -> Any:
        text = self.tokenizer.decode(responses_ids)
        if not text.startswith("["):
            return text, []
        name, _, arguments = text.partition("]")[0][1:].partition(" ")
        return "", [FunctionCall(name=name, arguments=arguments)]


async def one_answer(loop: AgentLoopBase, sampling_params: dict[str, Any], messages: list[Any]) -> AgentLoopOutput:
    """One call of the model, and an output of whatever shape this verl wants."""
    prompt_ids = list(loop.tokenizer.encode(messages[0]["content"]))
    answer = await loop.server_manager.generate("request", prompt_ids=prompt_ids, sampling_params=sampling_params)
    ids = list(getattr(answer, "token_ids", answer))
    metrics = agent_loop.AgentLoopMetrics()
    return AgentLoopOutput(
        prompt_ids=prompt_ids, response_ids=ids, response_mask=[1] * len(ids), num_turns=2, metrics=metrics
    )


@register("plain_loop")
class PlainLoop(AgentLoopBase):
    """verl 0.5 hands the messages over by position and before the sampling parameters."""

    async def run(self, *args: Any, **kwargs: Any) -> AgentLoopOutput:
        messages = kwargs["raw_prompt"] if kwargs else args[0]
        return await one_answer(self, args[-1], messages)


@register("decorated_loop")
class DecoratedLoop(AgentLoopBase):
    @rollout_trace_op
    async def run(self, *args: Any, **kwargs: Any) -> AgentLoopOutput:
        messages = kwargs["raw_prompt"] if kwargs else args[0]
        return await one_answer(self, args[-1], messages)


@register("own_tool_agent")
class OwnToolAgent(ToolAgentLoop):
    """A tool agent that overrides nothing of what is traced."""
