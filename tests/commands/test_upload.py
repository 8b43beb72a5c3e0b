"""`verl-trace upload` as a user meets it: what it prints and how it exits."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_trace.cli import main
from verl_trace.demo.server_env import Server, start_server
from verl_trace.uploader.estimate import keep_rate
from verl_trace.uploader.result import RunReport

KEY = "0123456789" * 4

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """`run("upload", …)`: exit code, standard output, standard error."""

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def call(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["verl-trace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture(scope="module")
def locked_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that takes one key only."""
    with start_server(tmp_path_factory.mktemp("locked") / "weave.db", api_key=KEY) as server:
        yield server


@pytest.fixture
def recording(writer: Any, project: str, tmp_path: Path) -> Any:
    """A run of one trajectory of two calls, not closed yet."""
    recording = writer(tmp_path / "runs", project)
    root = recording.start("A.run", step=1)
    recording.call("B.run", parent=root)
    recording.end(root)
    return recording


def test_all_sent(run: Run, wandb_login: Server, recording: Any, project: str) -> None:
    """Exit 0, and a report whose numbers add up; a second time everything is stored already."""
    recording.close()

    code, out, err = run("upload", recording.folder)
    again = run("upload", recording.folder)

    assert (code, err) == (0, "")
    assert f"{project} · exp1 → {wandb_login.url}/demo/{project}/weave" in out
    assert numbers(out) == {"recorded": 2, "sent": 2, "skipped": 0, "failed": 0}
    assert again[0] == 0
    assert numbers(again[1]) == {"recorded": 2, "sent": 0, "skipped": 2, "failed": 0}
    assert "(2 already stored)" in again[1]


def test_json_report(run: Run, wandb_login: Server, recording: Any, project: str) -> None:
    """`--json` prints one object with the same numbers, per run and in all."""
    recording.close()

    code, out, err = run("upload", recording.folder, "--json")

    report = json.loads(out)
    assert (code, err) == (0, "")
    assert (report["recorded"], report["sent"], report["skipped"], report["failed"]) == (2, 2, {}, 0)
    assert report["runs"][0]["target"] == f"demo/{project}"


def test_refused_call(run: Run, wandb_login: Server, recording: Any) -> None:
    """Exit 1, and the call is named with the server's words."""
    bad = recording.start("C.run")
    outcome = {"duration": 0.1, "text": False, "status": "success", "exception": None, "output": None}
    recording.write({"kind": "end", **bad, "ended_at": "yesterday", **outcome})
    recording.close()

    code, out, _ = run("upload", recording.folder)

    assert code == 1
    assert numbers(out) == {"recorded": 3, "sent": 2, "skipped": 0, "failed": 1}
    assert f"{bad['id']} C.run [ended_at]: HTTP 422: " in out


def test_stopped_midway(run: Run, wandb_login: Server, recording: Any, project: str) -> None:
    """Exit 5 when the server takes nothing more; the report names why, and every call that is still to be sent."""
    recording.close()
    run("upload", recording.folder)

    code, out, _ = run("upload", recording.folder, "--project", f"{project}-copy")

    assert code == 5
    assert numbers(out) == {"recorded": 2, "sent": 0, "skipped": 0, "failed": 2}
    assert "  stopped: " in out
    assert out.count("not sent") == 1
    assert "    2 calls not sent, since the upload stopped\n" in out
    assert out.count("SQLite storage") == 1
    assert "run the command again" not in out


def test_ten_folders(run: Run, wandb_login: Server, recording: Any, tmp_path: Path) -> None:
    """Exit 1 and the name when a folder beside the runs is none; `--fail-fast` exits 2 and sends nothing."""
    recording.close()
    (tmp_path / "runs" / "no-run").mkdir()

    strict = run("upload", tmp_path / "runs", "--fail-fast")
    code, out, _ = run("upload", tmp_path / "runs")

    assert (strict[0], strict[1]) == (2, "")
    assert "no-run: no span files in it" in strict[2]
    assert code == 1
    assert numbers(out)["sent"] == 2
    assert f"{tmp_path / 'runs' / 'no-run'} was not uploaded: no span files in it" in out


