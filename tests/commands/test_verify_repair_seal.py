"""`verl-trace verify`, `repair` and `seal` as people and scripts use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner, Result

from verl_trace.cli import app
from verl_trace.schemas.errors import BadFilter, BadTarget, NotARun


def run(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def runs(tmp_path: Path, writer: Any) -> Path:
    """A whole run."""
    spans = writer(tmp_path / "runs", "proj")
    spans.call("Loop.run", {"a": 1})
    spans.close()
    spans.age(1000)
    return tmp_path / "runs"


def span_file(runs: Path) -> Path:
    """The only one."""
    return next(runs.rglob("*.jsonl"))


def tear(runs: Path) -> None:
    """As a kill does."""
    path = span_file(runs)
    path.write_bytes(path.read_bytes()[:-20])
    os.utime(path, (1_000_000_000, 1_000_000_000))


def damage(runs: Path) -> None:
    """A line that is none, with terminal codes in it."""
    path = span_file(runs)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:1], b"\x1b[31mgarbage\n", *lines[1:]]))


def test_exit_codes_of_verify(runs: Path) -> None:
    """0 whole, 3 torn, 4 damaged, and the reason in words."""
    whole = run("verify", runs)
    tear(runs)
    torn = run("verify", runs)
    damage(runs)
    damaged = run("verify", runs)

    assert (whole.exit_code, torn.exit_code, damaged.exit_code) == (0, 3, 4)
    assert "proj · exp1" in whole.output
    assert "20 bytes" not in whole.output
    assert "the last line has no end" in torn.output
    assert f"{span_file(runs).name} at byte " in damaged.output
    assert "verl-trace repair" in damaged.output
    assert "\x1b" not in damaged.output


def test_json_of_verify(runs: Path) -> None:
    """A list of runs with everything that the text says."""
    damage(runs)
    done = run("verify", runs, "--json")
    (report,) = orjson.loads(done.output)

    assert done.exit_code == 4
    assert (report["state"], report["calls"], report["unknown_kinds"]) == ("damaged", 1, {})
    (problem,) = report["files"][0]["problems"]
    assert (problem["kind"], problem["length"]) == ("line", 13)


def test_verify_of_nothing_cannot_start(tmp_path: Path) -> None:
    """The door of the command line turns this into exit code 2 and one line."""
    assert isinstance(run("verify", tmp_path).exception, NotARun)


def test_repair(runs: Path, tmp_path: Path) -> None:
    """Exit code 1 when something was left out, 0 when only a kill tore something off, and the copy passes verify."""
    tear(runs)
    torn = run("repair", runs, "--out", tmp_path / "torn")
    damage(runs)
    damaged = run("repair", runs, "--out", tmp_path / "damaged", "--json")

    assert (torn.exit_code, damaged.exit_code) == (0, 1)
    assert "the copy is whole" in torn.output
    assert orjson.loads(damaged.output)["copy"] == "whole"
    assert run("verify", tmp_path / "torn").exit_code == 0
    assert run("verify", tmp_path / "damaged").exit_code == 0


def test_repair_in_place_is_refused(runs: Path) -> None:
    """Exit code 2, by the door of the command line."""
    assert isinstance(run("repair", runs, "--out", runs).exception, BadTarget)


def test_seal(runs: Path) -> None:
    """Files of another host are left alone until asked for; afterwards the run is as whole as before."""
    alone = run("seal", runs, "--json")
    odd = run("seal", runs, "--idle", "-1")
    asked = run("seal", runs, "--idle", "1m")
    again = run("seal", runs)

    assert [file["outcome"] for file in orjson.loads(alone.output)] == ["unknown"]
    assert isinstance(odd.exception, BadFilter)
    assert (asked.exit_code, list(runs.rglob("*.jsonl"))) == (0, [])
    assert "compressed" in asked.output
    assert "nothing to do" in again.output
    assert run("verify", runs).exit_code == 0


def test_sealing_a_torn_file_keeps_it_torn(runs: Path) -> None:
    """The torn line is still there, and still no damage."""
    tear(runs)
    run("seal", runs, "--idle", "60")

    assert run("verify", runs).exit_code == 3


def test_seal_of_this_host(tmp_path: Path) -> None:
    """What a killed process of this machine left is compressed without being asked twice."""
    program = (
        "import os, signal; from verl_trace import RolloutTraceConfig, rollout_trace_op\n"
        "@rollout_trace_op\ndef f(self): os.kill(os.getpid(), signal.SIGKILL)\n"
        "RolloutTraceConfig.init('proj', 'exp1', 'jsonl'); f(None)\n"
    )
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"VERL_TRACE_DIR": str(tmp_path)}, check=False)
    done = run("seal", tmp_path)

    assert done.exit_code == 0, done.output
    assert len(list(tmp_path.rglob("*.zst"))) == 1
    assert run("verify", tmp_path).exit_code == 3
