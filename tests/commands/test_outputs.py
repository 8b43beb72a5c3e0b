"""`--json` is what docs/outputs.schema.json says; text is what the golden files show, at 80 and 160 columns."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import verl_trace.commands.ls as ls
import verl_trace.commands.stats as stats

from .conftest import HOSTILE, trajectory

Cli = Callable[..., Any]
HERE = Path(__file__).parent
SCHEMAS = json.loads((HERE.parents[1] / "docs" / "outputs.schema.json").read_text(encoding="utf-8"))
GOLDEN_RUN = HERE.parent / "golden" / "v1"


def check(name: str, value: Any) -> None:
    schema = {**SCHEMAS, "$ref": f"#/$defs/{name}"}
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(value)


@pytest.fixture(params=["rollouts", "odd", "golden"])
def run(request: pytest.FixtureRequest, tmp_path: Path, writer: Callable[..., Any]) -> Path:
    """The usual run, one in which everything is odd, and the golden run."""
    if request.param == "rollouts":
        return Path(request.getfixturevalue("rollouts"))
    if request.param == "golden":
        return golden(tmp_path)
    made = writer(tmp_path / "runs", "p")
    for sample in (1, "1", None, {"a": [HOSTILE]}):
        trajectory(made, sample, sample, 1, answer=HOSTILE)
    made.start("never ends", step=2)
    made.start("orphan", parent=made.start("lost", on_disk=False), step=2)
    made.append(b'{"kind":"start","id":"x"}')
    made.append(b'{"kind":"end","trace_id":"t","id":"only-an-end","op":5,"exception":7,"output":[1]}')
    made.append(b'{"not":"ours","messages":[]}')
    made.append(b"[1,2]")
    made.age(3600)
    return Path(made.folder)


def golden(tmp_path: Path) -> Path:
    folder = tmp_path / "golden"
    shutil.copytree(GOLDEN_RUN, folder)
    (found,) = [path for path in folder.iterdir() if path.is_dir()]
    for path in found.iterdir():
        os.utime(path, (0, 0))
    return found


def test_json_is_as_documented(cli: Cli, run: Path) -> None:
    """Of every command that has it, on ordinary and on odd runs."""

    def printed(*words: object) -> Any:
        done = cli(*words, "--json")
        assert done.code in (0, 2), done.err
        return done.out

    check("ls", json.loads(printed("ls", run)))
    check("ls", json.loads(printed("ls", run.parent)))
    listed = json.loads(printed("ls", "-t", run))
    check("ls_trajectories", listed)
    assert listed
    check("stats", json.loads(printed("stats", run)))
    for fact in listed:
        shown = json.loads(printed("show", run, fact["trace_id"]) or "null")
        if shown is not None:
            check("show" if "turns" in shown else "show_call", shown)
            for call in shown["calls"][1:3]:
                check("show_call", json.loads(printed("show", run, call["id"])))
    for line in printed("grep", ".", run).splitlines():
        check("grep", json.loads(line))
    for line in printed("grep", "-l", ".", run).splitlines():
        check("grep_list", json.loads(line))
    for line in printed("grep", "-c", ".", run).splitlines():
        check("grep_count", json.loads(line))
    if len(listed) > 1 and listed[0]["trace_id"] != "t":
        compared = printed("compare", run, listed[0]["trace_id"], listed[1]["trace_id"])
        check("compare", json.loads(compared))


def test_json_of_what_keeps_runs(cli: Cli, run: Path, tmp_path: Path) -> None:
    """The commands that check, copy, carry and send, on the same runs."""

    def printed(*words: object) -> Any:
        return json.loads(cli(*words, "--json").out)

    check("verify", printed("verify", run))
    check("status", printed("status", run))
    check("upload", printed("upload", run, "--project", "somebody/p", "--dry-run"))
    check("pack", printed("pack", run, "--out", tmp_path / "x.tar"))
    check("collect", printed("collect", run.parent, tmp_path / "shared"))
    check("repair", printed("repair", run, "--out", tmp_path / "copy"))
    check("seal", printed("seal", run))
    check("doctor", printed("doctor"))


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("name", ["ls", "ls-t", "stats", "show", "compare"])
def test_golden_text(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int, name: str) -> None:
    """Of the golden run. GOLDEN=write makes the files anew, to be looked at before they are committed."""
    run = golden(tmp_path)
    monkeypatch.setenv("COLUMNS", str(columns))
    # as on a terminal of that width, without its colours
    monkeypatch.setattr(ls, "_columns", lambda: columns)
    monkeypatch.setattr(stats, "_columns", lambda: columns)
    first, second, *_ = [fact["trace_id"] for fact in json.loads(cli("ls", run, "-t", "--json").out)]
    words = {
        "ls": ["ls", run], "ls-t": ["ls", run, "-t"], "stats": ["stats", run], "show": ["show", run, first, "--full"],
        "compare": ["compare", run, first, second],
    }[name]  # fmt: skip
    done = cli(*words)
    path = HERE / "golden" / f"{name}-{columns}.txt"
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(done.out, encoding="utf-8")

    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= columns or name == "ls"
    assert done.out == path.read_text(encoding="utf-8")
