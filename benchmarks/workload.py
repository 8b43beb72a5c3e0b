"""The rollouts that all benchmarks measure with: seeded, realistic in size and entropy, without a model.

| kind | a trajectory | a call |
| --- | --- | --- |
| S | 8 tool calls | 300 bytes in, 300 bytes out |
| M | one LLM turn | 4,096 prompt ids; 512 response ids and log-probs, text |
| L | 8 LLM turns and tool calls, 32,768 ids in all | 2,048 to 28,928 prompt ids, 1,024 response ids, log-probs |
| mix | 2 to 8 turns; 32 prompts with 8 rollouts each make a step | all sizes between |

Ids are drawn one by one with the frequencies of natural text (about 10 bits each), log-probs are float32 with a full
mantissa, as engines return them: what compresses here compresses in training. A turn's prompt begins with that of the
turn before, and consists of the same int objects, as in verl's agent loops.

`trajectories` yields Python values, `make_agent` something that calls decorated methods with them; `made_run` beside
this file writes them as span files.
"""

from __future__ import annotations

import itertools
import math
import random
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

__all__ = ["KINDS", "REQUEST", "SAMPLING", "Shape", "Trajectory", "Turn", "make_agent", "trajectories"]

Range = tuple[int, int]


class Shape(NamedTuple):
    """How long things are; both ends may be drawn. Lengths of ids, `said`: words of an answer's text."""

    turns: Range
    prompt: Range
    response: Range
    result: Range
    said: Range
    has_llm: bool = True
    has_tool: bool = True


KINDS = {
    "S": Shape((8, 8), (0, 0), (0, 0), (0, 0), (0, 0), has_llm=False),
    "M": Shape((1, 1), (4096, 4096), (512, 512), (0, 0), (256, 256), has_tool=False),
    "L": Shape((8, 8), (2048, 2048), (1024, 1024), (2816, 2816), (512, 512)),
    "mix": Shape((2, 8), (256, 3072), (64, 1024), (16, 512), (32, 512)),
}
PROMPTS, ROLLOUTS = 32, 8
VOCABULARY = 151_936
_SYLLABLES = (
    *("an", "er", "the", "re", "st", "on", "at", "is", "en", "al", "ti", "ed", "ing", "ro", "li", "ve"),
    *("co", "de", "ra", "per", "un", "si", "ta", "mo", "漢字", "naïve", '"so"', "back\\slash"),
)


class Turn(NamedTuple):
    """One LLM turn and the tool call after it. `added`: what comes behind the ids of the turn before in its prompt."""

    added: list[int]
    answer: dict[str, Any] | None
    parameters: dict[str, Any] | None
    result: dict[str, Any] | None


class Trajectory(NamedTuple):
    """One rollout: the arguments and results of all of its calls."""

    step: int
    sample_index: int
    rollout_n: int
    messages: list[dict[str, str]]
    turns: list[Turn]

    @property
    def calls(self) -> int:
        """How many traced calls it makes, the root included."""
        return 1 + sum((turn.answer is not None) + (turn.parameters is not None) for turn in self.turns)

    def prompts(self) -> Iterator[list[int]]:
        """The prompt of each turn: the same list, which grows, as verl's agents pass it."""
        ids: list[int] = []
        for turn in self.turns:
            ids += turn.added
            yield ids
            if turn.answer is not None:
                ids += turn.answer["token_ids"]

    def output(self) -> dict[str, Any]:
        """What the agent loop returns: all ids, which of them the model wrote, and their log-probs."""
        ids, mask = list[int](), list[int]()
        log_probs = list[float]()
        for number, turn in enumerate(self.turns):
            added = turn.added if number else []
            written = turn.answer or {"token_ids": [], "log_probs": []}
            ids += added + written["token_ids"]
            mask += [0] * len(added) + [1] * len(written["token_ids"])
            log_probs += [0.0] * len(added) + written["log_probs"]
        return {
            "prompt_ids": self.turns[0].added, "response_ids": ids, "response_mask": mask,
            "response_logprobs": log_probs, "num_turns": 2 * len(self.turns),
            "metrics": {"generate_sequences": 3.25, "tool_calls": 0.5},
        }  # fmt: skip


