"""A run's name in the place of its folder: the same for every command that takes a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.commands.runs import run_path

Cli = Callable[..., Any]
READING = [["status"], ["verify"], ["seal"], ["repair", "--out", "copy"], ["pack", "--out", "X.tar"], ["ls"]]
FOR_GOOD = [["upload", "--dry-run", "--no-wandb"], ["prune", "--uploaded", "--dry-run"]]


def named(command: list[str]) -> str:
    return command[0]


@pytest.fixture(autouse=True)
def runs(cli: Cli, writer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`grpo-1` and `grpo-10` in VERL_TRACE_DIR, and a current folder that has neither."""
    for name in ("grpo-1", "grpo-10"):
        made = writer(tmp_path / "runs", "p", name)
        made.call("Agent.run")
        made.close()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("VERL_TRACE_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.mark.parametrize("command", [*READING, FOR_GOOD[0]], ids=named)
def test_a_name_does_what_the_folder_does(
    cli: Cli, runs: Path, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`grpo-1` is that run, though another begins so."""
    by_name = cli(*command, "grpo-1")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    by_folder = cli(*command, runs / "grpo-1")

    assert by_name.code in (0, 1)
    assert "no such" not in by_name.err
    if command != ["seal"]:  # which the first time leaves nothing to do for
        assert (by_name.code, shape(by_name.out)) == (by_folder.code, shape(by_folder.out))


def shape(text: str) -> list[str]:
    """Without the time that a dry run took."""
    return [line for line in text.splitlines() if not line.startswith("time ")]


@pytest.mark.parametrize("command", READING, ids=named)
def test_the_beginning_of_a_name(cli: Cli, command: list[str]) -> None:
    """Enough where one run begins so; where several do, they are named."""
    one, several = cli(*command, "grpo-10"), cli(*command, "grpo")

    assert one.code in (0, 1)
    assert several.code == 2
    assert "'grpo' means 2 runs" in several.err


@pytest.mark.parametrize("command", FOR_GOOD, ids=named)
def test_what_is_sent_or_deleted_is_named_in_full(cli: Cli, command: list[str], runs: Path) -> None:
    """A slip must not meet a run that begins alike."""
    done = cli(*command, "grpo-")

    assert (done.code, done.out) == (2, "")
    assert "'grpo-' is only the beginning of a name (say the whole of it)" in done.err
    assert str(runs / "grpo-10") in done.err


def test_a_path_here_goes_first(cli: Cli, writer: Callable[..., Any]) -> None:
    """A folder of that name in the current one."""
    made = writer(Path(), "q", "grpo-1")
    made.close()

    assert "q · grpo-1" in cli("verify", "grpo-1").out


def test_a_folder_with_other_runs_is_named_itself(cli: Cli, runs: Path) -> None:
    """Files of two experiments in one folder: the name of one of them means not both."""
    for file in (runs / "grpo-10").iterdir():
        file.rename(runs / "grpo-1" / file.name)
    (runs / "grpo-1").rename(runs / "mixed")
    done = cli("verify", "grpo-1")

    assert done.code == 2
    assert f"{runs / 'mixed'} holds other runs beside 'grpo-1'" in done.err
    assert cli("verify", "mixed").code == 0


def test_a_run_that_may_still_come(runs: Path) -> None:
    """`upload --follow grpo-100` waits for that run, and follows none that begins alike."""
    assert run_path(Path("grpo-"), whole=True, awaited=True) == Path("grpo-")
    assert run_path(Path("grpo-1"), whole=True, awaited=True) == runs / "grpo-1"


def test_where_a_run_is_awaited(cli: Cli, runs: Path, tmp_path: Path) -> None:
    """A name that no run has yet is a path of the current folder, which may not be what was meant."""
    # what cannot be followed ends it before the first look
    awaited, there = (cli("upload", name, "--follow", "--limit", "1").err for name in ("grpo-\x1b[31m", "grpo-1"))

    assert "following grpo-\\x1b[31m (not there yet; awaited is " in awaited
    assert str(tmp_path / "here") in awaited
    assert f"following {runs / 'grpo-1'}, a look every" in there
