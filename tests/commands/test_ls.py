"""`verl-trace ls` as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verl_trace.commands.ls import ls

SCRIPT = Path(sys.executable).with_name("verl-trace")


def run(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VERL_TRACE_")}
    return subprocess.run(
        [SCRIPT, *arguments], cwd=cwd, env=clean | environment, capture_output=True, timeout=60, check=False
    )


def test_it_lists_runs_as_a_table_and_as_json(tmp_path: Path, writer: type[Any]) -> None:
    """The same facts in both; JSON has every one of them."""
    made = writer(tmp_path / "runs", "me/proj")
    made.call("a", step=3)
    made.close()
    table, as_json = run("ls", cwd=tmp_path), run("ls", "--json", cwd=tmp_path)

    assert (table.returncode, table.stderr, as_json.returncode, as_json.stderr) == (0, b"", 0, b"")
    head, row = table.stdout.decode().splitlines()
    for word in ("project", "state", "steps", "calls", "size"):
        assert word in head
    assert row.split()[:3] == ["exp1", "me/proj", "closed"]
    (facts,) = json.loads(as_json.stdout)
    assert facts["project_name"] == "me/proj"
    assert (facts["calls"], facts["trajectories"], facts["steps"], facts["skipped"], facts["lost"]) == (1, 1, [3], 0, 0)
    assert facts["bytes"] == made.path.stat().st_size


def test_the_folder_is_the_argument_or_the_setting_or_runs(tmp_path: Path, writer: type[Any]) -> None:
    """In this order."""
    for name in ("runs", "setting", "argument"):
        writer(tmp_path / name, f"project-{name}").close()
    setting = str(tmp_path / "setting")

    assert b"project-runs" in run("ls", cwd=tmp_path).stdout
    assert b"project-setting" in run("ls", cwd=tmp_path, VERL_TRACE_DIR=setting).stdout
    assert b"project-argument" in run("ls", "argument", cwd=tmp_path, VERL_TRACE_DIR=setting).stdout


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    """No such folder, no runs in it, a file of another kind: exit code 2, no traceback, the path named."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("x")
    for name in ("missing", "empty", "file.txt"):
        done = run("ls", name, cwd=tmp_path)

        assert done.returncode == 2
        assert done.stdout == b""
        message, *hint = done.stderr.decode().splitlines()
        assert name in message
        assert len(hint) <= 1
        assert b"Traceback" not in done.stderr


def test_a_poor_alphabet_crashes_nothing(tmp_path: Path, writer: type[Any]) -> None:
    """In an ASCII locale the listing and the hint of an error are printed, and escapes stay visible text."""
    writer(tmp_path / "runs", "två\x1b[31m漢").close()
    poor = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done, failed = run("ls", cwd=tmp_path, **poor), run("ls", "nowhere", cwd=tmp_path, **poor)

    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\x1b[31m" in done.stdout
    assert b"\x1b" not in done.stdout
    assert failed.returncode == 2
    assert b"nowhere" in failed.stderr
    assert b"Traceback" not in failed.stderr


def test_closed_outputs_crash_nothing(tmp_path: Path, writer: type[Any]) -> None:
    """`verl-trace ls >&-` says nothing; `2>&-` says what there is to say on stdout."""
    writer(tmp_path / "runs", "p").close()
    for closed, seen in ((">&-", False), ("2>&-", True)):
        done = subprocess.run(
            ["sh", "-c", f'"$0" ls {closed}', SCRIPT], cwd=tmp_path, capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, bool(done.stdout), done.stderr) == (0, seen, b"")


def test_a_closed_pipe_ends_it_quietly(tmp_path: Path, writer: type[Any]) -> None:
    """`verl-trace ls | head` prints no complaint."""
    for number in range(30):
        writer(tmp_path / "runs", f"{number}-{'p' * 4000}").close()
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [SCRIPT, "ls"], cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(writing)

    assert done.stderr == b""


def test_listing_imports_nothing_heavy(tmp_path: Path, writer: type[Any]) -> None:
    """A GPU node has no weave, wandb, requests or rich of ours: `ls` works without them."""
    writer(tmp_path / "runs", "p").close()
    program = (
        "import sys\n"
        "for name in ('weave', 'wandb', 'requests', 'rich', 'numpy', 'torch'): sys.modules[name] = None\n"
        "sys.argv = ['verl-trace', 'ls', 'runs']\n"
        "from verl_trace.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert b"exp1" in done.stdout


def test_a_folder_that_cannot_be_read_is_told(
    tmp_path: Path, writer: type[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the table: a run that is not listed must not look like one that is not there."""
    made = writer(tmp_path, "me/proj")
    made.call("a")
    made.close()
    (tmp_path / "closed").mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "closed" and allowed(path, mode))

    ls(tmp_path)

    out, err = capsys.readouterr()
    assert "me/proj" in out
    assert err == f"verl-trace: not listed, since it cannot be read: {tmp_path / 'closed'}\n"
