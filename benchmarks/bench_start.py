"""What it takes to import verl_trace and to record the first call, in a fresh interpreter.

    python benchmarks/bench_start.py [--rounds 15]

The interpreter's own start is not counted, nor orjson's and zstandard's import where they are loaded already; both are
given. At the end the first call is looked for, and modules that have no place in a recorder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from sides import count_calls

PROGRAM = """
import json, os, sys, time
before = set(sys.modules)
a = time.perf_counter()
import verl_trace
b = time.perf_counter()

@verl_trace.rollout_trace_op
def call(text):
    return {"text": text}

c = time.perf_counter()
verl_trace.RolloutTraceConfig.init("bench", "start", "jsonl")
with verl_trace.rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
    call("hello")
d = time.perf_counter()
print(json.dumps({"import": b - a, "call": d - c, "all": d - a, "modules": sorted(set(sys.modules) - before)}))
sys.stdout.flush()
os._exit(0)  # as SIGKILL would end it: the record is there already
"""
HEAVY = ("numpy", "torch", "weave", "wandb", "requests", "typer", "rich", "asyncio", "multiprocessing", "email", "ssl")


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM],
                env={"PATH": "/usr/bin:/bin", "VERL_TRACE_DIR": folder},
                capture_output=True, check=True, text=True,
            )  # fmt: skip
            rounds.append(json.loads(done.stdout))
        there = count_calls(Path(folder) / "start")
    for what in ("import", "call", "all"):
        times = [round[what] * 1000 for round in rounds]
        name = {"import": "import verl_trace", "call": "init and first call", "all": "together"}[what]
        print(f"{name:<20} {statistics.median(times):6.1f} ms   best {min(times):6.1f} ms")
    loaded = {name.partition(".")[0] for name in rounds[0]["modules"]}
    heavy = sorted(loaded & set(HEAVY))
    print(f"modules loaded: {len(rounds[0]['modules'])}; heavy ones: {', '.join(heavy) or 'none'}")
    print(f"start: {there:,} of {options.rounds:,} calls are there")
    sys.exit(there != options.rounds or bool(heavy))


if __name__ == "__main__":
    main()
