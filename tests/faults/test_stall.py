"""A disk that takes its time: one stall, then writing elsewhere behind a bounded queue, said and counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from verl_trace.recorder import appender


class SlowDisk:
    """Writes take `seconds` each, one after another, until the disk is well again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.well = threading.Event()
        real = os.write

        def write(fd: int, data: Any) -> int:
            if self.seconds:
                self.well.wait(self.seconds)
            return real(fd, data)

        monkeypatch.setattr(os, "write", write)

    def heal(self) -> None:
        self.seconds = 0.0
        self.well.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


class Waits:
    """How long each call of a loop took."""

    def __init__(self, writer: Any, calls: Any, count: int) -> None:
        self.seconds: list[float] = []
        for _ in range(count):
            begun = time.monotonic()
            calls.both(writer)
            self.seconds.append(time.monotonic() - begun)


@pytest.mark.usefixtures("fresh_warnings")
def test_a_stall_costs_the_loop_one_wait(
    tmp_path: Path, new_writer: Any, calls: Any, found: Any, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """100 calls meet one slow write, though each write is slow; all arrive; the files say since and until when."""
    monkeypatch.setattr(appender, "STALL_SECONDS", 0.2)
    writer = new_writer(tmp_path)
    assert writer.open()
    disk.seconds = 0.3
    upkeep = threading.Thread(target=lambda: [writer.drain() for _ in range(3)])
    calls.send(writer, "start", calls.new())
    upkeep.start()
    waits = Waits(writer, calls, 100)
    assert sum(waits.seconds) < 0.3
    assert writer.waiting > 190
    disk.heal()
    upkeep.join()
    writer.drain()
    assert writer.waiting == 0
    calls.both(writer)
    writer.close()
    seen = found(tmp_path)

    assert set(seen.calls) == calls.sent
    assert set(seen.calls.values()) == {1}
    first, last = seen.stalls[0], seen.stalls[-1]
    assert first["since"] == last["since"] <= first["until"] < last["until"]
    assert last["records"] == 200
    assert seen.closes[-1]["counters"]["stalls"] == 1
    assert seen.closes[-1]["counters"]["queued"] == 200
    said = capfd.readouterr().err
    assert said.count("the disk stalls") == said.count("the disk answers again") == 1


def test_a_busy_caller_gets_out_of_a_stall(
    tmp_path: Path, new_writer: Any, calls: Any, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is well again and the caller does nothing but record: what waits is written faster than it comes in."""
    monkeypatch.setattr(appender, "QUEUE_BYTES", 4 << 20)
    writer = new_writer(tmp_path)
    assert writer.open()
    writer._stall()
    done = threading.Event()

    def upkeep() -> None:
        while not done.is_set():
            writer.drain()
            done.wait(0.05)

    thread = threading.Thread(target=upkeep)
    thread.start()
    deadline = time.monotonic() + 60
    while writer._backlog is not None and time.monotonic() < deadline:
        calls.both(writer)
    done.set()
    thread.join()
    writer.close()

    assert writer.counters.stalls == 1
    assert writer.counters.dropped == {}
    assert set(found(tmp_path).calls) == calls.sent


def test_many_small_stalls_are_one(
    tmp_path: Path, new_writer: Any, calls: Any, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes that are each below the threshold may not cost more than it in a row."""
    monkeypatch.setattr(appender, "STALL_SECONDS", 0.25)
    writer = new_writer(tmp_path)
    assert writer.open()
    disk.seconds = 0.12
    waits = Waits(writer, calls, 50)
    disk.heal()
    writer.close(patience=30)

    assert sum(waits.seconds) < 10 * 0.12
    assert writer.counters.stalls == 1


def test_a_disk_that_stays_slow_does_not_get_the_loop_back(
    tmp_path: Path, new_writer: Any, calls: Any, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty queue alone is no recovery: the record of the stall is written first, and quickly."""
    monkeypatch.setattr(appender, "STALL_SECONDS", 0.2)
    writer = new_writer(tmp_path)
    assert writer.open()
    disk.seconds = 0.21
    calls.both(writer)
    for _ in range(3):
        while writer.waiting:
            writer.drain()
        writer.drain()
        assert sum(Waits(writer, calls, 1).seconds) < 0.2
    disk.heal()
    writer.close(patience=30)

    assert writer.counters.stalls == 1


def test_a_thread_behind_a_slow_write_waits_a_bounded_time(
    tmp_path: Path, new_writer: Any, calls: Any, found: Any, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that writes is stuck in the kernel; the others put their records aside after a while, then at once."""
    monkeypatch.setattr(appender, "STALL_SECONDS", 0.2)
    writer = new_writer(tmp_path)
    assert writer.open()
    disk.seconds = 60.0
    stuck = threading.Thread(target=calls.both, args=(writer,))
    stuck.start()
    while writer._lock.acquire(blocking=False):
        writer._lock.release()
    first, rest = Waits(writer, calls, 1), Waits(writer, calls, 50)
    disk.heal()
    stuck.join()
    writer.close(patience=30)

    assert sum(first.seconds) < 10
    assert sum(rest.seconds) < 0.2
    assert set(found(tmp_path).calls) == calls.sent


def test_the_backlog_is_bounded_and_what_does_not_fit_is_told(
    tmp_path: Path, new_writer: Any, calls: Any, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays; the rest counts as lost, by its reason."""
    monkeypatch.setattr(appender, "QUEUE_BYTES", 2000)
    writer = new_writer(tmp_path)
    assert writer.open()
    writer._stall()
    for _ in range(20):
        calls.both(writer)
    writer.close(patience=30)
    seen = found(tmp_path)

    assert 0 < len(calls.accepted) < 10
    assert set(seen.calls) == calls.accepted
    assert seen.lost == {"queue full": len(calls.sent) - len(calls.accepted)}


# A disk that never answers again, from inside of a process that knows nothing of it.
HANGING = """
import os, sys, threading, time
from verl_trace import RolloutTraceConfig, rollout_trace_op
from verl_trace.recorder import appender, background
class Tool:
    @rollout_trace_op
    def execute(self, n): return n
RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
appender.STALL_SECONDS = 0.2
background.EXIT_PATIENCE = 1.0
Tool().execute(0)
real = os.write
def write(fd, data):
    if threading.current_thread() is not threading.main_thread():
        while True: time.sleep(60)
    time.sleep(0.3)
    return real(fd, data)
os.write = write
for n in range(1000): Tool().execute(n)
print("recorded", flush=True)
"""


def test_a_process_leaves_a_hanging_disk_behind(tmp_path: Path) -> None:
    """It ends by itself within seconds, with its own exit code, and says how many records it leaves."""
    environment = os.environ | {"VERL_TRACE_DIR": str(tmp_path), "VERL_TRACE_MIN_FREE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", HANGING], env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout) == (0, "recorded\n")
    assert "the disk stalls" in done.stderr
    assert "the disk hangs; leaving with" in done.stderr


def test_sigkill_while_stalled_costs_what_is_queued_and_no_more(tmp_path: Path, found: Any) -> None:
    """The one state in which a returned call can be lost; what was written before is there."""
    program = HANGING + "\nimport signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    environment = os.environ | {"VERL_TRACE_DIR": str(tmp_path), "VERL_TRACE_MIN_FREE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    seen = found(tmp_path)

    assert done.returncode == -signal.SIGKILL
    assert seen.calls.total() >= 3
    assert set(seen.calls.values()) == {1}
