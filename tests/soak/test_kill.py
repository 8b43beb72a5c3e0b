"""Workers killed at random moments, again and again: a call that has returned is on disk.

make soak                  # 100 rounds
SOAK_ROUNDS=2000 make soak
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from verl_trace.schemas.files import parse_segment_name
from verl_trace.schemas.lines import Line, parse_line
from zstandard import ZstdDecompressor

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "100"))
WORKER = Path(__file__).with_name("worker.py")
# Small, so that rotation and sealing are under way at most moments.
SEGMENT_BYTES = "32K"


def run_and_kill(folder: Path, calls: int) -> list[str]:
    """Tokens of the calls that had returned when the worker was killed, after at least `calls` of them."""
    environment = os.environ | {"VERL_TRACE_DIR": str(folder), "VERL_TRACE_SEGMENT_BYTES": SEGMENT_BYTES}
    command = [sys.executable, str(WORKER)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker:
        assert worker.stdout is not None
        told = [worker.stdout.readline() for _ in range(calls)]
        worker.kill()
        told += worker.stdout.readlines()
    return [line.decode().strip() for line in told if line.endswith(b"\n")]


def whole_lines(folder: Path) -> list[Line]:
    """Every record of every segment, each segment once."""
    found: dict[tuple[str, int], bytes] = {}
    for path in sorted(folder.rglob("*.jsonl*")):
        name = parse_segment_name(path)
        if name is None:
            continue
        data = path.read_bytes()
        if name.sealed:
            data = ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        found[name.writer, name.index] = data[: data.rfind(b"\n") + 1]
    return [parse_line(line) for data in found.values() for line in data.splitlines()]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_returned_calls_survive_sigkill(tmp_path: Path, seed: int) -> None:
    """After SIGKILL at a random moment every call that had returned has its start and its end, exactly once."""
    tokens = run_and_kill(tmp_path, 1 + random.Random(seed).randrange(400))
    records = whole_lines(tmp_path)
    outputs = [record.payload.strip(b'"').decode() for record in records if record.kind == "end"]
    starts = [record.head["id"] for record in records if record.kind == "start"]

    assert set(tokens) <= set(outputs)
    assert len(outputs) == len(set(outputs))
    assert len(starts) == len(set(starts)) >= len(outputs)
