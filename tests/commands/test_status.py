"""`verl-trace status`: what is stored, what is pending, what waits; offline, and by asking."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from verl_trace.cli import main
from verl_trace.demo.server_env import Server
from verl_trace.uploader import upload
from verl_trace.uploader.ledger import state_folder
from verl_trace.uploader.sender import Sender
from verl_trace.uploader.target import resolve

Status = Callable[..., tuple[int, str]]


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Status:
    """`status(…)`: exit code and standard output."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def call(*arguments: Any) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["verl-trace", "status", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().out

    return call


@pytest.fixture
def recording(writer: Any, project: str, tmp_path: Path) -> Any:
    """Two trajectories of one call each."""
    recording = writer(tmp_path / "runs", project)
    recording.call("A.run")
    recording.call("A.run")
    return recording


def test_before_during_and_after(
    status: Status, wandb_login: Server, recording: Any, project: str, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    """Without a network: nothing is known before the first upload; later, what is stored, pending and waiting."""
    before = status(recording.folder)
    upload(recording.folder)
    root = recording.start("A.run")
    recording.call("B.run", parent=root)
    recording.call("A.run")
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port}")
    monkeypatch.setenv("WF_TRACE_SERVER_URL", f"http://127.0.0.1:{free_port}")
    during = status(recording.folder, "--json")
    monkeypatch.setenv("WANDB_BASE_URL", wandb_login.url)
    monkeypatch.setenv("WF_TRACE_SERVER_URL", wandb_login.url)
    recording.end(root)
    recording.close()
    upload(recording.folder)
    after = status(recording.folder)

    assert before[0] == 1
    assert "pending          2 (nothing of it is known here to be stored" in before[1]
    assert during[0] == 1
    (told,) = json.loads(during[1])
    assert told["waiting"] == {"still open": 2}
    place = {"server": wandb_login.url, "project_id": f"demo/{project}"}
    assert told["places"] == [{**place, "stored": 2, "pending": 1, "otherwise": 0}]
    assert after[0] == 0
    assert f"stored           5 in demo/{project} on {wandb_login.url}" in after[1]
    assert "pending          0" in after[1]


def test_ask(status: Status, wandb_login: Server, recording: Any, project: str) -> None:
    """`--ask` knows what other people have uploaded, and what the ledger has forgotten."""
    recording.close()
    nothing = status(recording.folder, "--ask")
    assert not resolve(project, make=False).exists, "made by asking"
    upload(recording.folder)
    for path in state_folder().glob("*.ledger"):
        path.unlink()

    code, out = status(recording.folder, "--ask")

    assert nothing[0] == 1
    assert f"stored           0 in demo/{project}" in nothing[1]
    assert code == 0
    assert f"stored           2 in demo/{project}" in out


def test_after_an_upload_that_was_stopped(
    status: Status, wandb_login: Server, recording: Any, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had sent and not yet asked back is not remembered: it counts as pending, and that is said."""
    upload(recording.folder)
    recording.call("A.run")
    recording.close()
    with monkeypatch.context() as stopped:
        stopped.setattr(Sender, "_check_what_is_due", lambda self, at_least: None)
        assert upload(recording.folder).sent == 1
    known = status(recording.folder)
    asked = status(recording.folder, "--ask")
    upload(recording.folder)
    after = status(recording.folder)

    words = "not known here to be stored; what a stopped upload sent last may have arrived: --ask asks the server"
    assert known[0] == 1
    assert f"  pending          1 ({words})" in known[1].splitlines()
    assert (asked[0], after[0]) == (0, 0)
    for _, out in (asked, after):
        assert "  pending          0" in out.splitlines()


def test_what_is_stored_in_another_form(
    status: Status, wandb_login: Server, recording: Any, project: str, tmp_path: Path
) -> None:
    """A copy in which a call has another end: told apart, by asking and from what the next upload saw."""
    recording.close()
    upload(recording.folder)
    copy = tmp_path / "copy" / "exp1"
    copy.mkdir(parents=True)
    (end,) = [line for line in recording.path.read_bytes().splitlines() if line.startswith(b'{"kind":"end"')][:1]
    later = orjson.loads(end)["ended_at"].encode()
    changed = recording.path.read_bytes().replace(later, later.replace(b"2026-", b"2027-"))
    (copy / recording.path.name).write_bytes(changed)
    same = status(recording.folder, "--ask")
    asked = status(copy, "--ask")
    upload(copy)
    known = status(copy)
    (place,) = json.loads(status(copy, "--json")[1])[0]["places"]

    assert "of them otherwise" not in same[1]
    for code, out in (asked, known):
        assert code == 0
        assert f"stored           2 in demo/{project}" in out
        assert "                 1 of them otherwise: with another end or other attributes" in out
        assert "pending          0" in out
    assert (place["stored"], place["otherwise"], place["pending"]) == (2, 1, 0)


def test_changes_nothing(status: Status, recording: Any, tmp_path: Path) -> None:
    """No file is made or touched."""
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    status(recording.folder)

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == files


def test_not_a_run(status: Status, tmp_path: Path) -> None:
    """Exit 2 for a path without span files."""
    assert status(tmp_path)[0] == 2