@pytest.mark.parametrize(
    ("option", "value"),
    [("--settle", "soon"), ("--max-wait", "-1"), ("--check", "some"), ("--wandb-dir", "/no/such/folder")],
)
def test_bad_options(run: Run, wandb_login: Server, recording: Any, option: str, value: str) -> None:
    """Exit 2 for a duration or a check that is none, and a folder that is not there."""
    assert run("upload", recording.folder, option, value)[0] == 2


@pytest.mark.parametrize("other", [["--wandb-only"], ["--run-id", "abc"], ["--wandb-dir", "."]])
def test_options_that_exclude_each_other(run: Run, recording: Any, other: list[str]) -> None:
    """Without W&B runs, what is said of them would do nothing."""
    code, out, err = run("upload", recording.folder, "--dry-run", "--no-wandb", *other)

    assert (code, out) == (2, "")
    assert f"--no-wandb leaves nothing to do for {other[0]}" in err


def test_what_was_not_chosen_is_no_failure(run: Run, wandb_login: Server, recording: Any) -> None:
    """Exit 0 when all that the options choose has arrived."""
    recording.end(recording.start("A.run", step=2))
    recording.close()

    code, out, _ = run("upload", recording.folder, "--step", "1")

    assert code == 0
    assert numbers(out) == {"recorded": 3, "sent": 2, "skipped": 1, "failed": 0}


def test_deep_check(run: Run, wandb_login: Server, recording: Any) -> None:
    """`--check deep` says how many calls and bytes were read back, and what came of it; the others looked at less."""
    recording.close()

    counts = run("upload", recording.folder)
    deep = run("upload", recording.folder, "--check", "deep")
    none = run("upload", recording.folder, "--check", "none")

    assert (counts[0], deep[0], none[0]) == (0, 0, 0)
    assert re.search(
        r"\n  compared         2 calls read back, [\d.]+ k?B of JSON; every field is as recorded\n", deep[1]
    )
    assert "compared" not in counts[1] + none[1]
    assert "stored           2  (the server shows 2 of them)" in deep[1]
    assert "stored           2  (not checked)" in none[1]


def test_open_calls(run: Run, wandb_login: Server, recording: Any) -> None:
    """Exit 1 while a call may still go on: something is left to be sent."""
    recording.start("C.run")

    code, out, _ = run("upload", recording.folder)

    assert code == 1
    assert "(1 still open)" in out


