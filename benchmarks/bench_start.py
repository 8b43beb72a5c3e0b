"""What it takes to import verl_trace and to record the first call, in a fresh interpreter that has loaded nothing.

    python benchmarks/bench_start.py [--rounds 15]

Beside it, in turn: orjson's import alone, which is a part of it, and the same in a process that has loaded what
training has loaded anyway. The interpreter's own start is not counted; the finder of an editable installation, which
loads a good part of the standard library, is kept out. At the end the first call is looked for, and modules that have
no place in a recorder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sides import count_calls
from table import tell

PROGRAM = """
import os, sys, time
sys.path.insert(0, os.environ["PACKAGES"])
LOADED
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
import json
print(json.dumps({"import": b - a, "call": d - c, "all": d - a, "modules": sorted(set(sys.modules) - before)}))
sys.stdout.flush()
os._exit(0)  # as SIGKILL would end it: the record is there already
"""
ORJSON = """
import os, sys, time
sys.path.insert(0, os.environ["PACKAGES"])
a = time.perf_counter()
import orjson
orjson.dumps({"text": "hello"})
print('{"all": %f}' % (time.perf_counter() - a))
"""
# torch, Ray and verl have loaded far more.
TRAINING = "import asyncio, concurrent.futures, hashlib, logging, multiprocessing, orjson, pathlib, tempfile, typing"
PROGRAMS = {
    "bare": PROGRAM.replace("LOADED", ""),
    "orjson": ORJSON,
    "training": PROGRAM.replace("LOADED", TRAINING),
}
HEAVY = ("numpy", "torch", "weave", "wandb", "requests", "typer", "rich", "asyncio", "multiprocessing", "email", "ssl")
ROWS = (
    ("import verl_trace", "bare", "import"),
    ("init and first call", "bare", "call"),
    ("together", "bare", "all"),
    ("of it orjson's import", "orjson", "all"),
    ("together, where training has loaded orjson and the rest", "training", "all"),
)


def measure(rounds: int) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """What each program said, round by round, and how many calls were recorded."""
    import orjson

    import verl_trace

    said: dict[str, list[dict[str, Any]]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder) / "packages"
        packages.mkdir()
        for module in (verl_trace, orjson):
            (packages / module.__name__).symlink_to(Path(str(module.__file__)).parent)
        for _ in range(rounds):
            for name, program in PROGRAMS.items():
                done = subprocess.run(
                    [sys.executable, "-I", "-S", "-c", program],
                    env={"PATH": "/usr/bin:/bin", "VERL_TRACE_DIR": folder, "PACKAGES": str(packages)},
                    capture_output=True, check=True, text=True,
                )  # fmt: skip
                said[name].append(json.loads(done.stdout))
        return said, count_calls(Path(folder) / "start")


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    said, there = measure(options.rounds)
    for title, name, what in ROWS:
        times = [round[what] * 1000 for round in said[name]]
        print(f"{title:<55} {statistics.median(times):6.1f} ms   best {min(times):6.1f} ms")
    together = statistics.median(round["all"] * 1000 for round in said["bare"])
    tell("import, init and first call", together, "ms", at_most=30)
    modules = said["bare"][0]["modules"]
    heavy = sorted({name.partition(".")[0] for name in modules} & set(HEAVY))
    made = 2 * options.rounds
    print(f"modules loaded: {len(modules)}; heavy ones: {', '.join(heavy) or 'none'}")
    print(f"start: {there:,} of {made:,} calls are there")
    sys.exit(there != made or bool(heavy))


if __name__ == "__main__":
    main()
