"""Real processes, really killed, at random moments of recording, rotating, sealing and tidying up after the last one.

VERL_TRACE_SEED=123 pytest tests/faults/test_kill.py    repeats a run
make soak                                               300 kills; SOAK_KILLS=2000 for more
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from verl_trace.reader import Damage, find_runs
from verl_trace.schemas.lines import parse_line

WORKER = Path(__file__).with_name("worker.py")
# Small, so that a segment is being finished, opened or sealed at most moments.
SETTINGS = {"VERL_TRACE_SEGMENT_BYTES": "16K", "VERL_TRACE_MIN_FREE": "0", "VERL_TRACE_FSYNC": "0.01"}


class Killer:
    """Starts recording processes in one folder and kills them; `reports` are what they said they had done."""

    def __init__(self, root: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.root = root
        self.reports: list[tuple[str, str]] = []
        environment = os.environ | SETTINGS | {"VERL_TRACE_DIR": str(root / "runs")}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.nursery = subprocess.Popen([sys.executable, str(WORKER)], env=environment, text=True, **pipes)

    def round(self, number: int) -> None:
        """One process from its first call to its end."""
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        fifo = self.root / f"fifo{number}"
        os.mkfifo(fifo)
        self.nursery.stdin.write(f"{fifo} {self.draw.randrange(1 << 30)}\n")
        self.nursery.stdin.flush()
        pid = int(self.nursery.stdout.readline())
        with fifo.open("rb") as told:
            lines = [told.readline() for _ in range(self.draw.randrange(1, 400))]
            # anywhere between two reports
            time.sleep(self.draw.random() * 0.003)
            os.kill(pid, signal.SIGKILL)
            lines += told.readlines()
        fifo.unlink()
        self.reports += [tuple(line.decode().split()) for line in lines if line.endswith(b"\n")]  # type: ignore[misc]

    def close(self) -> None:
        """No more rounds."""
        self.nursery.communicate(timeout=30)


def records_by_token(runs: Path) -> tuple[Counter[tuple[str, str]], list[Damage]]:
    """How often there is a start and an end of each token, and what is damaged."""
    seen: Counter[tuple[str, str]] = Counter()
    damages: list[Damage] = []
    for run in find_runs(runs):
        for writer in run.writers:
            assert writer.state == "torn"
            for segment in writer.segments:
                lines = segment.lines()
                for _, raw in lines:
                    record = parse_line(raw)
                    if record.kind == "start":
                        seen["s", orjson.loads(record.payload)["token"]] += 1
                    elif record.kind == "end":
                        seen["e", orjson.loads(record.payload)] += 1
                damages += lines.damages
    return seen, damages


def kill_and_compare(root: Path, kills: int, seed: int) -> None:
    """The promise; prints the seed and the figures."""
    print(f"VERL_TRACE_SEED={seed}")
    killer = Killer(root, seed)
    try:
        for number in range(kills):
            killer.round(number)
    finally:
        killer.close()
    seen, damages = records_by_token(root / "runs")
    missing = [report for report in killer.reports if report not in seen]
    print(f"{kills} kills, {len(killer.reports)} reports, {len(missing)} records lost, {len(damages)} torn tails")

    assert missing == []
    assert set(seen.values()) == {1}
    assert {damage.kind for damage in damages} <= {"torn"}
    # an end without its start would be a record that overtook another
    assert all(("s", token) in seen for kind, token in seen if kind == "e")


def chosen_seed() -> int:
    """A new one each time, or the one that is asked for."""
    return int(os.environ.get("VERL_TRACE_SEED") or random.SystemRandom().randrange(1 << 30))


def test_thirty_kills_cost_no_record_of_a_returned_call(tmp_path: Path) -> None:
    """Every call that had begun has its start, every call that had returned its end, exactly once."""
    kill_and_compare(tmp_path, 30, chosen_seed())


@pytest.mark.soak
def test_three_hundred_kills_cost_no_record_of_a_returned_call(tmp_path: Path) -> None:
    """The same for longer."""
    kill_and_compare(tmp_path, int(os.environ.get("SOAK_KILLS", "300")), chosen_seed())
