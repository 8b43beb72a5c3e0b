"""examples/slurm in a real Slurm: ended, cancelled, out of time, requeued; every record is on shared storage, once.

The job that runs into its limit takes a minute, which is the least that Slurm knows: it runs beside the others.
"""

from __future__ import annotations

import json
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
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "slurm"
# Stands for the training: on every node a process that records, for ever or so many seconds.
TRAINING = """
import os, sys, time
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
class Loop:
    @rollout_trace_op
    def run(self, n): return os.environ["SLURMD_NODENAME"]
until = time.monotonic() + float(sys.argv[1])
RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
n = 0
while time.monotonic() < until:
    with rollout_trace_attr(sample_index=n, step=n // 100): Loop().run(n)
    n += 1
    time.sleep(0.01)
"""
LEFT = "not everything was collected"
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


Submit = Callable[..., Job]
Contents = Callable[..., dict[str, bytes]]


def submitted(
    slurm: dict[str, str], folder: Path, seconds: float | str, *options: str, first_in_path: Path | None = None
) -> Job:
    """The example with a training of so many seconds, in a folder of its own."""
    program = folder / "training.py"
    program.write_text(TRAINING)
    node, shared, log = folder / "node", folder / "shared", folder / "job.log"
    programs = Path(sys.executable).parent
    environment = {
        **slurm,
        "PATH": f"{first_in_path or programs}:{programs}:{slurm['PATH']}",
        "RUNS": str(shared),
        "VERL_TRACE_DIR": str(node),
        "VERL_TRACE_MIN_FREE": "0",
        "TRAIN": f"{sys.executable} {program} {seconds}",
        "USE_RAY": "0",
        "COLLECT_EVERY": "1s",
        "COLLECT_DEADLINE": "4s",
    }
    return Job(
        _sbatch(environment, log, "--nodes=2", *options, str(EXAMPLES / "train.sbatch")), slurm, node, shared, log
    )


