"""Recordings on a node's disk, by processes that go on, end, or are killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Appends the number of each call to sys.argv[2] when it has returned: what must be found again. Every fiftieth has
# contents of its own, which go to a side file.
RECORD = """
import os, random, sys, time
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
class Loop:
    @rollout_trace_op
    def run(self, n): return random.randbytes(90_000) if n % 50 == 0 else random.randbytes(1500).hex()
RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
told = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
n = 0
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    with rollout_trace_attr(sample_index=n, step=n // 100, rollout_n=0):
        Loop().run(n)
    os.write(told, b"%d-%d\\n" % (os.getpid(), n))
    n += 1
    time.sleep(0.004)
"""


class Node:
    """`folder`: where its processes record. `told`: what has returned in all of them, as pid-number."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "node"
        self._told = root / "told"
        self.processes: list[subprocess.Popen[bytes]] = []

    def record(self, seconds: float) -> subprocess.Popen[bytes]:
        """Start a process that records for so long."""
        environment = os.environ | {
            "VERL_TRACE_DIR": str(self.folder), "VERL_TRACE_SEGMENT_BYTES": "256K", "VERL_TRACE_MIN_FREE": "0",
        }  # fmt: skip
        words = [sys.executable, "-c", RECORD, str(seconds), str(self._told)]
        self.processes.append(subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL))
        return self.processes[-1]

    def told(self) -> set[str]:
        """Calls that have returned so far."""
        return set(self._told.read_text().split()) if self._told.exists() else set()

    def stop(self) -> None:
        """Kill what still records."""
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()


@pytest.fixture
def cluster_node(tmp_path: Path) -> Iterator[Node]:
    """A node, on which nothing runs in the end."""
    made = Node(tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished recording of several segments and side files, and the one of a killed process: to be copied."""
    made = Node(tmp_path_factory.mktemp("recorded"))
    try:
        finished, killed = made.record(1.5), made.record(600)
        assert finished.wait(120) == 0
        killed.kill()
        killed.wait()
    finally:
        made.stop()
    return made.folder


@pytest.fixture
def recorded(once: Path, tmp_path: Path) -> Path:
    """A node's folder with the same, of this test alone."""
    return Path(shutil.copytree(once, tmp_path / "node"))


@pytest.fixture
def collector() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`collector(source, target, *options)` starts `verl-trace collect`."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from verl_trace.cli import main; main()", "collect", *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, text=True, **pipes))  # type: ignore[call-overload]
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
