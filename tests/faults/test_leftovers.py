"""What dead processes left raw: sealed by the next start or on demand, never a living process's file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard

from verl_trace.reader import find_runs
from verl_trace.recorder.leftovers import seal_dead

# Records calls under VERL_TRACE_DIR, says so, and waits to be killed.
PROGRAM = """
import sys, time
from verl_trace import RolloutTraceConfig, rollout_trace_op
class Tool:
    @rollout_trace_op
    def execute(self, n): return n
RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
for n in range(20): Tool().execute(n)
print("ready", flush=True)
sys.stdin.readline()
"""


def begin(runs: Path) -> subprocess.Popen[str]:
    """A process that has recorded 20 calls."""
    environment = os.environ | {"VERL_TRACE_DIR": str(runs), "VERL_TRACE_MIN_FREE": "0"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, text=True, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The raw file of a process that was killed, with half a line at its end."""
    kill(begin(tmp_path))
    (raw,) = (tmp_path / "exp1").glob("*.jsonl")
    with raw.open("ab") as file:
        file.write(b'{"kind":"end","bytes":1')
    return raw


def test_a_dead_process_s_file_is_sealed_byte_for_byte(killed: Path) -> None:
    """Its torn line stays, its time of the last change too, and it is still seen as torn; again does nothing."""
    content, changed = killed.read_bytes(), killed.stat().st_mtime_ns

    (done,) = seal_dead(killed.parent)

    assert done.outcome == "sealed"
    assert done.sealed is not None
    assert not killed.exists()
    assert zstandard.ZstdDecompressor().decompress(done.sealed.read_bytes()) == content
    assert done.sealed.stat().st_mtime_ns == changed
    (run,) = find_runs(killed.parent)
    assert run.state == "torn"
    assert seal_dead(killed.parent) == []


def test_a_living_process_s_file_is_left_alone(tmp_path: Path) -> None:
    """While it runs, and also while it has ended but nobody has asked for its exit code: then it is dead."""
    process = begin(tmp_path)
    try:
        (before,) = seal_dead(tmp_path / "exp1")
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        (after,) = seal_dead(tmp_path / "exp1")
    finally:
        kill(process)

    assert (before.outcome, after.outcome) == ("alive", "sealed")


@pytest.mark.parametrize("key", ["boot_id", "pid_ns", "pid", "pid_start"])
def test_what_nobody_here_can_tell_is_left_alone(killed: Path, key: str) -> None:
    """Another host, another container, a header without the process: only `idle` lets it be sealed."""
    first, _, rest = killed.read_bytes().partition(b"\n")
    killed.write_bytes(first.replace(b'"%s":' % key.encode(), b'"other":', 1) + b"\n" + rest)

    assert [file.outcome for file in seal_dead(killed.parent)] == ["unknown"]
    assert [file.outcome for file in seal_dead(killed.parent, idle=3600)] == ["alive"]
    hour_ago = time.time() - 3601
    os.utime(killed, (hour_ago, hour_ago))
    assert [file.outcome for file in seal_dead(killed.parent, idle=3600)] == ["sealed"]


def test_a_reused_pid_is_not_the_process(killed: Path) -> None:
    """A process that has the pid by now but began later does not keep the file raw."""
    first, _, rest = killed.read_bytes().partition(b"\n")
    pid = killed.name.split("-")[-2].encode()
    killed.write_bytes(first.replace(b'"pid":' + pid, b'"pid":%d' % os.getpid()) + b"\n" + rest)

    assert [file.outcome for file in seal_dead(killed.parent)] == ["sealed"]


def test_the_next_start_seals_and_sweeps(tmp_path: Path, killed: Path) -> None:
    """The background thread of a new process does it, and removes what a killed seal left; own files are its own."""
    left = killed.with_name(killed.name + ".zst.tmp")
    left.write_bytes(b"half")
    process = begin(tmp_path)
    sealed = killed.with_name(killed.name + ".zst")
    deadline = time.monotonic() + 60
    while killed.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.communicate("go\n", timeout=60)

    assert sealed.exists()
    assert not killed.exists()
    assert not left.exists()
    assert sorted(writer.state for run in find_runs(tmp_path) for writer in run.writers) == ["closed", "torn"]


SEALER = """
import sys
from pathlib import Path
from verl_trace.recorder import leftovers
if sys.argv[2] == "without":
    leftovers._lock = lambda fd: None
print("ready", flush=True)
sys.stdin.readline()
print(*[file.outcome for file in leftovers.seal_dead(Path(sys.argv[1]))])
"""


@pytest.mark.parametrize("locks", ["with", "without"])
def test_many_at_once_do_no_harm(killed: Path, locks: str) -> None:
    """Six processes seal ten files at once, with locks of the file system and without: each file once, none lost."""
    content = killed.read_bytes()
    for number in range(1, 10):
        name = killed.name.replace(".00000.", f".{number:05d}.")
        killed.with_name(name).write_bytes(content)

    command = [sys.executable, "-c", SEALER, str(killed.parent), locks]
    sealers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    for sealer in sealers:
        assert sealer.stdout is not None
        assert sealer.stdout.readline() == "ready\n"
    for sealer in sealers:
        assert sealer.stdin is not None
        sealer.stdin.write("go\n")
        sealer.stdin.flush()
    outcomes = [sealer.communicate(timeout=60)[0].split() for sealer in sealers]

    files = sorted(path for path in killed.parent.iterdir() if not path.name.startswith("."))
    assert [path.suffix for path in files] == [".zst"] * 10
    assert all(zstandard.ZstdDecompressor().decompress(path.read_bytes()) == content for path in files)
    flat = [outcome for some in outcomes for outcome in some]
    assert flat.count("sealed") >= 10
    assert set(flat) <= {"sealed", "busy", "gone"}
    if locks == "with":
        assert flat.count("sealed") == 10


def test_a_crash_between_rename_and_unlink_is_cleaned_up(killed: Path) -> None:
    """Raw and sealed form side by side: one remains."""
    content = killed.read_bytes()
    (done,) = seal_dead(killed.parent)
    assert done.sealed is not None
    killed.write_bytes(content)

    assert [file.outcome for file in seal_dead(killed.parent)] == ["sealed"]
    assert not killed.exists()
    assert zstandard.ZstdDecompressor().decompress(done.sealed.read_bytes()) == content


def test_a_file_that_cannot_be_sealed_does_not_keep_the_others(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error is an outcome with its reason; the raw file stays."""
    other = killed.with_name(killed.name.replace(".00000.", ".00001."))
    other.write_bytes(killed.read_bytes())
    real = os.rename

    def refuse(source: Any, target: Any) -> None:
        if ".00001." in str(source):
            raise PermissionError(1, "Operation not permitted")
        real(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    first, second = seal_dead(killed.parent)

    assert (first.outcome, second.outcome) == ("sealed", "failed")
    assert second.detail == "Operation not permitted"
    assert other.exists()
    assert not list(killed.parent.glob("*.tmp"))
