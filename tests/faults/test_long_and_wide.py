"""Many calls in one process, many trajectories on one loop, few descriptors, and a clock that steps back."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.recorder.ids import new_id

# Makes sys.argv[1] calls; prints the memory in use after the first fifth and at the end, and the bytes of records.
MARATHON = """
import json, os, sys
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
from verl_trace.recorder import session
class Tool:
    @rollout_trace_op
    def execute(self, n): return n
def resident(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
calls, tool = int(sys.argv[1]), Tool()
for n in range(calls):
    if n % 10 == 0:
        attributes = rollout_trace_attr(step=n // 1000, sample_index=n // 10, rollout_n=0)
        attributes.__enter__()
    tool.execute(n)
    if n % 10 == 9: attributes.__exit__(None, None, None)
    if n == calls // 5: early = resident()
late = resident()
writer = session.current().writer
RolloutTraceConfig.reset()
size, counters = writer._total, writer.counters.as_dict()
files = os.listdir(writer.folder)
files = os.listdir(writer.folder)
print(json.dumps({"early": early, "late": late, "bytes": size, "counters": counters, "files": files}))
"""


def marathon(tmp_path: Path, calls: int, segment_bytes: int) -> None:
    """Run it and hold it to what docs/format.md says of memory and files."""
    environment = os.environ | {
        "VERL_TRACE_DIR": str(tmp_path), "VERL_TRACE_MIN_FREE": "0", "VERL_TRACE_SEGMENT_BYTES": str(segment_bytes),
        "VERL_TRACE_SEAL_AGE": "3600",
    }  # fmt: skip
    command = [sys.executable, "-c", MARATHON, str(calls)]
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=3600)
    facts = json.loads(done.stdout)
    files = [name for name in facts["files"] if not name.startswith(".")]
    growth = facts["late"] - facts["early"]
    print(
        f"{calls:,} calls in {time.monotonic() - began:.0f} s, {facts['bytes'] >> 20} MiB of records, "
        f"{len(files)} files, memory grew by {growth / (1 << 20):.1f} MiB, {facts['counters']}"
    )

    assert facts["counters"]["written"] == 2 * calls
    # the compressor's tables and one segment's worth of file buffers come and go
    assert growth < 32 << 20
    segments = {name.split(".jsonl")[0] for name in files}
    assert 1 < len(segments) <= math.ceil(facts["bytes"] / segment_bytes) + 1
    (run,) = find_runs(tmp_path)
    assert sum(1 for _ in iter_trajectories(run)) == calls


def test_fifty_thousand_calls_in_one_process(tmp_path: Path) -> None:
    """Memory stays flat; the number of files is bytes by segment size, not calls."""
    marathon(tmp_path, 50_000, 4 << 20)


@pytest.mark.soak
def test_ten_million_calls_in_one_process(tmp_path: Path) -> None:
    """The same with the default segment size."""
    marathon(tmp_path, 10_000_000, 64 << 20)


class Agent:
    """A trajectory of five tool calls."""

    @rollout_trace_op
    async def run(self, number: int) -> int:
        for turn in range(5):
            await asyncio.sleep(0)
            await self.turn(turn)
        return number

    @rollout_trace_op
    async def turn(self, turn: int) -> int:
        await asyncio.sleep(0)
        return turn

    @rollout_trace_op
    def step(self) -> None:
        """A call that takes no time."""


async def trajectories(count: int) -> None:
    """All at once on this loop."""

    async def one(number: int) -> None:
        with rollout_trace_attr(step=1, sample_index=number, rollout_n=0):
            await Agent().run(number)

    await asyncio.gather(*(one(number) for number in range(count)))


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A recording of this process."""
    monkeypatch.setenv("VERL_TRACE_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("VERL_TRACE_MIN_FREE", "0")
    RolloutTraceConfig.reset()
    RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
    yield tmp_path / "runs"
    RolloutTraceConfig.reset()


def test_three_hundred_trajectories_on_one_loop(recording: Path) -> None:
    """300 trees of one root and five children each, with their own attributes."""
    asyncio.run(trajectories(300))
    RolloutTraceConfig.reset()
    (run,) = find_runs(recording)
    trees = list(iter_trajectories(run))

    assert sorted(tree.attributes["sample_index"] for tree in trees) == list(range(300))
    for tree in trees:
        assert len(tree.calls) == 6
        assert tree.root is not None
        assert len(tree.children()[tree.root.id]) == 5


FEW_DESCRIPTORS = """
import asyncio, os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from verl_trace import RolloutTraceConfig, rollout_trace_op
from verl_trace.recorder import session
class Tool:
    @rollout_trace_op
    def execute(self, n): return n
before = len(os.listdir("/proc/self/fd"))
RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
Tool().execute(0)
# the open segment, and what a seal or a sync needs for a moment
assert len(os.listdir("/proc/self/fd")) - before <= 4
hoard = []
try:
    while True: hoard.append(open("/dev/null"))
except OSError: pass
for n in range(1, 3000): Tool().execute("x" * 100)
session.current().background.rotate_if_due()
for file in hoard: file.close()
for n in range(3000): Tool().execute("x" * 100)
"""


def test_a_limit_of_128_descriptors(tmp_path: Path, found: Any) -> None:
    """One is needed; where not even that is left for a new segment, the old one goes on, and nothing is lost."""
    environment = os.environ | {
        "VERL_TRACE_DIR": str(tmp_path), "VERL_TRACE_MIN_FREE": "0", "VERL_TRACE_SEGMENT_BYTES": "64K",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", FEW_DESCRIPTORS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = found(tmp_path)

    assert seen.calls.total() == 2 * 6000
    assert seen.lost == {}
    assert done.stderr.count("Too many open files") <= 1


def test_a_clock_that_steps_back(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Durations are never negative, ends not before starts, and ids still rise."""
    real, offset = time.time_ns, 0
    monkeypatch.setattr(time, "time_ns", lambda: real() - offset)
    agent = Agent()
    for _ in range(50):
        agent.step()
        offset += 3_600_000_000_000
    with rollout_trace_attr(step=1):
        asyncio.run(agent.run(0))
    RolloutTraceConfig.reset()
    (run,) = find_runs(recording)
    calls = [call for tree in iter_trajectories(run) for call in tree.calls]
    in_order = [call.id for tree in iter_trajectories(run) for call in tree.calls if call.op == "Agent.step"]

    assert len(calls) == 56
    assert all(call.duration is not None and call.duration >= 0 for call in calls)
    assert all(call.ended_at is not None and call.started_at <= call.ended_at for call in calls)
    assert in_order == sorted(in_order)
    assert new_id(0) > max(call.id for call in calls)
