"""64 nodes with 8 processes each: 512 writers read as one run, within the memory that docs/sunk.md states."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zstandard

from verl_trace.demo.server_env import Server

NODES, PROCESSES = 64, 8
# docs/sunk.md, Many nodes, one run; in MiB. Only `cat` has all files open at once.
MEMORY = {"ls": 96, "grep": 96, "cat": 100 + 1.5 * NODES * PROCESSES, "upload": 384}
PROGRAM = """
import atexit, sys
def told():
    with open("/proc/self/status") as status:
        print(next(line for line in status if line.startswith("VmHWM")), file=sys.stderr)
atexit.register(told)
from verl_trace.cli import main
main()
"""


class Done(NamedTuple):
    out: str
    mebibytes: int
    seconds: float


def command(*words: object, **variables: str) -> Done:
    """Run one; what it printed and how much memory it had at most."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, words)],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.search(r"VmHWM:\s*(\d+) kB", done.stderr)
    assert found is not None
    return Done(done.stdout, int(found[1]) >> 10, time.monotonic() - began)


def generate(runs: Path, project: str, writer: Any, trajectories: int, size: int) -> Path:
    """A run of all writers: each has so many trajectories, with a tool call on the next node and an answer of `size`.

    The clock of the node gpu-07 is three seconds late.
    """
    made = []
    for number in range(NODES * PROCESSES):
        node, rank = f"gpu-{number // PROCESSES:02d}", str(number)
        one = writer(runs, project, host=f"host-{node}", pid=1000 + number)
        about = json.dumps({"job_id": "12", "node_name": node}).encode()
        text = one.path.read_bytes().replace(b'"slurm":{}', b'"slurm":' + about)
        one.path.write_bytes(text.replace(b'"rank":{}', b'"rank":{"RANK":"%s"}' % rank.encode()))
        made.append(one)
    late = {id(one): -300 for one in made[7 * PROCESSES : 8 * PROCESSES]}
    now = 10
    for trajectory in range(trajectories):
        for number, one in enumerate(made):
            other = made[(number + PROCESSES) % len(made)]
            now += 10
            one._clock, other._clock = now + late.get(id(one), 0), now + 5 + late.get(id(other), 0)
            root = one.start("Loop.run", step=trajectory, sample_index=number, rollout_n=0)
            one.call("LLM.generate", f"answer {number} " + os.urandom(size // 2).hex(), parent=root)
            other.call("Tool.execute", "a needle" if number == 77 else "hay", parent=root)
            one._clock += 5
            one.end(root, number)
    for one in made:
        one.close()
        sealed = one.path.with_name(f"{one.path.name}.zst")
        sealed.write_bytes(zstandard.ZstdCompressor(level=1).compress(one.path.read_bytes()))
        one.path.unlink()
    return Path(made[0].folder)


@pytest.mark.parametrize(
    ("trajectories", "size"), [(2, 2_000), pytest.param(40, 20_000, marks=pytest.mark.soak)], ids=["small", "large"]
)
def test_512_writers_are_one_run(
    writer: Any, wandb_login: Server, project: str, tmp_path: Path, trajectories: int, size: int
) -> None:
    """Listed, searched, in time order, and uploaded; by node; what the clocks say; nothing lasts less than no time."""
    run = generate(tmp_path / "runs", project, writer, trajectories, size)
    total = NODES * PROCESSES * trajectories
    cache = {"VERL_TRACE_CACHE": str(tmp_path / "cache")}
    listed = command("ls", run, "--json", **cache)
    found = command("grep", "-F", "--json", "a needle", run, **cache)
    lines = command("cat", run, **cache)
    sent = command("upload", run, "--json", "--settle", "0s", **cache)
    on_one = command("ls", run, "-t", "--json", "--node", "gpu-03", "--op", "Loop.run", **cache)
    of_rank = command("ls", run, "-t", "--json", "--rank", "24:31", "--op", "Loop.run", **cache)
    for name, done in {"ls": listed, "grep": found, "cat": lines, "upload": sent}.items():
        print(f"{name}: {done.mebibytes} MiB, {done.seconds:.1f} s")
        assert done.mebibytes <= MEMORY[name], name

    (facts,) = json.loads(listed.out)
    assert len(os.listdir(run)) == facts["writers"] == facts["segments"] == NODES * PROCESSES
    assert (facts["trajectories"], facts["calls"], facts["orphans"]) == (total, 3 * total, 0)
    assert facts["nodes"] == [f"gpu-{number:02d}" for number in range(NODES)]
    assert [(found["node"], found["behind"]) for found in facts["clock_differences"]] == [("gpu-07", "gpu-06")]
    assert 2.9 < facts["clock_differences"][0]["seconds"] < 3.1
    assert facts["clock_differences"][0]["calls"] == PROCESSES * trajectories
    durations = [step[key] for step in facts["by_step"] for key in step if key.startswith("duration")]
    assert all(value >= 0 for value in durations if value is not None)
    assert found.out.count("a needle") >= trajectories
    assert lines.out.count('{"kind":"end"') == 3 * total
    assert json.loads(on_one.out) == json.loads(of_rank.out)
    assert len(json.loads(on_one.out)) == PROCESSES * trajectories
    report = json.loads(sent.out)
    assert (report["recorded"], report["sent"], report["failed"]) == (3 * total, 3 * total, 0)
