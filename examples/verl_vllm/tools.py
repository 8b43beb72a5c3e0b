"""A tool of our own. Its `execute` carries no decorator: with verl-trace it is recorded all the same."""

from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op


class Calculator(BaseTool):
    """Works out `12*7`; raises ZeroDivisionError, which verl tells the model."""

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        """What the model is told about the tool."""
        parameters = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
        function = {"name": "calculator", "description": "works out an expression", "parameters": parameters}
        return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """One call of the model; `work_out` is a call below it."""
        return ToolResponse(text=str(self.work_out(parameters["expression"]))), 0.0, {}

    @rollout_trace_op
    def work_out(self, expression: str) -> int:
        """A part of the tool that we want to see in the trajectory."""
        operator = next(sign for sign in "*/" if sign in expression)
        left, _, right = expression.partition(operator)
        return int(left) * int(right) if operator == "*" else int(left) // int(right)
