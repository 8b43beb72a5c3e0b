"""Every reading command on a run as large as training leaves: it comes to an end, in memory that does not grow with it.

Ten gigabytes of records in the soak, little otherwise. SOAK_RUN=FOLDER takes a run that is there.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = Path(sys.executable).with_name("verl-trace")
# Peak memory of the largest process of a command, in MiB. DuckDB takes what the machine has.
MOST = {"sql": 4096, "export parquet": 4096}
OTHERWISE = 400
COMMANDS = {
    "ls, first": "ls {run}",
    "ls": "ls {run}",
    "ls -t": "ls -t {run}",
    "stats": "stats {run}",
    "show": "show {run} {middle}",
    "compare": "compare {run} {one} {other}",
    "grep -F": "grep -c -F SearchTool {run}",
    "grep, filtered": "grep -c -F needle {run} --step 2",
    "cat": "cat {run}",
    "sql": "sql {run} 'SELECT step, avg(tokens) FROM trajectories GROUP BY step'",
    "export chat": "export {run} --format chat --out {out}/chat --step 1",
    "export chrome": "export {run} --format chrome --out {out}/chrome",
    "export otlp": "export {run} --format otlp --out {out}/otlp --step 1",
    "export parquet": "export {run} --format parquet --out {out}/parquet --step 1",
    "verify": "verify {run}",
    "pack, filtered": "pack {run} -o {out}/x.tar --step 1",
    "repair": "repair {run} --out {out}/copy",
    "seal": "seal {run}",
}


def made(folder: Path, gigabytes: float) -> Path:
    """The run of the benchmarks."""
    words = [sys.executable, str(BENCHMARKS / "made_run.py"), str(folder), str(gigabytes)]
    subprocess.run(words, check=True, capture_output=True, timeout=3600)
    return folder


def measured(words: str, environment: dict[str, str]) -> tuple[int, float, int]:
    """Exit code, seconds, and the largest memory of a process of it in MiB."""
    program = (
        "import resource, subprocess, sys\n"
        "code = subprocess.run(sys.argv[1], shell=True, stdout=subprocess.DEVNULL).returncode\n"
        "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)"
    )
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, f"{SCRIPT} {words}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    code, peak = map(int, done.stdout.split())
    assert "Traceback" not in done.stderr, done.stderr
    return code, time.perf_counter() - began, peak


@pytest.mark.parametrize("gigabytes", [0.02, pytest.param(10.0, marks=pytest.mark.soak)])
def test_every_command_on_a_large_run(tmp_path: Path, gigabytes: float) -> None:
    """Exit codes, memory, and a table of both with the time (`pytest -s`)."""
    importlib.import_module("duckdb")
    there = os.environ.get("SOAK_RUN") if gigabytes > 1 else None
    run = Path(there) if there else made(tmp_path / "made", gigabytes)
    environment = {**os.environ, "VERL_TRACE_CACHE": str(tmp_path / "cache")}
    listed = subprocess.run([SCRIPT, "ls", "-t", run, "--json"], env=environment, capture_output=True, check=True)
    facts: list[dict[str, Any]] = json.loads(listed.stdout)
    (tmp_path / "cache").rename(tmp_path / "cache of before")
    one, middle, other = (facts[place]["trace_id"] for place in (0, len(facts) // 2, -1))
    fields = {"run": run, "out": tmp_path, "one": one, "middle": middle, "other": other}

    for name, words in COMMANDS.items():
        code, seconds, peak = measured(words.format(**fields), environment)
        print(f"{name:<18} {seconds:>8.1f} s {peak:>6} MiB")
        assert code in (0, 1) if name == "grep, filtered" else code == 0, name
        assert peak <= MOST.get(name, OTHERWISE), name