def _sbatch(environment: dict[str, str], log: Path, *words: str) -> str:
    command = ["sbatch", "--parsable", "--oversubscribe", f"--output={log}", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def submit(slurm: dict[str, str], tmp_path: Path) -> Iterator[Submit]:
    """Submit the example; what is left of it is cancelled in the end."""
    jobs = []

    def start(seconds: float | str, *options: str, first_in_path: Path | None = None) -> Job:
        jobs.append(submitted(slurm, tmp_path, seconds, *options, first_in_path=first_in_path))
        return jobs[-1]

    yield start
    for job in jobs:
        subprocess.run(["scancel", "--full", job.number], env=slurm, check=False)
        job.until(job.ended)


@pytest.fixture(scope="module", autouse=True)
def limited(slurm: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job that runs into its limit, a minute after this module began; SIGCONT beforehand says nothing to anybody."""
    return submitted(slurm, tmp_path_factory.mktemp("limited"), 600, "--time=1", "--signal=B:CONT@1")


def all_arrived(job: Job, contents: Contents, attempts: int = 1) -> None:
    """Record for record what the nodes recorded, as two nodes, each under its own name."""
    recorded = contents(*job.node.iterdir())

    assert len({name.partition(".")[0] for name in recorded}) == 2 * attempts
    assert contents(job.shared) == recorded
    (run,) = find_runs(job.shared)
    assert len(run.attempts) == attempts
    assert {writer.node for writer in run.writers} == {"n1", "n2"}
    assert {writer.id.split("-")[1] for writer in run.writers} == {"n1", "n2"}
    assert not list(job.shared.glob("exp1/*.tmp"))


def calls(place: Path) -> set[str]:
    """Ids of all calls."""
    return {call.id for run in find_runs(place) for tree in iter_trajectories(run) for call in tree.calls}


def test_a_job_that_ends(submit: Submit, contents: Contents) -> None:
    """Both nodes record to their disks; when the job has ended, all of it is on shared storage, sealed and whole."""
    job = submit(4)
    job.until(lambda: job.state == "COMPLETED")

    all_arrived(job, contents)
    assert [report.state for report in verify(job.shared)] == ["whole"]
    assert not list(job.shared.glob("exp1/*.jsonl"))
    # the sidecar of each node tells what it brought, under the node's name; the recording knows that there is one
    assert {line.partition(":")[0] for line in job.log.splitlines() if re.search(r"\bfiles? copied", line)} == {
        "n1",
        "n2",
    }
    assert "may not outlive" not in job.log
    assert LEFT not in job.log


@pytest.mark.parametrize("training", ["records", "fails"])
def test_a_job_that_ends_at_once(training: str, submit: Submit, contents: Contents, tmp_path: Path) -> None:
    """The sidecar is told to end before it could begin: what was recorded, if anything, is there all the same."""
    late = tmp_path / "bin" / "verl-trace"
    late.parent.mkdir()
    real = Path(sys.executable).parent / "verl-trace"
    late.write_text(f'#!/bin/bash\n[[ "$*" != *--every* ]] || sleep 600\nexec {real} "$@"\n')
    late.chmod(0o755)
    job = submit(0.5 if training == "records" else "no number", first_in_path=late.parent)
    job.until(job.ended)

    assert job.state == ("COMPLETED" if training == "records" else "FAILED"), job.log
    assert LEFT not in job.log
    if training == "records":
        all_arrived(job, contents)
        assert [report.state for report in verify(job.shared)] == ["whole"]
    else:
        assert not list(job.node.glob("*/exp1/*.jsonl*"))
        assert "No such file" not in job.log


def test_cancelled_and_the_upload_that_depends_on_it(
    submit: Submit, slurm: dict[str, str], contents: Contents, tmp_path: Path
) -> None:
    """scancel: the sidecar makes its last pass within Slurm's grace. `afterany` then starts the upload elsewhere."""
    job = submit(600)
    log = tmp_path / "upload.log"
    environment = {**slurm, "PATH": f"{Path(sys.executable).parent}:{slurm['PATH']}", "RUNS": str(job.shared)}
    # what would be sent: there is no W&B here
    words = ["--partition=cpu", f"--dependency=afterany:{job.number}", str(EXAMPLES / "upload.sbatch"), "--dry-run"]
    upload = Job(_sbatch(environment, log, *words, "--json"), slurm, job.node, job.shared, log)
    job.until(job.recorded)
    time.sleep(2)
    assert upload.state == "PENDING"
    job.command("scancel", job.number)
    job.until(lambda: job.state == "CANCELLED")
    upload.until(upload.ended)

    all_arrived(job, contents)
    assert upload.state == "COMPLETED", upload.log
    (run,) = json.loads(upload.log[upload.log.index("\n{") :])["runs"]
    assert run["to_send"] == run["recorded"] == len(calls(job.shared))


def test_warned_in_time(submit: Submit, contents: Contents) -> None:
    """SIGTERM to the batch script well before the limit: it ends the training, then the sidecar, and all is there."""
    job = submit(600, "--time=1", "--signal=B:TERM@30")
    job.until(job.recorded)
    job.until(job.ended)

    all_arrived(job, contents)
    assert LEFT not in job.log


def test_a_job_that_is_requeued(submit: Submit, contents: Contents) -> None:
    """Requeued while it runs: the second start is another attempt of the same run; nothing of the first is lost."""
    job = submit(5)
    job.until(job.recorded)
    job.command("scontrol", "requeue", job.number)
    job.until(lambda: job.state == "PENDING")
    first = contents(*job.node.iterdir())
    job.command("scontrol", "update", f"JobId={job.number}", "StartTime=now")
    job.until(lambda: job.state == "COMPLETED", patience=300)

    all_arrived(job, contents, attempts=2)
    arrived = contents(job.shared)
    assert all(arrived[name].startswith(text) for name, text in first.items())


def test_a_job_that_runs_into_its_limit(limited: Job, contents: Contents) -> None:
    """No word beforehand: Slurm ends every step, and kills what is left a few seconds later. That is enough."""
    limited.until(limited.ended)

    assert limited.state == "TIMEOUT"
    limited.until(lambda: not limited.command("squeue", "--noheader", "--states=CG", "--jobs", limited.number))
    all_arrived(limited, contents)
