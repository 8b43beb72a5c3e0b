"""What every reading command must bear: a poor terminal, a bare node, live and torn runs, very many files."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import HOSTILE, trajectory

Cli = Callable[..., Any]
SCRIPT = Path(sys.executable).with_name("verl-trace")
COMMANDS = ["ls {run}", "ls -t {run}", "show {run} 1:0:0", "grep question {run}", "cat {run}", "stats {run}"]
COMMANDS += ["compare {run} 1:0:0 1:0:1"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bare_node(rollouts: Path, command: str) -> None:
    """Neither rich nor duckdb, re2, tokenizers, weave: the same output."""
    program = (
        "import sys\n"
        "if sys.argv.pop(1) == 'bare':\n"
        "    for name in ('rich', 'duckdb', 're2', 'tokenizers', 'transformers', 'weave', 'wandb', 'requests'):\n"
        "        sys.modules[name] = None\n"
        "from verl_trace.cli import main\n"
        "main()\n"
    )
    words = command.format(run=rollouts).split()
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program, kind, *words], capture_output=True, timeout=60, check=True
        ).stdout
        for kind in ("bare", "full")
    ]

    assert outputs[0] == outputs[1]
    assert outputs[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_ascii_locale(writer: Callable[..., Any], tmp_path: Path, command: str) -> None:
    """What it lacks is written as an escape; nothing crashes."""
    made = writer(tmp_path / "runs", "p")
    for rollout in (0, 1):
        trajectory(made, 1, 0, rollout, answer=f"漢字 {HOSTILE}")
    made.close()
    poor = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    words = command.format(run=tmp_path / "runs" / "exp1").split()
    done = subprocess.run([SCRIPT, *words], env=os.environ | poor, capture_output=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, b"")
    assert words[0] == "cat" or done.stdout.isascii()


@pytest.mark.parametrize(("variable", "coloured"), [("", True), ("NO_COLOR", False)])
def test_colours_only_on_a_terminal_that_wants_them(rollouts: Path, variable: str, coloured: bool) -> None:
    """In a real pseudo-terminal; NO_COLOR switches them off, and text is the same."""
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "80", **({variable: "1"} if variable else {})}
    ours, theirs = pty.openpty()
    words = [str(SCRIPT), "show", str(rollouts), "1:0:0"]
    with subprocess.Popen(words, env=environment, stdout=theirs, stderr=theirs, close_fds=True) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:
                break
            if not data:
                break
            seen += data
        assert process.wait(timeout=60) == 0
    os.close(ours)

    assert (b"\x1b[" in seen) == coloured
    assert b"question 0?" in seen


def test_a_thousand_files(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """Of as many processes; each command reads them all and opens no more than the system allows."""
    for pid in range(1000):
        made = writer(tmp_path / "runs", "p", pid=pid)
        made.call("Loop.run", {"response_text": f"answer {pid}"}, step=1, sample_index=pid, rollout_n=0)
        made.close()
        made.age(3600)
    run = tmp_path / "runs" / "exp1"

    assert cli("cat", run).out.count('"kind":"end"') == 1000
    assert cli("grep", "-F", "answer 77", run).out.count("answer 77") == 11
    assert "answer 512" in cli("show", run, "1:512:0").out
    assert json.loads(cli("ls", run, "--json").out)[0]["by_step"][0]["trajectories"] == 1000


_WORKER = """
import pathlib, sys, time
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

@rollout_trace_op
def work(number):
    return {"response_text": f"did {number}", "token_ids": [number] * 50}

RolloutTraceConfig.init("me/proj", "live", "jsonl")
number = 0
while not pathlib.Path(sys.argv[1], "stop").exists():
    with rollout_trace_attr(sample_index=int(sys.argv[2]), step=number, rollout_n=0):
        work(number)
    number += 1
    time.sleep(0.02)
"""


def test_while_sixteen_processes_write(cli: Cli, tmp_path: Path) -> None:
    """Every command works, sees only whole records, changes no file, and disturbs no writer."""
    settings = {"VERL_TRACE_DIR": str(tmp_path), "VERL_TRACE_MIN_FREE": "0", "VERL_TRACE_SEGMENT_BYTES": "64K"}
    command = [sys.executable, "-c", _WORKER, str(tmp_path)]
    workers = [
        subprocess.Popen([*command, str(n)], env=os.environ | settings, stderr=subprocess.DEVNULL) for n in range(16)
    ]
    run = tmp_path / "live"
    try:
        deadline = time.monotonic() + 100
        while not run.is_dir() or len({path.name.partition(".")[0] for path in run.glob("2*")}) < 16:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for words in (
            "ls {run}",
            "ls {run} --json",
            "stats {run}",
            "grep -c did {run}",
            "show {run} 0:3:0",
            "cat {run}",
        ):
            done = cli(*words.format(run=run).split())
            assert (done.code, done.err) == (0, ""), words
        for line in done.out.splitlines():
            json.loads(line)
    finally:
        (tmp_path / "stop").touch()
        codes = [worker.wait(60) for worker in workers]
    facts = json.loads(cli("ls", run, "--json").out)[0]

    assert codes == [0] * 16
    assert (facts["lost"], facts["unfinished"], facts["damages"], facts["duplicates"]) == (0, 0, [], 0)
    assert facts["trajectories"] == cli("cat", run).out.count('"kind":"end"')
