"""What a rollout needs beside verl: a language model that follows a script, a tool, a reward.

Imported by the driver and, as the class of the tool, by verl in its workers.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import numpy as np
from transformers import AutoTokenizer
from verl import DataProto
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op
from verl.workers.rollout.replica import TokenOutput

END_OF_TURN = "<|im_end|>"


class ScriptedModel:
    """Answers by the question's number and the turn alone, so that equal runs are equal; counts its calls."""

    def __init__(self, model_folder: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model_folder)
        self.calls = 0

    async def generate(self, request_id: str, prompt_ids: list[int], **_: Any) -> TokenOutput:
        self.calls += 1
        await asyncio.sleep(0.002 * (len(prompt_ids) % 3))
        ids = self.tokenizer.encode(reply_to(self.tokenizer.decode(prompt_ids)) + END_OF_TURN)
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.25] * len(ids),
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": 0},
        )

    def count(self) -> int:
        return self.calls


def reply_to(text: str) -> str:
    """What the model says to a conversation, by the question's number and the turn."""
    return reply(int(text.partition("question ")[2].partition(":")[0]), text.count("<|im_start|>assistant\n") - 1)


def reply(question: int, turn: int) -> str:
    """What the model says: a tool that works, one that raises, a plain function, two at once, an unknown name."""
    first = [
        [("calculator", {"expression": f"{question}*7"})],
        [("calculator", {"expression": f"{question}/0"})],
        [("shout", {"text": f"hello {question}"})],
        [("calculator", {"expression": f"{question}+1"}), ("calculator", {"expression": f"{question}+2"})],
    ][question % 4]
    second = [("calculator", {"expression": f"{question}-1"})] if question % 2 else [("no_such_tool", {})]
    calls = {0: first, 1: second}.get(turn, [])
    if not calls or (turn == 1 and question % 4 == 0):
        return f"The answer to {question} is {question * 7}."
    return "".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': args})}\n</tool_call>" for name, args in calls
    )


class CalculatorTool(BaseTool):
    """A tool with verl's own decorator; it raises where the expression does, and notes each call in a file."""

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        parameters = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
        function = {"name": "calculator", "description": "evaluates an expression", "parameters": parameters}
        return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})

    @rollout_trace_op
    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[Any, float, dict[str, int]]:
        note = os.open(self.config["calls_file"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(note, b"x")
        finally:
            os.close(note)
        await asyncio.sleep(0.002)
        left, operator, right = split_expression(parameters["expression"])
        value = {"*": left * right, "+": left + right, "-": left - right}.get(operator)
        if value is None:
            value = left // right
        return ToolResponse(text=str(value)), 0.5, {"ok": 1}


def split_expression(text: str) -> tuple[int, str, int]:
    """`12*7` as its three parts."""
    operator = next(sign for sign in "*+-/" if sign in text)
    left, _, right = text.partition(operator)
    return int(left), operator, int(right)


class Reward:
    """verl's reward worker, which scores every answer alike."""

    def compute_score(self, data: Any) -> dict[str, Any]:
        return {"reward_score": 1.0, "reward_extra_info": {"acc": True}}


def prompts(step: int, samples: int) -> DataProto:
    """The data set's rows for one step: sample `i` asks question `i`."""
    numbers = [(step - 1) * samples + i for i in range(samples)]
    system = {"role": "system", "content": "You may call tools."}
    columns: dict[str, list[Any]] = {
        "raw_prompt": [[system, {"role": "user", "content": f"question {i}: what is {i} times 7?"}] for i in numbers],
        "index": list(numbers),
        "agent_name": ["tool_agent"] * samples,
        "data_source": ["tests/arithmetic"] * samples,
        "uid": [f"group-{i}" for i in numbers],
        "reward_model": [{"style": "rule", "ground_truth": str(i * 7)} for i in numbers],
        "extra_info": [{"index": i} for i in numbers],
        "tools_kwargs": [{} for _ in numbers],
    }
    return DataProto(batch=None, non_tensor_batch={name: _column(rows) for name, rows in columns.items()})


def _column(rows: list[Any]) -> Any:
    # filled one by one: numpy would make a table of equally long lists
    column = np.empty(len(rows), dtype=object)
    for position, row in enumerate(rows):
        column[position] = row
    return column
