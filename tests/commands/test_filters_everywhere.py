"""The filters, the same in every command that reads trajectories: each takes them, and means the same ones."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from verl_trace.cli import app

from .conftest import ATTEMPTS, of_attempt

duckdb: Any = importlib.import_module("duckdb")
Cli = Callable[..., Any]
ERROR = {"type": "ValueError", "message": "no", "traceback": []}
# About files, not trajectories, or about no run: docs/choosing.md says why.
WITHOUT = {"verify", "repair", "seal", "collect", "doctor", "demo"}

# Those that `show` and `compare`, which take one at a time, are asked for.
ONE_BY_ONE = {0, 2, 5}
# Takes them, and is tested where there is a server that holds the run.
ELSEWHERE = {"prune"}
# What is typed, and which of the eight trajectories it means.
MEANT: dict[str, set[int]] = {
    "--step 1:5:2": {0, 1, 2, 6},
    "--step 2:": {3, 4, 5, 6, 7},
    "--sample-index 7": {0, 1, 4},
    "--sample-index some-uuid": {3},
    "--rollout-n 1,2": {1, 2, 5},
    "--validate": {7},
    "--train": {0, 1, 2, 3, 4, 5, 6},
    "--attempt 1": {0, 1, 2, 3},
    "--attempt last": {4, 5, 6, 7},
    "--op Calc.execute": {2, 3, 4, 5, 6, 7},
    "--status error": {5},
    "--status unfinished": {2},
    "--min-duration 250ms": {4, 5, 6, 7},
    "--where reward<0.5": {0, 1, 2, 3},
    "--step 1:4 --train --where step%2==0": {3, 4, 5},
    "--op Nothing": set(),
}


@pytest.fixture
def eight(writer: Callable[..., Any], tmp_path: Path) -> tuple[Path, list[str]]:
    """A run of two attempts, and its trace ids. Trajectory i has 2 to the i calls: any count of calls tells which."""
    places: list[tuple[int, Any, Any, bool]] = [
        (1, 7, 0, False), (1, "7", 1, False), (1, 9, 2, False), (2, "some-uuid", 0, False),
        (2, 7, None, False), (2, 11, 1, False), (3, 12, 0, False), (4, None, 0, True),
    ]  # fmt: skip
    ids = []
    for attempt in (0, 1):
        made = writer(tmp_path / "runs", "me/proj", pid=100 + attempt)
        for number in range(4 * attempt, 4 * attempt + 4):
            step, sample, rollout, validate = places[number]
            fields = {"step": step, "sample_index": sample, "rollout_n": rollout, "validate": validate}
            root = made.start("Loop.run", inputs={"text": "found"}, **fields, reward=number / 8)
            calls = ["Client.generate", *["Calc.execute"] * (2**number)][: 2**number - 1]
            for at, op in enumerate(calls):
                call = made.start(op, parent=root, inputs={"text": "found"})
                if (number, at) != (2, 1):
                    made.end(call, {"text": "found"}, exception=ERROR if (number, at) == (5, 3) else None)
            made.end(root, {"text": "found"})
            ids.append(str(root["trace_id"]))
        made.close()
        of_attempt(made, ATTEMPTS[attempt])
        # later by its header: the order of attempts
        made.path.write_bytes(made.path.read_bytes().replace(b"2026-03-01T12", b"2026-03-01T1%d" % (2 + attempt)))
        made.age(3600)
    return tmp_path / "runs" / "exp1", ids


def by_calls(count: int) -> set[int]:
    return {number for number in range(8) if count >> number & 1}


def listed(cli: Cli, run: Path, ids: list[str], options: list[str], tmp_path: Path) -> Iterable[str]:
    return [row["trace_id"] for row in json.loads(cli("ls", "-t", run, "--json", *options).out)]


def shown(cli: Cli, run: Path, ids: list[str], options: list[str], tmp_path: Path) -> Iterable[str]:
    return [ids[number] for number in ONE_BY_ONE if cli("show", run, ids[number], *options).code == 0]


def compared(cli: Cli, run: Path, ids: list[str], options: list[str], tmp_path: Path) -> Iterable[str]:
    found = [number for number in ONE_BY_ONE if cli("compare", run, *2 * [ids[number]], "--json", *options).code == 0]
    return [ids[number] for number in found]


def searched(cli: Cli, run: Path, ids: list[str], options: list[str], tmp_path: Path) -> Iterable[str]:
    done = cli("grep", "-l", "found|no", run, "--json", *options)
    return [json.loads(line)["trace_id"] for line in done.out.splitlines()]


def written(cli: Cli, run: Path, ids: list[str], options: list[str], tmp_path: Path) -> Iterable[str]:
    records = map(json.loads, cli("cat", run, *options).out.splitlines())
    return {record["trace_id"] for record in records if record["kind"] == "start"}


def asked(cli: Cli, run: Path, ids: list[str], options: list[str], tmp_path: Path) -> Iterable[str]:
    done = cli("sql", run, "SELECT trace_id FROM trajectories", "--json", *options)
    return [json.loads(line)["trace_id"] for line in done.out.splitlines()]


def packed(cli: Cli, run: Path, ids: list[str], options: list[str], tmp_path: Path) -> Iterable[str]:
    done = cli("pack", run, "-o", tmp_path / "X.tar", *options)
    if done.code:
        assert "nothing was packed" in done.err
        return []
    return listed(cli, tmp_path / "X.tar", ids, [], tmp_path)


def exported(cli: Cli, run: Path, ids: list[str], options: list[str], tmp_path: Path) -> Iterable[str]:
    """In each format: they must agree."""
    found: list[set[str]] = []
    for name in ("otlp", "chrome", "parquet"):
        out = tmp_path / name
        done = cli("export", run, "--format", name, "--out", out, "--json", *options)
        assert done.code == 0, done.err
        if name == "parquet":
            query = f"SELECT trace_id FROM '{out}/trajectories.parquet'"
            found.append({str(row[0]) for row in duckdb.connect().execute(query).fetchall()})
        else:
            text = out.read_text(encoding="utf-8").replace("-", "")
            found.append({one for one in ids if one.replace("-", "") in text})
    assert found[0] == found[1] == found[2]
    return found[0]


def numbers(command: str) -> Callable[..., set[int]]:
    """By the calls that the command counts."""

    def count(cli: Cli, run: Path, ids: list[str], options: list[str], tmp_path: Path) -> set[int]:
        if command == "upload":
            report = json.loads(cli("upload", run, "--dry-run", "--json", *options).out)["runs"][0]
            return by_calls(report["to_send"])
        facts = json.loads(cli(command, run, "--json", *options).out)[0]
        return by_calls(facts["recorded"] if command == "status" else sum(op["calls"] for op in facts["ops"]))

    return count


READERS: dict[str, Callable[..., Any]] = {
    "ls": listed,
    "show": shown,
    "compare": compared,
    "grep": searched,
    "cat": written,
    "sql": asked,
    "pack": packed,
    "export": exported,
    "stats": numbers("stats"),
    "status": numbers("status"),
    "upload": numbers("upload"),
}


@pytest.mark.parametrize("command", READERS)
def test_a_filter_means_the_same_everywhere(
    cli: Cli, eight: tuple[Path, list[str]], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trajectories that were meant, whole, and no other."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run, ids = eight
    for number, (options, meant) in enumerate(MEANT.items()):
        place = tmp_path / str(number)
        place.mkdir()
        found = READERS[command](cli, run, ids, options.split(), place)
        expected = meant & ONE_BY_ONE if command in ("show", "compare") else meant
        assert {one if isinstance(one, int) else ids.index(one) for one in found} == expected, options


def test_every_command_that_reads_trajectories_is_here() -> None:
    """A new command takes the filters, or docs/choosing.md says why not."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    taking = {name for name, command in commands.items() if any(one.name == "where" for one in command.params)}
    docs = (Path(__file__).resolve().parents[2] / "docs" / "choosing.md").read_text(encoding="utf-8")

    assert taking == set(READERS) | ELSEWHERE
    assert set(commands) - taking == WITHOUT
    named = (*READERS, *ELSEWHERE, *sorted(WITHOUT - {"doctor", "demo"}))
    assert [name for name in named if f"`{name}`" not in docs] == []


