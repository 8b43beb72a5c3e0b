"""A small multi-turn rollout, driven as verl's agent loop drives it, with a script in place of the model.

Two workers record every sample's group of rollouts; in one trajectory the tool raises. A third worker is stuck in a
tool call when the caller kills it: what it was doing is on disk all the same.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

from ..recorder import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

__all__ = ["Plan", "Tokenizer", "Trajectory", "roll_out", "work", "work_until_killed"]

# Long enough that nobody waits for it: the process is killed in the middle of this call.
_FOREVER = 3600.0
# A hanging tool has been at it for a moment before anybody kills the worker; its text is decoded by then.
_A_WHILE = 0.3


class Plan(NamedTuple):
    """What is recorded, and where: numbers as a training configuration would give them."""

    folder: Path
    project: str
    experiment: str
    attempt: str
    steps: int = 2
    samples: int = 2
    rollouts: int = 2
    workers: int = 2


class Trajectory(NamedTuple):
    """One rollout of one sample in one step."""

    step: int
    sample_index: int
    rollout_n: int


class Tokenizer:
    """UTF-8 bytes as token ids: small, and a real codec with the `decode` that token2text asks for."""

    def encode(self, text: str) -> list[int]:
        """The ids of `text`."""
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`."""
        return bytes(ids).decode(errors="replace")


@dataclass
class TokenOutput:
    """What one turn of the model gives."""

    token_ids: list[int]
    stop_reason: str = "completed"


@dataclass
class AgentLoopOutput:
    """What a finished trajectory gives to training."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    num_turns: int


@dataclass
class Question:
    """A division to be done with the calculator."""

    dividend: int
    divisor: int

    def text(self) -> str:
        """As the prompt asks it."""
        return f"What is {self.dividend} divided by {self.divisor}? Use the calculator."


@dataclass
class ScriptedModel:
    """Answers each turn with the next line of its script; ids in, ids out."""

    tokenizer: Tokenizer
    script: list[str]
    turns: int = 0

    @rollout_trace_op
    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, float]
    ) -> TokenOutput:
        """The next turn; `prompt_ids` is the whole conversation so far."""
        await asyncio.sleep(0)
        line = self.script[self.turns]
        self.turns += 1
        return TokenOutput(self.tokenizer.encode(line))


class Calculator:
    """Divides; raises ZeroDivisionError where a pocket calculator shows E."""

    def __init__(self, stuck: Event | None = None) -> None:
        self.stuck = stuck

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, int]) -> str:
        """The quotient as text."""
        if self.stuck is not None:
            await asyncio.sleep(_A_WHILE)
            self.stuck.set()
            await asyncio.sleep(_FOREVER)
        return f"{parameters['dividend'] / parameters['divisor']:g}"


@dataclass
class ToolAgentLoop:
    """Model turn, tool call, model turn: one trajectory."""

    tokenizer: Tokenizer
    model: ScriptedModel
    tool: Calculator
    response_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)

    @rollout_trace_op
    async def run(
        self, sampling_params: dict[str, float], *, raw_prompt: list[dict[str, str]], question: Question
    ) -> AgentLoopOutput:
        """The whole trajectory; a tool that raises is told to the model as text."""
        prompt_ids = self.tokenizer.encode(raw_prompt[-1]["content"])
        await self._turn(prompt_ids, sampling_params)
        parameters = {"dividend": question.dividend, "divisor": question.divisor}
        try:
            result = await self.tool.execute("calculator-0", parameters)
        except ZeroDivisionError as error:
            result = f"error: {error}"
        self._extend(self.tokenizer.encode(f"<tool>{result}</tool>"), mask=0)
        await self._turn(prompt_ids, sampling_params)
        return AgentLoopOutput(prompt_ids, self.response_ids, self.response_mask, num_turns=4)

    async def _turn(self, prompt_ids: list[int], sampling_params: dict[str, float]) -> None:
        output = await self.model.generate(
            "request-0", prompt_ids=prompt_ids + self.response_ids, sampling_params=sampling_params
        )
        self._extend(output.token_ids, mask=1)

    def _extend(self, ids: list[int], *, mask: int) -> None:
        self.response_ids += ids
        self.response_mask += [mask] * len(ids)


async def roll_out(trajectory: Trajectory, stuck: Event | None = None) -> AgentLoopOutput:
    """Run one trajectory under its attributes, as a verl worker does."""
    question = _question(trajectory)
    tokenizer = Tokenizer()
    call = f"<calculator>{question.dividend}/{question.divisor}</calculator>"
    answer = f"It is {question.dividend / question.divisor:g}." if question.divisor else "That cannot be divided."
    loop = ToolAgentLoop(tokenizer, ScriptedModel(tokenizer, [call, answer]), Calculator(stuck))
    with rollout_trace_attr(**trajectory._asdict(), name="agent_loop"):
        return await loop.run(
            {"temperature": 1.0, "top_p": 0.95},
            raw_prompt=[{"role": "user", "content": question.text()}],
            question=question,
        )


def _question(trajectory: Trajectory) -> Question:
    """The tool raises in the first rollout of sample 0 in step 1, and in no other."""
    divisor = 0 if trajectory == (1, 0, 0) else trajectory.sample_index + 2
    return Question(12 * trajectory.step, divisor)


def work(plan: Plan, worker: int) -> None:
    """Body of one worker process: its share of the samples, all rollouts of a step at once."""
    _begin(plan)
    samples = range(worker, plan.samples, plan.workers)
    for step in range(1, plan.steps + 1):
        asyncio.run(_roll_out_all([Trajectory(step, s, n) for s in samples for n in range(plan.rollouts)]))


def work_until_killed(plan: Plan, stuck: Event) -> None:
    """Body of the worker that never comes back from its tool: sets `stuck` when it is there."""
    _begin(plan)
    asyncio.run(roll_out(Trajectory(plan.steps, plan.samples, 0), stuck))


async def _roll_out_all(trajectories: list[Trajectory]) -> None:
    await asyncio.gather(*(roll_out(trajectory) for trajectory in trajectories))


def _begin(plan: Plan) -> None:
    """Start recording with the plan's settings and none that the caller's environment may hold for a training."""
    for name in [name for name in os.environ if name.startswith("VERL_TRACE_")]:
        del os.environ[name]
    os.environ.update(VERL_TRACE_DIR=str(plan.folder), VERL_TRACE_ATTEMPT=plan.attempt, VERL_TRACE_MIN_FREE="0")
    RolloutTraceConfig.init(plan.project, plan.experiment, "jsonl", token2text=True)
