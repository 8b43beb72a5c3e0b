"""What the recorder writes today is what the JSON Schemas describe, and nothing that they do not."""

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
from verl_trace.reader import find_runs, summarise

SCHEMAS = Path(verl_trace.__file__).resolve().parent / "schemas"
PROGRAM = """
import os
from verl_trace import RolloutTraceConfig, record_score, rollout_trace_attr, rollout_trace_op

class Tokenizer:
    def decode(self, ids, **options):
        return " ".join(map(str, ids))

class Loop:
    tokenizer = Tokenizer()

    @rollout_trace_op
    def run(self, prompt_ids, fail=False):
        if fail:
            raise ValueError("sök\\ud800")
        return {"prompt_ids": prompt_ids, "response_ids": [4, 5], "odd": {1, 2}, "nan": float("nan")}

RolloutTraceConfig.init("me/proj", "exp1", "jsonl", token2text=True, max_samples_per_step_per_worker=2)
with rollout_trace_attr(sample_index=0, step=1, rollout_n=0):
    Loop().run([1, 2])
    record_score("reward", 1.0)
with rollout_trace_attr(sample_index="seven", step=1, validate=True):
    try:
        Loop().run([], fail=True)
    except ValueError:
        pass
with rollout_trace_attr(sample_index=2, step=1, trace=False):
    Loop().run([3])
Loop().run([1])
if os.fork() == 0:
    Loop().run([9])
    RolloutTraceConfig.reset()
    os._exit(0)
assert os.wait()[1] == 0
RolloutTraceConfig.reset()
"""


def lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return [json.loads(line) for line in data.splitlines()]


def test_every_recorded_line_is_valid_and_has_no_undocumented_key(tmp_path: Path) -> None:
    """Of two processes, with an error, text, a sampled-out trajectory and calls outside of any trajectory."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VERL_TRACE_")}
    settings = {"VERL_TRACE_DIR": str(tmp_path / "runs"), "VERL_TRACE_MIN_FREE": "0"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], env=clean | settings, check=True, timeout=60)
    found = [record for path in sorted((tmp_path / "runs" / "exp1").glob("*.jsonl*")) for record in lines(path)]
    for record in found:
        schema = json.loads((SCHEMAS / f"{record['kind']}.schema.json").read_text())
        jsonschema.Draft202012Validator(schema).validate(record)
        assert set(record) <= set(schema["properties"])

    assert {record["kind"] for record in found} == {"header", "start", "end", "text", "skip", "score", "close"}
    (run,) = find_runs(tmp_path / "runs")
    summary = summarise(run)
    assert (summary.calls, summary.errors, summary.skipped, len(run.writers)) == (4, 1, 1, 2)
    assert (summary.damages, summary.unknown_kinds, summary.unfinished) == ([], {}, 0)
    assert run.state == "closed"
