"""The reader beside real recording processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from verl_trace.reader import Run, find_runs, iter_trajectories, summarise

PROGRAM = """
import sys
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

class Agent:
    @rollout_trace_op
    def run(self, n):
        self.tool(n)
        return n
    @rollout_trace_op
    def tool(self, n):
        return {"ids": list(range(200))}
    @rollout_trace_op
    def hang(self):
        print("inside", flush=True)
        sys.stdin.readline()

RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
agent = Agent()
for command in sys.stdin:
    name, _, count = command.strip().partition(" ")
    if name == "stop":
        break
    if name == "hang":
        agent.hang()
    for n in range(int(count or 0)):
        with rollout_trace_attr(step=1, sample_index=n):
            agent.run(n)
    print("done", flush=True)
"""


class Recorder:
    """A real process that records what it is told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_TRACE", "SLURM_", "RAY_"))}
        more = {"VERL_TRACE_DIR": str(root), "VERL_TRACE_MIN_FREE": "0", "VERL_TRACE_SEGMENT_BYTES": "65536"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**keep, **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def ask(self, command: str) -> None:
        assert self.process.stdout is not None
        self.tell(command)
        assert self.process.stdout.readline()

    def end(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait(60)

    def run(self) -> Run:
        (run,) = find_runs(self.root)
        return run


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path)
    yield recorder
    recorder.process.kill()
    recorder.end()


def test_live_torn_and_closed(recorder: Recorder, tmp_path: Path) -> None:
    """A running process is live; killed it is torn, with its open call; another one ends in order and is closed."""
    recorder.ask("calls 3")
    recorder.ask("hang")
    assert recorder.run().state == "live"
    recorder.process.kill()
    assert recorder.process.wait(60)
    run = recorder.run()
    assert (run.state, [w.state for w in run.writers]) == ("torn", ["torn"])
    summary = summarise(run)
    assert (summary.calls, summary.unfinished, summary.damages) == (7, 1, [])

    other = Recorder(tmp_path / "other")
    other.ask("calls 3")
    assert other.run().writers[0].live
    other.tell("stop")
    other.process.wait(60)
    run = other.run()
    assert (run.state, run.writers[0].live, summarise(run).unfinished) == ("closed", False, 0)
    other.end()


def test_reading_while_a_recorder_writes_rotates_and_seals(recorder: Recorder) -> None:
    """Every look gives whole trees without damage, at least what the look before saw; the last one everything."""
    recorder.ask("calls 1")
    for _ in range(6):
        recorder.tell("calls 500")
    seen, told = 0, 3001
    while seen < told:
        run = recorder.run()
        summary = summarise(run)
        assert (summary.damages, summary.duplicates, summary.orphans) == ([], 0, 0)
        assert summary.unfinished <= 2
        assert summary.trajectories >= seen
        seen = summary.trajectories
        if seen == told and len(run.writers[0].segments) <= 3:
            # on a busy machine the thread that rotates may have come late so far
            recorder.tell("calls 500")
            told += 500
    recorder.tell("stop")
    recorder.process.wait(60)
    run = recorder.run()
    trees = list(iter_trajectories(run))

    assert [sorted(call.op for call in tree.calls) for tree in trees] == [["Agent.run", "Agent.tool"]] * told
    assert len(run.writers[0].segments) > 3
    assert run.state == "closed"
