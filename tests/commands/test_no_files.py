"""Pipes, sockets, devices and folders with a segment's name: never waited for, named, and nothing else is missed."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

# Command -> arguments behind it, {run}, {out} and {trace} in place; and its exit code.
COMMANDS: dict[str, tuple[str, int]] = {
    "ls": ("{run}", 0),
    "show": ("{run} {trace}", 0),
    "grep": ("found {run}", 2),
    "cat": ("{run}", 0),
    "compare": ("{run} {trace} {trace}", 0),
    "stats": ("{run}", 0),
    "export": ("{run} --format otlp --out {out}", 0),
    "upload": ("{run} --dry-run", 1),
    "status": ("{run}", 1),
    "pack": ("{run} -o {out}.tar", 1),
    "collect": ("{run} {out}", 1),
    "verify": ("{run}", 4),
    "repair": ("{run} --out {out}", 1),
    "seal": ("{run}", 1),
}


@pytest.fixture
def odd(writer: Any, tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """A run's folder, its only trajectory, and the names of what is no file."""
    made = writer(tmp_path / "runs", "me/proj")
    trace = str(made.call("A.run", {"text": "found"})["trace_id"])
    made.close()
    folder, start = made.folder, made.path.name.split(".")[0]
    names = [f"{start}{letter}.00000.jsonl" for letter in "abcd"] + [f"{start}e.00000.jsonl.zst"]
    os.mkfifo(folder / names[0])
    (folder / names[1]).symlink_to("/dev/zero")
    (folder / names[2]).mkdir()
    os.mkfifo(folder / names[4])
    with socket.socket(socket.AF_UNIX) as listening:
        before = os.getcwd()
        os.chdir(folder)
        listening.bind(names[3])
        os.chdir(before)
        yield folder, trace, names


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """A command that waits fails its test."""

    def ring(*_: Any) -> None:
        raise TimeoutError("it waited for what never comes")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("command", COMMANDS)
def test_named_and_not_read(
    cli: Cli, odd: tuple[Path, str, list[str]], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is named, and what there is besides is read: by name alone, nobody opens them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run, trace, names = odd
    arguments, code = COMMANDS[command]

    done = cli(command, *arguments.format(run=run, out=tmp_path / "out", trace=trace).split())

    assert done.code == code, done.err
    # what is sealed is none of `seal`'s
    assert [name for name in names[: 4 if command == "seal" else 5] if name not in done.out + done.err] == []
    if command in ("pack", "collect", "repair"):
        copy = tmp_path / ("out.tar" if command == "pack" else "out")
        assert trace in cli("ls", "-t", copy, "--json").out


@pytest.mark.parametrize(
    "command", ["ls {runs}", "status {runs}", "verify {runs}", "pack {runs} -o {out}.tar", "ls {only}"]
)
def test_a_folder_of_nothing_else(
    cli: Cli, odd: tuple[Path, str, list[str]], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is no run, and not passed over in silence, beside others or by itself."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run, _, names = odd
    only = run.parent / "only"
    only.mkdir()
    os.mkfifo(only / names[0])

    done = cli(*command.format(runs=run.parent, only=only, out=tmp_path / "out").split())

    assert f"{only / names[0]} is no regular file, and is not read" in done.out + done.err


def test_a_pipe_is_no_process_at_work(cli: Cli, odd: tuple[Path, str, list[str]]) -> None:
    """The run has ended, in one attempt; a link to a file is that file."""
    run, _, names = odd
    (segment,) = [path for path in run.iterdir() if path.is_file()]
    segment.rename(run.parent / "elsewhere")
    segment.symlink_to(run.parent / "elsewhere")

    (facts,) = json.loads(cli("ls", run, "--json").out)

    assert (facts["state"], facts["writing"], len(facts["attempts"]), facts["calls"]) == ("closed", 0, 1, 1)
    assert len(facts["damages"]) == len(names)
