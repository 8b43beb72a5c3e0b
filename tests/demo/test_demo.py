"""`verl-trace demo` from end to end: real processes, the real uploader, W&B's own server and client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from verl_trace.commands import demo as command
from verl_trace.demo.read_back import ServerCall
from verl_trace.demo.show import tree_lines
from verl_trace.schemas.errors import MissingExtra

SCRIPT = Path(sys.executable).with_name("verl-trace")
NOW = datetime(2026, 11, 29, tzinfo=timezone.utc)


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command as a user types it."""
    # the first use on a machine installs the server's environment
    command = [str(SCRIPT), "demo", "--dir", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `--json` says after one demo."""
    done = run(tmp_path_factory.mktemp("runs"), "--json")
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def calls(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """A call and all below it."""
    return [tree, *(call for child in tree["children"] for call in calls(child))]


def test_every_recorded_call_is_on_the_server(report: dict[str, Any]) -> None:
    """Recorded = sent, and the server holds exactly that many, the calls of the killed worker among them."""
    upload = report["upload"]
    # 8 trajectories of 4 calls; the killed worker had begun 3
    assert upload["recorded"] == upload["sent"] == 8 * 4 + 3
    assert (upload["failed"], upload["skipped"]) == (0, {})
    assert sum(len(calls(root)) for root in report["calls"]) == upload["sent"]


def test_trees_have_the_shape_of_the_rollout(report: dict[str, Any]) -> None:
    """Each trajectory is one tree: model, tool, model, under its five attributes."""
    whole = [root for root in report["calls"] if root["attributes"]["sample_index"] < 2]

    assert len(whole) == 8
    for root in whole:
        assert root["op"] == "ToolAgentLoop.run"
        assert [child["op"] for child in root["children"]] == [
            "ScriptedModel.generate",
            "Calculator.execute",
            "ScriptedModel.generate",
        ]
        assert set(root["attributes"]) == {"step", "sample_index", "rollout_n", "validate", "experiment_name"}


def test_errors_arrive_where_they_happened(report: dict[str, Any]) -> None:
    """The tool that raised says so, its trajectory is marked, and all others are well."""
    raised = [root for root in report["calls"] if root["status"] == "descendant_error"]

    assert Counter(root["status"] for root in report["calls"]) == {"success": 7, "descendant_error": 1, "error": 1}
    assert [call["status"] for call in calls(raised[0])] == ["descendant_error", "success", "error", "success"]
    assert json.loads(raised[0]["children"][1]["exception"])["type"] == "ZeroDivisionError"


def test_killed_worker_is_not_running_for_ever(report: dict[str, Any]) -> None:
    """Calls that SIGKILL cut off are errors that name the process; what had ended before is a success."""
    (root,) = [root for root in report["calls"] if root["attributes"]["sample_index"] == 2]

    assert [(call["op"], call["status"]) for call in calls(root)] == [
        ("ToolAgentLoop.run", "error"),
        ("ScriptedModel.generate", "success"),
        ("Calculator.execute", "error"),
    ]
    assert str(report["killed_pid"]) in root["exception"]


def test_files_stay(report: dict[str, Any]) -> None:
    """What was recorded is still there, and `verl-trace ls` shows it as a run that was cut off."""
    folder = Path(report["folder"])
    listed = subprocess.run(
        [SCRIPT, "ls", folder.parent, "--json"], capture_output=True, text=True, timeout=60, check=True
    )

    assert all((folder / name).is_file() for name in report["files"])
    assert report["experiment"] in listed.stdout
    assert "torn" in listed.stdout


def test_recording_alone_needs_no_server(tmp_path: Path) -> None:
    """With --no-upload nothing is sent, and the output says what to type next."""
    done = run(tmp_path, "--no-upload")

    assert done.returncode == 0, done.stderr
    assert "Uploaded" not in done.stdout
    assert f"verl-trace ls {tmp_path}" in done.stdout
    assert f"verl-trace: recording to {tmp_path}" in done.stderr


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the extra is not installed, the demo says how to install it before it records anything."""
    monkeypatch.setattr(command, "NEEDED", ("weave", "surely_not_installed"))
    with pytest.raises(MissingExtra, match="surely_not_installed") as caught:
        command.demo(folder=tmp_path)

    assert "verl-trace[upload]" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_lines_of_a_tree_are_short_and_whole() -> None:
    """One line a call, long values cut, errors as type and message, line breaks of values gone."""
    leaf = ServerCall("b", "Tool.execute", "error", NOW, None, {}, None, '{"type":"E","message":"a\\nb"}', [])
    root = ServerCall("a", "Loop.run", "success", NOW, 0.25, {"step": 3}, {"response_text": "x" * 500}, None, [leaf])
    lines = list(tree_lines([root]))

    assert lines[0] == "step 3"
    assert "250.0 ms" in lines[2]
    assert lines[2].endswith("x…")
    assert "└─ Tool.execute" in lines[3]
    assert lines[3].endswith("E: a b")
    assert max(len(line) for line in lines) <= 132
