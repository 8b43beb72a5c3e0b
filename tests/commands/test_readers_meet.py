"""What every reading command must bear: a poor terminal, a bare node, live and torn runs, very many files."""

from __future__ import annotations

import json
import os
import pty
import resource
import shlex
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
    """Neither rich nor duckdb, re2, rapidfuzz, tokenizers, weave: the same output."""
    program = (
        "import sys\n"
        "if sys.argv.pop(1) == 'bare':\n"
        "    for name in ('rich', 'duckdb', 're2', 'rapidfuzz', 'tokenizers', 'transformers', 'weave', 'wandb',\n"
        "                 'requests'):\n"
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


# As many processes as a large cluster runs; the tenth of it shows the same, but for the number of open files.
@pytest.mark.parametrize("files", [200, pytest.param(2000, marks=pytest.mark.soak)])
def test_very_many_files(cli: Cli, writer: Callable[..., Any], tmp_path: Path, files: int) -> None:
    """Of as many processes; each command reads them all and opens no more than the system allows."""
    for pid in range(files):
        made = writer(tmp_path / "runs", "p", pid=pid)
        made.call("Loop.run", {"response_text": f"answer {pid}"}, step=1, sample_index=pid, rollout_n=0)
        made.close()
        made.age(3600)
    run, out = tmp_path / "runs" / "exp1", tmp_path / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    try:
        assert cli("cat", run).out.count('"kind":"end"') == files
        assert cli("grep", "-F", "answer 7", run).out.count("answer 7") == sum(str(n)[0] == "7" for n in range(files))
        assert "answer 112" in cli("show", run, "1:112:0").out
        assert json.loads(cli("ls", run, "--json").out)[0]["by_step"][0]["trajectories"] == files
        assert len(json.loads(cli("ls", "-t", run, "--json").out)) == files
        assert json.loads(cli("stats", run, "--json").out)[0]["ops"][0]["calls"] == files
        assert len(json.loads(cli("compare", run, "1:7:0", "1:77:0", "--json").out)["trajectories"]) == 2
        assert json.loads(cli("sql", run, "SELECT count(*) AS n FROM calls", "--json").out) == {"n": files}
        out.mkdir()
        for format in ("chrome", "otlp", "parquet"):
            told = cli("export", run, "--format", format, "--out", out / format, "--json")
            assert json.loads(told.out)["trajectories"] == files
        assert json.loads(cli("verify", run, "--json").out)[0]["calls"] == files
        assert cli("pack", run, "-o", tmp_path / "x.tar").code == 0
        assert cli("repair", run, "--out", tmp_path / "copy").code == 0
        for copy in (tmp_path / "x.tar", tmp_path / "copy"):
            assert json.loads(cli("ls", copy, "--json").out)[0]["trajectories"] == files
        assert cli("seal", run, "--idle", "60").code == 0
        assert json.loads(cli("ls", run, "--json").out)[0]["trajectories"] == files
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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


# Each command, on a run that grows meanwhile.
LIVE = (
    "ls {run}", "ls {run} --json", "ls -t {run}", "stats {run}", "grep -c did {run}", "show {run} 0:3:0", "cat {run}",
    "compare {run} 0:3:0 0:4:0", "sql {run} 'SELECT count(*) FROM calls'", "verify {run}", "pack {run} -o {out}.tar",
    "repair {run} --out {out}", "seal {run}", "export {run} --format chat --out {out}",
    "export {run} --format chrome --out {out}", "export {run} --format otlp --out {out}",
    "export {run} --format parquet --out {out}",
)  # fmt: skip


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
        for number, words in enumerate(LIVE):
            named = words.format(run=run, out=tmp_path / f"out-{number}")
            name, *rest = shlex.split(named)
            done = cli(name, *rest)
            assert done.code == 0, (words, done.err)
            assert done.err == "" or "16 processes still at work" in done.err, (words, done.err)
            if name == "cat":
                for line in done.out.splitlines():
                    json.loads(line)
            if words == "ls {run} --json":
                (live,) = json.loads(done.out)
        assert (live["state"], live["writing"]) == ("live", 16)
        assert live["first"] < live["as_of"]
        assert "as of 20" in cli("stats", run).out
    finally:
        (tmp_path / "stop").touch()
        codes = [worker.wait(60) for worker in workers]
    facts = json.loads(cli("ls", run, "--json").out)[0]

    assert codes == [0] * 16
    assert (facts["lost"], facts["unfinished"], facts["damages"], facts["duplicates"]) == (0, 0, [], 0)
    assert facts["trajectories"] == cli("cat", run).out.count('"kind":"end"')
