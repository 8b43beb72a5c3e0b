"""A tool whose work is done by a Ray actor, as verl's sandbox and search tools did until 0.7."""

from __future__ import annotations

import os
from typing import Any

import ray
from rollout_parts import CalculatorTool, split_expression
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op


class Abacus:
    """Runs in a process of its own; `ABACUS_DIES_AT` names the number at which that process is gone."""

    def evaluate(self, expression: str) -> int:
        left, operator, right = split_expression(expression)
        if str(left) == os.environ.get("ABACUS_DIES_AT"):
            os._exit(1)
        return self.compute(left, operator, right)

    @rollout_trace_op
    def compute(self, left: int, operator: str, right: int) -> int:
        values = {"*": left * right, "+": left + right, "-": left - right}
        return values[operator] if operator in values else left // right


class ActorCalculator(CalculatorTool):
    """Hands its expression on."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema) -> None:
        super().__init__(config, tool_schema)
        self.actor = ray.remote(Abacus).options(num_cpus=0, max_restarts=-1).remote()

    @rollout_trace_op
    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[Any, float, dict[str, int]]:
        value = await self.actor.evaluate.remote(parameters["expression"])
        return ToolResponse(text=str(value)), 0.5, {"ok": 1}