class Source:
    """Draws ids, log-probs and words."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)
        low, high = math.log(10), math.log(VOCABULARY)
        # Zipf's law: an id is drawn as often as its rank is small; a pool of 65,536 such draws, to draw from fast
        self._pool = [int(math.exp(self.random.uniform(low, high))) for _ in range(1 << 16)]
        self._words = ["".join(self.random.choices(_SYLLABLES, k=self.random.randint(1, 4))) for _ in range(1 << 14)]

    def ids(self, count: int) -> list[int]:
        """Token ids."""
        return list(map(self._pool.__getitem__, memoryview(self.random.randbytes(2 * count)).cast("H")))

    def log_probs(self, count: int) -> list[float]:
        """Log-probs from -2 to -0.00003, any float32 between."""
        # the sign and four bits of the exponent are set, all others are left to chance
        bits = int.from_bytes(self.random.randbytes(4 * count), "little")
        bits = bits & int.from_bytes(b"\xff\xff\xff\x07" * count, "little")
        bits |= int.from_bytes(b"\0\0\0\xb8" * count, "little")
        return array("f", bits.to_bytes(4 * count, "little")).tolist()

    def text(self, words: int) -> str:
        """Words, some of them with what JSON escapes."""
        return " ".join(map(self._words.__getitem__, self._short(words)))

    def letters(self, length: int) -> str:
        """Text of a certain length."""
        return self.text(length // 4)[:length].ljust(length, ".")

    def length(self, bounds: Range) -> int:
        """A length between both."""
        return self.random.randint(*bounds)

    def _short(self, count: int) -> list[int]:
        return [number >> 2 for number in memoryview(self.random.randbytes(2 * count)).cast("H")]


def trajectories(kind: str, seed: int | str = 1) -> Iterator[Trajectory]:
    """Trajectories without end, step by step; the rollouts of one prompt (GRPO's group) follow each other."""
    source, shape = Source(f"{kind}-{seed}"), KINDS[kind]
    for step in itertools.count(1):
        for sample in range(PROMPTS):
            prompt = source.ids(source.length(shape.prompt))
            messages = [{"role": "system", "content": "Use the tools."}, {"role": "user", "content": source.text(60)}]
            for rollout in range(ROLLOUTS):
                yield Trajectory(step, sample, rollout, messages, _turns(source, shape, prompt, sample))


def _turns(source: Source, shape: Shape, prompt: list[int], sample: int) -> list[Turn]:
    turns = []
    added = prompt
    for number in range(source.length(shape.turns)):
        answer = parameters = result = None
        if shape.has_llm:
            count = source.length(shape.response)
            answer = {
                "token_ids": source.ids(count), "log_probs": source.log_probs(count),
                "text": source.text(source.length(shape.said)), "stop_reason": "completed", "num_preempted": 0,
            }  # fmt: skip
        if shape.has_tool:
            parameters = {"query": f"needle-{sample}-{number} x " + source.letters(180), "top_k": 5, "region": None}
            result = {"text": source.letters(200), "status": "ok", "score": 0.25, "cached": False, "took_ms": 17.5}
        turns.append(Turn(added, answer, parameters, result))
        added = source.ids(source.length(shape.result))
    return turns


SAMPLING = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, "logprobs": True, "max_tokens": 4096}
REQUEST = "7f3c2b7a1d044e1f8a21aa0cc95b1c77"


def make_agent(decorate: Callable[[Any], Any]) -> Any:
    """An agent whose three coroutine methods are decorated: `run(trajectory)`, `generate(…)` and `execute(…)`.

    `wait`, where one is set, is awaited where a real agent waits for the engine or a tool.
    """

    class Agent:
        wait: Callable[[], Any] | None = None

        def __init__(self) -> None:
            self.results: Iterator[Any] = iter(())

        @decorate
        async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
            if self.wait is not None:
                await self.wait()
            return next(self.results)

        @decorate
        async def execute(self, instance_id: str, parameters: dict[str, Any]) -> Any:
            if self.wait is not None:
                await self.wait()
            return next(self.results)

        @decorate
        async def run(self, sampling_params: dict[str, Any], raw_prompt: list[dict[str, str]]) -> Any:
            trajectory: Trajectory = next(self.results)
            for turn, ids in zip(trajectory.turns, trajectory.prompts(), strict=True):
                if turn.answer is not None:
                    self.results = iter((turn.answer,))
                    await self.generate(request_id=REQUEST, prompt_ids=ids, sampling_params=sampling_params)
                if turn.parameters is not None:
                    self.results = iter((turn.result,))
                    await self.execute(instance_id=REQUEST, parameters=turn.parameters)
            return trajectory.output()

        async def roll_out(self, trajectory: Trajectory) -> Any:
            """All calls of a trajectory; one agent makes one at a time."""
            self.results = iter((trajectory,))
            return await self.run(sampling_params=SAMPLING, raw_prompt=trajectory.messages)

    return Agent()