@pytest.mark.parametrize("command", READERS)
def test_a_mistyped_name_is_told_everywhere(
    cli: Cli, eight: tuple[Path, list[str]], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which name, what it may have meant and what there is; nothing is printed, sent or written."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run, ids = eight
    out = tmp_path / "out"
    arguments: dict[str, tuple[object, ...]] = {
        "show": (run, ids[0]),
        "compare": (run, ids[0], ids[1]),
        "grep": ("found", run),
        "sql": (run, "SELECT * FROM trajectories"),
        "pack": (run, "-o", out),
        "export": (run, "--format", "otlp", "--out", out),
        "upload": (run, "--dry-run"),
    }

    done = cli(command, *arguments.get(command, (run,)), "--where", "rewrad > 0")

    assert (done.code, done.out, out.exists()) == (2, "", False)
    assert "no trajectory has 'rewrad'" in done.err
    assert "did you mean reward? there are attempt, calls, " in done.err


@pytest.mark.parametrize("command", ["show", "compare"])
def test_of_a_run_that_goes_on_the_name_may_still_come(
    cli: Cli, writer: Callable[..., Any], tmp_path: Path, command: str
) -> None:
    """What is meant so far is shown, and the warning is beside it, once."""
    made = writer(tmp_path / "runs", "p")
    ids = [made.call("A.run")["trace_id"] for _ in range(2)]
    done = cli(command, made.folder, *ids[: 1 + (command == "compare")], "--where", "not rewrad")

    assert done.code == 0
    assert ids[0] in done.out
    assert done.err.count("no trajectory has 'rewrad' so far; the run is still being written") == 1
