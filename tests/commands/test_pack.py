"""`verl-trace pack` and the filters, as typed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from verl_trace.cli import app
from verl_trace.commands.sizes import parse_size
from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.schemas.errors import BadFilter

FAILED = {"type": "E", "message": "", "traceback": []}


@pytest.fixture
def runs(writer: Any, tmp_path: Path) -> Path:
    """Steps 1 to 10 with two samples each, of which one fails in step 3."""
    recording = writer(tmp_path / "runs", "proj")
    for step in range(1, 11):
        for sample in (0, 1):
            root = recording.start("Loop.run", step=step, sample_index=sample, rollout_n=0, validate=step == 10)
            recording.end(root, exception=FAILED if (step, sample) == (3, 1) else None)
    recording.close()
    os.utime(recording.path, (1_000_000_000, 1_000_000_000))
    return tmp_path / "runs"


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def packed(path: Path) -> list[tuple[int, int]]:
    return [(t.attributes["step"], t.attributes["sample_index"]) for r in find_runs(path) for t in iter_trajectories(r)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], 20),
        (["--step", "1:9:4"], 6),
        (["--step", "2,3", "--sample-index", "1"], 2),
        (["--validate"], 2),
        (["--train"], 18),
        (["--status", "error"], 1),
        (["--op", "run", "--op", "other"], 20),
        (["--attempt", "last", "--rollout-n", "0", "--where", "step > 8"], 4),
    ],
)
def test_filters_choose_what_is_packed(runs: Path, tmp_path: Path, options: list[str], expected: int) -> None:
    """Every filter, alone and with others."""
    done = run("pack", runs, "-o", tmp_path / "X.tar", "--json", *options)

    assert done.exit_code == 0, done.output
    assert len(packed(tmp_path / "X.tar")) == expected
    assert json.loads(done.stdout)["trajectories"] == (expected if options else None)


def test_a_choice_of_nothing_is_said(runs: Path, tmp_path: Path) -> None:
    """Nothing is written, and the exit code is that of a grep that finds nothing."""
    done = run("pack", runs, "-o", tmp_path / "X.tar", "--min-duration", "1h")

    assert done.exit_code == 1
    assert "nothing was packed" in done.output
    assert not (tmp_path / "X.tar").exists()


@pytest.mark.parametrize(
    "options",
    [
        "--step a:b",
        "--validate --train",
        "--status bad",
        "--where open()",
        "--attempt 7",
        "--min-duration soon",
        "--split 0",
        "--split many",
    ],
)
def test_what_cannot_be_meant_is_refused(runs: Path, tmp_path: Path, options: str) -> None:
    """Nothing is written for a filter that says nothing."""
    done = run("pack", runs, "-o", tmp_path / "X.tar", *options.split())

    assert isinstance(done.exception, BadFilter)
    assert not (tmp_path / "X.tar").exists()


def test_other_commands_take_the_file(runs: Path, tmp_path: Path) -> None:
    """ls, verify and repair read X.tar as they read the folder."""
    assert run("pack", runs / "exp1", "-o", tmp_path / "X.tar", "--split", "4GB").exit_code == 0
    listed = [json.loads(run("ls", place, "--json").stdout)[0] for place in (runs / "exp1", tmp_path / "X.tar")]

    assert {**listed[0], "folder": 0, "bytes": 0} == {**listed[1], "folder": 0, "bytes": 0}
    assert run("verify", tmp_path / "X.tar").exit_code == 0
    assert run("repair", tmp_path / "X.tar", "--out", tmp_path / "copy").exit_code == 0
    assert packed(tmp_path / "copy") == packed(runs)


def test_a_part_that_is_missing_is_told(runs: Path, tmp_path: Path) -> None:
    """verify and ls say which part; the exit code of verify says that something is wrong."""
    assert run("pack", runs, "-o", tmp_path / "X.tar", "--split", "1").exit_code == 0
    assert len(list(tmp_path.glob("X*.tar"))) == 1
    other = tmp_path / "Y.tar"
    (runs / "exp1" / ".attempt-1").touch()
    assert run("pack", runs, "-o", other, "--split", "1").exit_code == 0
    other.unlink()

    left = tmp_path / "Y.part2.tar"
    assert run("verify", left).exit_code not in (0, 2)
    assert "Y.tar is missing" in run("verify", left).output
    assert "Y.tar is missing" in run("ls", left).output


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4 * 10**9), ("500MiB", 500 << 20), ("1000", 1000), (" 1.5k ", 1500), ("2 TB", 2 * 10**12)],
)
def test_sizes(text: str, size: int) -> None:
    """Decimal and binary units."""
    assert parse_size(text, "--split") == size


@pytest.mark.parametrize("command", [["cat"], ["grep", "-c", "Loop"], ["stats", "--json"], ["show", "--json"]])
def test_reading_commands_take_the_file(runs: Path, tmp_path: Path, command: list[str]) -> None:
    """What they print of X.tar is what they print of the folder."""
    assert run("pack", runs / "exp1", "-o", tmp_path / "X.tar", "--split", "1").exit_code == 0
    selector = ["3:1"] if command[0] == "show" else []
    name, *options = command
    words = options[1:] if name == "grep" else []
    flags = options[:1] if name == "grep" else options
    printed = [run(name, *words, place, *selector, *flags) for place in (runs / "exp1", tmp_path / "X.tar")]

    assert printed[0].exit_code == printed[1].exit_code == 0, printed[1].output
    assert printed[0].stdout == printed[1].stdout.replace(str(tmp_path / "X.tar" / "exp1"), str(runs / "exp1"))
