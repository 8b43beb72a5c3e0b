"""Rollouts as agent loops make them, recorded: what goes wrong in them, and what happens to their messages later."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from verl_trace import rollout_trace_attr, rollout_trace_op


@dataclass
class TokenOutput:
    """As verl's client gives it, with the versions of the weights in fully asynchronous training."""

    token_ids: list[int]
    extra_fields: dict[str, Any] = field(default_factory=dict)


class Verifier:
    """A scorer with details of its own."""

    def __init__(self, client: object) -> None:
        self.client = client


@dataclass
class Score:
    """Its answer: numbers of numpy, and the verifier itself among the details."""

    value: Any
    details: dict[str, Any]


class Agent:
    """Turns of model and tool."""

    @rollout_trace_op
    async def run(self, messages: list[dict[str, Any]], turns: int = 2, fail_at: int | None = None) -> str:
        for turn in range(turns):
            output = await self.generate(messages)
            messages.append({"role": "assistant", "content": str(output.token_ids)})
            messages[0]["seen"] = turn
            await self.call_tool(turn, turn == fail_at)
        return "done"

    @rollout_trace_op
    async def generate(self, messages: list[dict[str, Any]]) -> TokenOutput:
        return TokenOutput([len(messages)], {"global_steps": 7, "min_global_steps": 5, "max_global_steps": 7})

    @rollout_trace_op
    async def call_tool(self, turn: int, fail: bool) -> dict[str, Any]:
        if fail:
            raise LookupError(f"no page for turn {turn}")
        return {
            "turn": np.int64(turn),
            "score": np.float32(0.5),
            "zero_d": np.array(1.5),
            "nested": [{"n": np.int32(1)}],
        }

    @rollout_trace_op
    def verify(self, verifier: Verifier) -> Score:
        return Score(np.float64("nan"), {"by": verifier, "exact": np.bool_(True), "parts": (np.int8(1), None)})


def roll(recording: Any, **kwargs: Any) -> list[dict[str, Any]]:
    """One rollout of the agent; its records."""

    async def main() -> None:
        with rollout_trace_attr(step=3, sample_index=1, rollout_n=0):
            await Agent().run([{"role": "user", "content": "why?"}], **kwargs)

    asyncio.run(main())
    found: list[dict[str, Any]] = recording.finish()
    return found


def test_a_rollout_that_raises_in_its_third_turn(recording: Any) -> None:
    """Recorded with its exception, and with all that was finished before, each call with its own end."""

    async def main() -> None:
        with rollout_trace_attr(step=3, sample_index=1, rollout_n=0):
            await Agent().run([{"role": "user", "content": "why?"}], turns=5, fail_at=2)

    with pytest.raises(LookupError, match="no page for turn 2"):
        asyncio.run(main())
    ends = recording.finish("end")

    assert [(r["op"].rpartition(".")[2], r["status"]) for r in ends] == [
        *[("generate", "success"), ("call_tool", "success")] * 2,
        ("generate", "success"),
        ("call_tool", "error"),
        ("run", "error"),
    ]
    assert {r["exception"]["message"] for r in ends if r["exception"]} == {"no page for turn 2"}
    assert ends[1]["output"]["turn"] == 0


def test_messages_are_those_of_the_moment(recording: Any) -> None:
    """A list of messages that grows, with dicts that change inside, shows in each call what it was then."""
    records = roll(recording)
    inputs = [r["inputs"]["messages"] for r in records if r["kind"] == "start" and r["op"] == "Agent.generate"]
    (root,) = (r["inputs"]["messages"] for r in records if r["kind"] == "start" and r["op"] == "Agent.run")

    assert root == [{"role": "user", "content": "why?"}]
    assert inputs[0] == root
    assert inputs[1] == [{"role": "user", "content": "why?", "seen": 0}, {"role": "assistant", "content": "[1]"}]


def test_results_of_tools_keep_their_numbers(recording: Any, capfd: Any) -> None:
    """numpy scalars and 0-d arrays at any depth are numbers, and nobody is warned of anything."""
    outputs = [r["output"] for r in roll(recording) if r["kind"] == "end" and r["op"] == "Agent.call_tool"]

    assert outputs == [{"turn": turn, "score": 0.5, "zero_d": 1.5, "nested": [{"n": 1}]} for turn in range(2)]
    assert "not recorded" not in capfd.readouterr().err


def test_both_versions_of_the_weights_are_there(recording: Any) -> None:
    """The step of the rollout stands in the attributes, the versions that generated in the answer."""
    records = roll(recording)
    (end, *_) = (r for r in records if r["kind"] == "end" and r["op"] == "Agent.generate")

    assert end["step"] == 3
    assert end["output"]["extra_fields"] == {"global_steps": 7, "min_global_steps": 5, "max_global_steps": 7}


def test_details_of_a_verifier(recording: Any) -> None:
    """An object of its own among a score's details is named with its attributes; the score is what it is."""
    verifier = Verifier(object())
    score = Agent().verify(verifier)
    (end,) = recording.finish("end")

    assert score.details["by"] is verifier
    assert end["output"]["value"] == {"_type": "float", "value": "nan"}
    assert end["output"]["details"]["by"] == {"_type": "Verifier", "client": "<builtins.object>"}
    assert end["output"]["details"]["exact"] is True
    assert end["output"]["details"]["parts"] == [1, None]
