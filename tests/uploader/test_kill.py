"""The uploader killed at random moments, again and again: in the end the server holds the recording, once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.demo.server_env import Server
from verl_trace.reader import find_runs, iter_trajectories

# Forks an uploader for every line it reads: starting one anew would take seconds.
NURSERY = """
import os, sys, traceback
import gql.transport.exceptions, gql.transport.httpx, httpx
from verl_trace.uploader import pipeline, plan, target
target.load_weave()
# many requests, so that there are many moments between them
plan.MAX_CALLS = 20
for line in iter(sys.stdin.readline, ""):
    pid = os.fork()
    if not pid:
        try:
            result = pipeline.upload(line.rstrip("\\n"), workers=2)
            os._exit(0 if not result.failed and not result.stopped else 3)
        except BaseException:
            traceback.print_exc()
            os._exit(4)
    print(pid, flush=True)
    sys.stdin.readline()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
CALLS = 240
KILLS_A_RUN = 5


class Nursery:
    """Starts uploaders, and ends them. One that has ended stays a zombie until the nursery is told to look: its process
    id is nobody else's."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", NURSERY]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def upload(self, folder: Path, kill_after: float | None = None) -> int:
        """The exit code of an upload, which is killed after so many seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        if kill_after is not None:
            # the moment is the test: nothing is waited for
            time.sleep(kill_after)
            os.kill(pid, signal.SIGKILL)
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """No more uploads."""
        self._process.communicate(timeout=60)


@pytest.fixture
def kill_again_and_again(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], dict[str, Any]]
) -> Callable[[int], None]:
    """`kill_again_and_again(kills)`: the promise; prints the seed and the figures."""

    def run(kills: int) -> None:
        seed = int(os.environ.get("VERL_TRACE_SEED") or random.SystemRandom().randrange(1 << 30))
        print(f"VERL_TRACE_SEED={seed}")
        dice = random.Random(seed)
        nursery = Nursery()
        try:
            # the second one is at its ordinary speed
            for number in range(2):
                began = time.monotonic()
                assert nursery.upload(recording(writer, tmp_path, f"{project}-{number}")) == 0
                whole = time.monotonic() - began
            killed = ended = 0
            while killed < kills:
                number += 1
                name = f"{project}-{number}"
                folder = recording(writer, tmp_path, name)
                for _ in range(KILLS_A_RUN):
                    code = nursery.upload(folder, kill_after=dice.uniform(0, 0.8 * whole))
                    assert code in (-signal.SIGKILL, 0)
                    killed += code != 0
                    ended += code == 0
                assert nursery.upload(folder) == 0
                assert {key: row["ended_at"] for key, row in stored(name).items()} == ends(folder)
        finally:
            nursery.close()
        print(f"{killed} killed, {ended} had ended before, {number - 1} runs")

    return run


def recording(writer: Any, runs: Path, project: str) -> Path:
    """A run of small trajectories."""
    made = writer(runs / project, project)
    for _ in range(CALLS // 3):
        root = made.start("A.run")
        made.call("B.run", parent=root)
        made.call("C.run", parent=root)
        made.end(root)
    made.close()
    folder: Path = made.folder
    return folder


def ends(folder: Path) -> dict[str, str | None]:
    """When the recorded calls ended, by id."""
    return {
        call.id: call.ended_at
        for run in find_runs(folder)
        for trajectory in iter_trajectories(run)
        for call in trajectory.calls
    }


def test_twenty_kills(kill_again_and_again: Callable[[int], None]) -> None:
    """SIGKILL twenty times; every call is there, none twice (`stored` looks)."""
    kill_again_and_again(20)


@pytest.mark.soak
def test_two_hundred_kills(kill_again_and_again: Callable[[int], None]) -> None:
    """The same for longer."""
    kill_again_and_again(int(os.environ.get("SOAK_KILLS", "200")))
