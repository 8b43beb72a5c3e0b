"""examples/slurm/train.sbatch in a real Slurm: ended, cancelled, out of time, requeued; nothing is lost."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.reader.verify import verify

from .cluster import cluster

pytestmark = pytest.mark.e2e
SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "slurm" / "train.sbatch"
# Stands for the training: on every node a process that records, for ever or so many seconds.
TRAINING = """
import os, sys, time
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
class Loop:
    @rollout_trace_op
    def run(self, n): return os.environ["SLURMD_NODENAME"]
RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
until = time.monotonic() + float(sys.argv[1])
n = 0
while time.monotonic() < until:
    with rollout_trace_attr(sample_index=n, step=n // 100): Loop().run(n)
    n += 1
    time.sleep(0.01)
"""
PATIENCE = 180
ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a user of a running Slurm."""
    with cluster(tmp_path_factory.mktemp("slurm") / "cluster") as environment:
        yield environment


class Job:
    """A submitted job."""

    def __init__(self, number: str, environment: dict[str, str], node: Path, shared: Path, log: Path) -> None:
        self.number, self._environment = number, environment
        self.node, self.shared, self._log = node, shared, log

    def command(self, *words: str) -> str:
        """What a command of Slurm's prints."""
        done = subprocess.run(words, env=self._environment, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    @property
    def state(self) -> str:
        """As scontrol names it."""
        found = re.search(r"JobState=(\w+)", self.command("scontrol", "show", "job", self.number))
        assert found is not None
        return found[1]

    @property
    def log(self) -> str:
        """What the batch script printed."""
        return self._log.read_text() if self._log.exists() else ""

    def until(self, condition: Callable[[], Any], patience: float = PATIENCE) -> None:
        """Wait for something."""
        end = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < end, f"{self.state}\n{self.log}"
            time.sleep(0.3)

    def ended(self) -> bool:
        """Whether it is over."""
        return self.state in ENDED

    def recorded(self) -> bool:
        """Whether both nodes have recorded, and a first pass has brought something."""
        return len(list(self.node.glob("*/exp1/*.jsonl*"))) >= 2 and any(self.shared.glob("exp1/*.jsonl*"))


@pytest.fixture
def submit(slurm: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Submit the example with a training of so many seconds; what is left of it is cancelled in the end."""
    jobs = []

    def start(seconds: float, *options: str) -> Job:
        program = tmp_path / "training.py"
        program.write_text(TRAINING)
        node, shared, log = tmp_path / "node", tmp_path / "shared", tmp_path / "job.log"
        environment = {
            **slurm,
            "PATH": f"{Path(sys.executable).parent}:{slurm['PATH']}",
            "RUNS": str(shared),
            "VERL_TRACE_DIR": str(node),
            "VERL_TRACE_MIN_FREE": "0",
            "TRAIN": f"{sys.executable} {program} {seconds}",
            "USE_RAY": "0",
            "COLLECT_EVERY": "1s",
            "COLLECT_DEADLINE": "4s",
        }
        words = ["sbatch", "--parsable", "--nodes=2", f"--output={log}", *options, str(SCRIPT)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        jobs.append(Job(done.stdout.strip(), slurm, node, shared, log))
        return jobs[-1]

    yield start
    for job in jobs:
        subprocess.run(["scancel", "--full", job.number], env=slurm, check=False)
        job.until(job.ended)


def calls(*places: Path) -> set[str]:
    """Ids of all calls that are recorded to their end."""
    found = (c for place in places for run in find_runs(place) for t in iter_trajectories(run) for c in t.calls)
    return {call.id for call in found if not call.unfinished}


def nodes_of(place: Path) -> set[bytes | None]:
    return {c.output() for run in find_runs(place) for t in iter_trajectories(run) for c in t.calls} - {None}


def test_a_job_that_ends(submit: Callable[..., Job]) -> None:
    """Both nodes record to their disks; when the job has ended, all of it is on shared storage, sealed and whole."""
    job = submit(5)
    job.until(lambda: job.state == "COMPLETED")

    assert calls(job.shared) == calls(*job.node.iterdir())
    assert nodes_of(job.shared) == {b'"n1"', b'"n2"'}
    assert [report.state for report in verify(job.shared)] == ["whole"]
    (run,) = find_runs(job.shared)
    assert len(run.attempts) == 1
    assert not list(job.shared.glob("exp1/*.jsonl"))


def test_a_job_that_is_cancelled(submit: Callable[..., Job]) -> None:
    """scancel: the sidecar makes its last pass within Slurm's grace."""
    job = submit(600)
    job.until(job.recorded)
    time.sleep(3)
    job.command("scancel", job.number)
    job.until(lambda: job.state == "CANCELLED")
    time.sleep(6)

    assert calls(job.shared) == calls(*job.node.iterdir())
    assert nodes_of(job.shared) == {b'"n1"', b'"n2"'}


def test_a_job_that_runs_out_of_time(submit: Callable[..., Job]) -> None:
    """SIGTERM to the batch script before the limit: it ends the training, then the sidecar, and all is there."""
    job = submit(600, "--time=1", "--signal=B:TERM@30")
    job.until(job.recorded)
    job.until(job.ended, patience=240)

    assert calls(job.shared) == calls(*job.node.iterdir())
    assert "not everything was collected" not in job.log


def test_a_job_that_is_requeued(submit: Callable[..., Job]) -> None:
    """Requeued while it runs: the second start is another attempt of the same run; nothing of the first is lost."""
    job = submit(8)
    job.until(job.recorded)
    job.command("scontrol", "requeue", job.number)
    job.until(lambda: job.state == "PENDING")
    first = calls(*job.node.iterdir())
    job.command("scontrol", "update", f"JobId={job.number}", "StartTime=now")
    job.until(lambda: job.state == "COMPLETED", patience=300)

    (run,) = find_runs(job.shared)
    assert len(run.attempts) == 2
    assert first < calls(job.shared)
    assert calls(job.shared) == calls(*job.node.iterdir())
