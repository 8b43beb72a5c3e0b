"""Prompts of thousands of ids, turn after turn: every record holds all of its turn, on disk when the call returns."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from verl_trace import rollout_trace_attr, rollout_trace_op
from verl_trace.schemas import repeats


class Client:
    """An engine that answers with what it was asked."""

    @rollout_trace_op
    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"token_ids": prompt_ids[-600:], "log_probs": [-0.5] * 600, "stop_reason": None}


async def agent(client: Client, number: int) -> list[list[int]]:
    """The prompts of six turns; one of them edits what was there before, as agents that cut their history do."""
    ids, prompts = list[int](), []
    with rollout_trace_attr(step=1, sample_index=number, rollout_n=0):
        for turn in range(6):
            ids += range(number * 100_000 + turn * 2000, number * 100_000 + (turn + 1) * 2000)
            if turn == 4:
                del ids[1000:1500]
            prompts.append(ids.copy())
            out = await client.generate(prompt_ids=ids, sampling_params={"top_p": 1.0, "seed": None})
            ids += out["token_ids"]
    return prompts


def test_every_turn_is_whole(recording: Any) -> None:
    """Agents that run at once, with prompts that grow in place, are recorded as they were at each call."""
    repeats.prepare()
    gc.collect()
    held = repeats._held

    async def all_of() -> list[list[list[int]]]:
        client = Client()
        return await asyncio.gather(*(agent(client, number) for number in range(8)))

    passed = asyncio.run(all_of())
    assert repeats._held == held
    records = recording.finish("start", "end")
    ends = {record["id"]: record for record in records if record["kind"] == "end"}
    for number, prompts in enumerate(passed):
        starts = [r for r in records if r["kind"] == "start" and r["sample_index"] == number]

        assert [record["inputs"]["prompt_ids"] for record in starts] == prompts
        assert [ends[r["id"]]["output"]["token_ids"] for r in starts] == [prompt[-600:] for prompt in prompts]
        assert all(len(json.dumps(r["inputs"], separators=(",", ":"))) == r["bytes"] for r in starts)


KILLED = """
import asyncio, os, signal, sys
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
from verl_trace.schemas import repeats

@rollout_trace_op
async def generate(prompt_ids):
    return {"token_ids": prompt_ids[:10]}

async def main():
    RolloutTraceConfig.init("p", "killed", "jsonl")
    repeats.prepare()
    ids = []
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
        for turn in range(5):
            ids += range(turn * 5000, (turn + 1) * 5000)
            await generate(prompt_ids=ids)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_large_records_survive_sigkill(tmp_path: Path) -> None:
    """A process that is killed right behind the call leaves all prompts, whole."""
    environment = {**os.environ, "VERL_TRACE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", KILLED], env=environment, timeout=60, check=False)
    (raw,) = (tmp_path / "killed").glob("*.jsonl")
    records = [json.loads(line) for line in raw.read_bytes().splitlines()]
    starts = [record for record in records if record["kind"] == "start"]

    assert done.returncode == -signal.SIGKILL
    assert [record["inputs"]["prompt_ids"] for record in starts] == [list(range(n * 5000)) for n in range(1, 6)]
    assert sum(record["kind"] == "end" for record in records) == 5