def test_what_cannot_be_read_is_no_success(
    run: Run, wandb_login: Server, recording: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 1, and the name: what the others have arrives, but nobody knows what is in a closed folder."""
    recording.close()
    closed = tmp_path / "runs" / "closed"
    closed.mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed and allowed(path, mode))

    code, out, _ = run("upload", tmp_path / "runs")
    _, as_json, _ = run("upload", tmp_path / "runs", "--json")

    assert code == 1
    assert "sent             2 calls" in out
    assert f"cannot be read: {closed}" in out
    assert json.loads(as_json)["unreadable"] == [str(closed)]


NOISE = random.Random(1).randbytes(999)
FOREIGN = b'{"messages":[]}\n' * 5


@pytest.mark.parametrize("suffix", ["", ".zst"])
@pytest.mark.parametrize("data", [b"\x00" * 999, NOISE, b"garbage\n" * 9, FOREIGN, b"\n"], ids=range(5))
def test_a_file_of_garbage_is_no_success(run: Run, writer: Any, tmp_path: Path, data: bytes, suffix: str) -> None:
    """Exit 1, and what is wrong with which file, by itself and beside others: nobody knows what was in it."""
    path = garbage(writer(tmp_path / "runs", "p"), data, suffix)
    code, out, _ = run("upload", tmp_path / "runs", "--dry-run", "--project", "p")
    beside = writer(tmp_path / "runs", "p", pid=4712)
    beside.call("A.run")
    beside.close()
    other = run("upload", tmp_path / "runs", "--dry-run")

    assert (code, other[0]) == (1, 1)
    for text in (out, other[1]):
        assert f"damaged: {path.name} at byte 0" in text
        assert f"cannot be read: {path} is damaged" in text
    assert (numbers(out)["recorded"], numbers(other[1])["recorded"]) == (0, 1)


def test_garbage_beside_what_is_sent(run: Run, wandb_login: Server, recording: Any, writer: Any) -> None:
    """The others' calls arrive."""
    recording.close()
    path = garbage(writer(recording.folder.parent, recording.project, pid=4712), NOISE, ".zst")
    code, out, _ = run("upload", recording.folder)

    assert (code, numbers(out)["sent"]) == (1, 2)
    assert f"cannot be read: {path} is damaged" in out


def garbage(made: Any, data: bytes, suffix: str) -> Path:
    """A file of a process that is dead, of other bytes than it wrote."""
    path: Path = made.path.with_name(f"{made.path.name}{suffix}")
    made.path.unlink()
    path.write_bytes(data)
    os.utime(path, (0, 0))
    return path


def test_what_a_kill_leaves_is_no_garbage(run: Run, wandb_login: Server, recording: Any, writer: Any) -> None:
    """A file that was opened and never written, and one torn within its header."""
    recording.close()
    for pid, data in ((1, b""), (2, b'{"kind":"header","sch')):
        other = writer(recording.folder.parent, recording.project, pid=pid)
        other.path.write_bytes(data)
        os.utime(other.path, (0, 0))
    code, out, _ = run("upload", recording.folder)

    assert (code, numbers(out)["sent"]) == (0, 2)


def test_a_file_that_cannot_be_read_is_no_success(run: Run, wandb_login: Server, recording: Any, writer: Any) -> None:
    """The same for one file of a run; here a folder has its name, which nobody may read as a file, root included."""
    recording.close()
    other = writer(recording.folder.parent, recording.project, pid=4712)
    other.path.unlink()
    other.path.mkdir()

    code, out, _ = run("upload", recording.folder)

    assert code == 1
    assert "sent             2 calls" in out
    assert f"cannot be read: {other.path}" in out


def test_a_damaged_file_is_no_success(run: Run, recording: Any) -> None:
    """Exit 1, and the file: a line of it is no record any more, and whose it was nobody knows."""
    recording.close()
    lines = recording.path.read_bytes().splitlines(keepends=True)
    recording.path.write_bytes(b"".join([*lines[:2], b"x" + lines[2][1:], *lines[3:]]))

    code, out, _ = run("upload", recording.folder, "--dry-run")

    assert code == 1
    assert f"cannot be read: {recording.path} is damaged (`verl-trace verify` says where)" in out


def test_dry_run(run: Run, recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--dry-run` says what would be sent, without key and server."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)

    code, out, err = run("upload", recording.folder, "--dry-run", "--entity", "me", "--project", "other")

    assert (code, err) == (0, "")
    assert "→ me/other" in out
    assert "to send          2 calls" in out
    assert re.search(r"counted +[\d.]+ k?B by the server, 0.0 % of 1 GB", out)


def test_dry_run_against_a_quota_and_a_rate(run: Run, recording: Any, tmp_path: Path) -> None:
    """`--quota` is what the share is of; time is told as measured, by the dry run itself or by the last upload."""
    _, first, _ = run("upload", recording.folder, "--dry-run", "--quota", "500")
    state = tmp_path / "state" / "verl-trace" / "uploads"
    keep_rate(state, "https://weave.example", RunReport("p", "e", "t", recorded=900, sent=900, bytes=9_000), 450.0)
    _, then, _ = run("upload", recording.folder, "--dry-run", "--quota", "2GB")
    refused = run("upload", recording.folder, "--dry-run", "--quota", "plenty")

    assert "to send          2 calls in 1 trajectory" in first
    assert re.search(r"by the server, \d+\.\d % of 500 B a month", first)
    assert "at least" in first.splitlines()[-1]
    assert "0.0 % of 2 GB a month" in then
    # by bytes it takes longer than by calls, which would be a second
    assert re.fullmatch(r"time +about [\dm]+[\d.]+ ?s, as fast as the last upload from here: 2 calls/s, 20 B/s to"
                        r" https://weave.example \(.*Z\)", then.splitlines()[-1])  # fmt: skip
    assert refused[0] == 2


def test_target_options(run: Run, wandb_login: Server, recording: Any, project: str) -> None:
    """`--entity` and `--project` win over the recorded name and the environment."""
    recording.close()

    code, out, _ = run("upload", recording.folder, "--entity", "team", "--project", f"{project}-x")

    assert code == 0
    assert f"/team/{project}-x/weave" in out


def test_wrong_key(run: Run, locked_server: Server, recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 2, one line and a hint, with host and project; of the key nothing but its last four characters."""
    for name, value in locked_server.client_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_API_KEY", "wrong" * 8)

    code, out, err = run("upload", recording.folder, "--project", "team/p")

    assert (code, out) == (2, "")
    assert "does not accept the API key (HTTP 401): team/p with the API key ending in rong" in err
    assert locked_server.url in err
    assert "wrong" not in err
    assert_short(err)


def test_right_key(run: Run, locked_server: Server, recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of WANDB_API_KEY opens API and trace server."""
    for name, value in locked_server.client_environment().items():
        monkeypatch.setenv(name, value)
    recording.close()

    assert run("upload", recording.folder)[0] == 0


def test_key_from_netrc(run: Run, locked_server: Server, recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that `wandb login` has left in ~/.netrc is found."""
    home = recording.folder.parent
    for name, value in locked_server.client_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("HOME", str(home))
    host = locked_server.url.removeprefix("http://")
    (home / ".netrc").write_text(f"machine {host}\n  login user\n  password {KEY}\n")
    (home / ".netrc").chmod(0o600)
    recording.close()

    assert run("upload", recording.folder)[0] == 0


def test_no_key(run: Run, wandb_login: Server, recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 2 with what to do."""
    monkeypatch.delenv("WANDB_API_KEY")

    code, _, err = run("upload", recording.folder)

    assert code == 2
    assert "no API key" in err
    assert "wandb login" in err
    assert_short(err)


def test_forbidden_entity(run: Run, wandb_login: Server, recording: Any) -> None:
    """Exit 2 for a team that the key may not write to."""
    code, _, err = run("upload", recording.folder, "--entity", "other-team")

    assert code == 2
    assert "permission denied" in err
    assert_short(err)


@pytest.mark.parametrize("name", ["WANDB_BASE_URL", "WF_TRACE_SERVER_URL"])
def test_host_down(
    run: Run, wandb_login: Server, recording: Any, monkeypatch: pytest.MonkeyPatch, free_port: int, name: str
) -> None:
    """Exit 2 naming the address, for the W&B API and the trace server alike."""
    monkeypatch.setenv(name, f"http://127.0.0.1:{free_port}")

    code, _, err = run("upload", recording.folder)

    assert code == 2
    assert f"http://127.0.0.1:{free_port}" in err
    assert "Connection refused" in err
    assert_short(err)


def test_not_a_run(run: Run, tmp_path: Path) -> None:
    """Exit 2 for a path that does not exist and for a folder without span files."""
    for path in (tmp_path / "nowhere", tmp_path):
        code, out, err = run("upload", path)

        assert (code, out) == (2, "")
        assert str(path) in err
        assert_short(err)


@pytest.mark.parametrize("module", ["requests", "rich", "weave"])
def test_missing_extra(
    run: Run, recording: Any, wandb_login: Server, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """Exit 2 saying which extra to install."""
    for name in list(sys.modules):
        if name.startswith(("verl_trace.uploader", "verl_trace.commands.upload_progress", f"{module}.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)

    code, _, err = run("upload", recording.folder)

    assert code == 2
    assert f"needs the package {module}" in err
    assert "verl-trace[upload]" in err
    assert_short(err)


def numbers(report: str) -> dict[str, int]:
    """The counts of a printed report."""
    rows = [line.split() for line in report.splitlines() if line.startswith("  ")]
    return {row[0]: int(row[1].replace(",", "")) for row in rows if row[0] in ("recorded", "sent", "skipped", "failed")}


def assert_short(err: str) -> None:
    """One line, and at most one more with a hint."""
    assert err.startswith("verl-trace: ")
    assert len(err.splitlines()) <= 2
    assert "Traceback" not in err
