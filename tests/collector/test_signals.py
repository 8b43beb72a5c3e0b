"""The signals that end `verl-trace collect --every`: a last pass and exit 0, however often they come."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Contents = Callable[..., dict[str, bytes]]
# Sends itself the signal when the last pass is over and the interpreter, which ends, has put its own handlers away.
AGAIN = """
import os, signal, sys
class Again:
    def __del__(self, write=os.write, kill=os.kill, pid=os.getpid(), number=int(sys.argv.pop(1))):
        write(2, b"again")
        kill(pid, number)
again = Again()
from verl_trace.cli import main
main()
"""
PLAIN = "from verl_trace.cli import main; main()"


def sidecar(
    source: Path, target: Path, program: str, *words: object, hangup: signal.Handlers = signal.SIG_DFL
) -> subprocess.Popen[str]:
    """One that has made its first pass; `hangup`: what SIGHUP does from the start, whatever it does to these tests."""
    command = [sys.executable, "-c", program, *map(str, words), "collect", str(source), str(target), "--every", "600s"]
    before = signal.signal(signal.SIGHUP, hangup)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.stdout is not None
    assert "copied" in process.stdout.readline()
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_the_same_once_more_after_the_last_pass(
    number: signal.Signals, recorded: Path, tmp_path: Path, contents: Contents
) -> None:
    """Slurm sends it twice within a tenth of a second: the second must not make a failure of what went well."""
    process = sidecar(recorded, tmp_path / "shared", AGAIN, int(number))
    # for the last pass to bring
    next((tmp_path / "shared" / "exp1").glob("*.jsonl.zst")).unlink()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)

    assert (process.returncode, errors.splitlines()[1:]) == (0, ["again"])
    assert contents(tmp_path / "shared") == contents(recorded)


def test_it_says_at_once_what_it_does(recorded: Path, tmp_path: Path) -> None:
    """On stderr, before there is anything to copy; also that there is no such folder yet, which may be a slip."""
    source = tmp_path / "nothing-yet"
    process = subprocess.Popen(
        [sys.executable, "-c", PLAIN, "collect", source, tmp_path / "shared", "--every", "600s", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = process.stderr.readline()
    process.terminate()
    out, _ = process.communicate(timeout=60)

    assert f"collecting {source} (not there yet) to {tmp_path / 'shared'}, a pass every 10m00s; SIGTERM" in said
    assert (process.returncode, out) == (0, "")


def test_a_terminal_that_closes_ends_none_under_nohup(recorded: Path, tmp_path: Path) -> None:
    """What is ignored from the start stays so."""
    process = sidecar(recorded, tmp_path / "shared", PLAIN, hangup=signal.SIG_IGN)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.terminate()

    assert process.wait(60) == 0
    process.communicate()
