"""What the recorder writes today is what the JSON Schemas describe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import zstandard

import verl_trace
from verl_trace.schemas.lines import PAYLOAD_KEYS

PROGRAM = """
import asyncio, os, threading
from verl_trace import RolloutTraceConfig, record_score, rollout_trace_attr, rollout_trace_op

class Tokenizer:
    def decode(self, ids, **options): return " ".join(map(str, ids))

class Agent:
    tokenizer = Tokenizer()
    @rollout_trace_op
    async def run(self, prompt_ids):
        await asyncio.gather(self.generate(prompt_ids), self.generate([9]))
        try:
            self.tool("x")
        except ValueError:
            return None
    @rollout_trace_op
    async def generate(self, prompt_ids):
        return {"prompt_ids": prompt_ids, "response_ids": [1, 2]}
    @rollout_trace_op
    def tool(self, name): raise ValueError(name)
    @rollout_trace_op
    def forever(self): os._exit(0)

RolloutTraceConfig.init("me/proj", "exp/1", "jsonl", token2text=True, max_samples_per_step_per_worker=2)
agent = Agent()
for sample, trace in ((0, True), ("one", True), (2, False)):
    with rollout_trace_attr(step=1, sample_index=sample, rollout_n=0, trace=trace):
        asyncio.run(agent.run([1, 2]))
        record_score("reward", float("nan"))
        record_score("who", print)
asyncio.run(agent.run([3]))
RolloutTraceConfig.reset()
RolloutTraceConfig.init("me/proj", "exp/1", "jsonl")
agent.forever()
"""


def test_every_line_of_a_fresh_recording_is_valid(tmp_path: Path) -> None:
    """Calls that return, raise and never end, attributes set and not, text, sampling, a killed process."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith("VERL_TRACE_")}
    environment = keep | {"VERL_TRACE_DIR": str(tmp_path), "VERL_TRACE_MIN_FREE": "0"}
    subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], env=environment, check=True, timeout=60)
    lines = []
    for path in sorted(tmp_path.glob("*/*.jsonl*")):
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        lines += data.splitlines()
    folder = Path(verl_trace.__file__).resolve().parent / "schemas"
    kinds = set()
    for line in lines:
        record: dict[str, Any] = json.loads(line)
        kind = record["kind"]
        kinds.add(kind)
        jsonschema.validate(record, json.loads((folder / f"{kind}.schema.json").read_text()))
        if kind in PAYLOAD_KEYS:
            payload = line[-1 - record["bytes"] : -1]
            assert list(record)[-1] == PAYLOAD_KEYS[kind]
            assert json.loads(payload) == record[PAYLOAD_KEYS[kind]]

    assert kinds == {"header", "start", "end", "text", "skip", "score", "close"}
    assert len(lines) == len(set(lines)) > 30
