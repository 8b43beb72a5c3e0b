"""`verl-trace sql` and `verl-trace export`, read back by other tools."""

from __future__ import annotations

import csv
import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from verl_trace.viewer.rows import TABLES

from .conftest import HOSTILE, trajectory

duckdb: Any = importlib.import_module("duckdb")
Cli = Callable[..., Any]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "reading.md"


def query(cli: Cli, run: Path, text: str, *more: object) -> list[dict[str, Any]]:
    done = cli("sql", run, text, "--json", *more)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_tables_hold_what_was_recorded(cli: Cli, rollouts: Path) -> None:
    """Trajectories, calls and turns, counted and joined."""
    by_step = query(
        cli, rollouts, "SELECT step, count(*) n, sum(tokens) t, avg(reward) r FROM trajectories GROUP BY 1 ORDER BY 1"
    )
    calls = query(cli, rollouts, "SELECT op, count(*) n, count(exception_type) e FROM calls GROUP BY 1 ORDER BY 1")
    said = query(
        cli, rollouts, "SELECT text FROM turns JOIN trajectories USING (trace_id) WHERE turn = 4 AND reward > 2"
    )
    inside = query(cli, rollouts, "SELECT DISTINCT inputs->>'$.parameters.expression' x FROM calls WHERE kind = 'tool'")

    assert by_step == [{"step": 1, "n": 4, "t": 24, "r": 0.625}, {"step": 2, "n": 4, "t": 24, "r": 1.625}]
    assert [tuple(row.values()) for row in calls] == [
        ("CalculatorTool.execute", 8, 4), ("HermesToolParser.extract_tool_calls", 8, 0),
        ("LLMServerClient.generate", 16, 0), ("ToolAgentLoop.run", 8, 0),
    ]  # fmt: skip
    assert said == [{"text": "It is 20."}]
    assert inside == [{"x": "6*7"}]


def test_the_columns_are_documented() -> None:
    """docs/reading.md has every column of every table."""
    text = DOCS.read_text(encoding="utf-8")
    for table, columns in TABLES.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{table}` |"))
        assert [f"`{column}`" for column in columns if f"`{column}`" not in row] == [], table


def test_table_csv_and_parquet(cli: Cli, rollouts: Path, tmp_path: Path) -> None:
    """The same rows in every form."""
    text = "SELECT trace_id, step, reward FROM trajectories ORDER BY trace_id"
    rows = [tuple(row.values()) for row in query(cli, rollouts, text)]
    table = cli("sql", rollouts, text).out.splitlines()
    as_csv = list(csv.reader(io.StringIO(cli("sql", rollouts, text, "--format", "csv").out)))
    done = cli("sql", rollouts, text, "--format", "parquet", "--out", tmp_path / "x.parquet")

    assert (done.code, done.err) == (0, "")
    assert [line.split()[0] for line in table] == ["trace_id", *(row[0] for row in rows)]
    assert [(a, int(b), float(c)) for a, b, c in as_csv[1:]] == rows
    assert duckdb.sql(f"SELECT * FROM '{tmp_path / 'x.parquet'}'").fetchall() == rows


@pytest.mark.parametrize("format", ["table", "csv", "json", "parquet"])
def test_a_file_that_was_written_is_told(cli: Cli, rollouts: Path, tmp_path: Path, format: str) -> None:
    """Its name and its rows, as `export` does."""
    text = "SELECT step FROM trajectories ORDER BY trace_id LIMIT 3"
    done = cli("sql", rollouts, text, "--format", format, "-o", tmp_path / "x")

    assert (done.code, done.out, done.err) == (0, f"{tmp_path / 'x'}: 3 rows\n", "")
    assert (tmp_path / "x").stat().st_size > 0


def test_rows_for_a_pipe_are_rows_only(rollouts: Path) -> None:
    """Of what went to /dev/stdout, stderr tells."""
    script = Path(sys.executable).with_name("verl-trace")
    command = [str(script), "sql", str(rollouts), "SELECT 1 AS n", "--format", "csv", "-o", "/dev/stdout"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (done.stdout.split(), done.stderr) == (["n", "1"], "/dev/stdout: 1 row\n")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/etc/*')",
        "COPY calls TO '{out}'",
        "DROP TABLE calls",
        "ATTACH '{out}'",
        "SELECT 1; SELECT 2",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT nothing FROM calls",
        "SELEC 1",
        "",
    ],
)
def test_a_query_reads_the_run_and_nothing_else(cli: Cli, rollouts: Path, tmp_path: Path, text: str) -> None:
    """No file is read or written, nothing is changed; one line says what is wrong."""
    before = {path: path.read_bytes() for path in rollouts.iterdir()}
    done = cli("sql", rollouts, text.format(out=tmp_path / "out"))

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("verl-trace: ")
    assert done.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert {path: path.read_bytes() for path in rollouts.iterdir()} == before


def test_a_time_that_is_none_is_null(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """Of a record that another program, or a disk, has changed; all others are told."""
    made = writer(tmp_path / "runs", "p")
    made.call("whole")
    made.end({**made.start("odd"), "started_at": "2026-03-01T12:00:00Z"})
    made.close()
    data = made.path.read_bytes().replace(b"2026-03-01T12:00:00Z", b"yesterday afternoon")
    made.path.write_bytes(data)
    for table in ("trajectories", "calls"):
        rows = query(cli, tmp_path / "runs", f"SELECT op, started_at IS NULL AS bare FROM {table} ORDER BY op")
        assert rows == [{"op": "odd", "bare": True}, {"op": "whole", "bare": False}]


@pytest.mark.parametrize("format", ["json", "csv"])
def test_a_terminal_obeys_no_text(
    cli: Cli, writer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """JSON is still the same value."""
    answer = f"{HOSTILE} \x9b31m \x7f"
    made = writer(tmp_path / "runs", "p")
    trajectory(made, 1, 0, 0, answer=answer)
    made.close()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    done = cli("sql", tmp_path / "runs", "SELECT text FROM turns WHERE turn = 4", "--format", format)

    assert done.code == 0
    assert not [char for char in done.out if char not in "\r\n" and not char.isprintable()]
    assert format == "csv" or json.loads(done.out)["text"] == f"It is {answer}."


def test_mixed_types_and_hostile_text(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """A sample that is a number here and a UUID there; text arrives as it is, and a table cell is harmless."""
    made = writer(tmp_path / "runs", "p")
    for sample in (7, "7", "0193-uuid", None, True, 1.5, [1], {"a": HOSTILE}):
        trajectory(made, 1, sample, 0, answer=HOSTILE)
    trajectory(made, "x", 1, 0, answer=HOSTILE)
    made.close()
    run = tmp_path / "runs"
    samples = query(cli, run, "SELECT sample_index s, count(*) n FROM trajectories GROUP BY 1")
    said = query(cli, run, "SELECT DISTINCT text FROM turns WHERE turn = 4")

    assert sum(row["n"] for row in samples) == 9
    assert said == [{"text": f"It is {HOSTILE}."}]
    for words in (["ls", "-t", run], ["ls", "-t", run, "--sort", "sample_index"], ["sql", run, "SELECT * FROM turns"]):
        done = cli(*words)
        assert done.code == 0
        assert not [char for char in done.out if char != "\n" and not char.isprintable()]


def test_without_duckdb(cli: Cli, rollouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs it says what to install; the other formats do not."""
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)

    for words in (["sql", rollouts, "SELECT 1"], ["export", rollouts, "--format", "parquet", "--out", tmp_path / "p"]):
        done = cli(*words)
        assert done.code == 2
        assert "pip install 'verl-trace[read]'" in done.err
    assert "`verl-trace export --format parquet` needs" in done.err
    assert not (tmp_path / "p").exists()
    assert cli("export", rollouts, "--format", "chat", "--out", tmp_path / "c").code == 0


def test_parquet(cli: Cli, rollouts: Path, tmp_path: Path) -> None:
    """One row a trajectory and one a call, with inputs and output."""
    done = cli("export", rollouts, "--format", "parquet", "--out", tmp_path / "p", "--step", "1")
    counts = [
        duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/p/{name}.parquet'").fetchall()[0][0]
        for name in ("trajectories", "calls")
    ]
    output = duckdb.sql(
        f"SELECT output->>'$.response_text' FROM '{tmp_path}/p/calls.parquet' WHERE kind = 'model'"
    ).fetchall()

    assert (done.code, done.out) == (0, f"{tmp_path / 'p'}: 4 trajectories, 20 calls\n")
    assert counts == [4, 20]
    assert sum(row[0].startswith("It is 1") for row in output) == 4


def test_chat(cli: Cli, rollouts: Path, writer: Callable[..., Any], tmp_path: Path) -> None:
    """Messages as fine-tuning takes them; a trajectory without text is left out and counted."""
    made = writer(tmp_path / "runs", "me/proj", pid=2)
    made.call("Loop.run", {"response_ids": [1, 2], "response_mask": [1, 0]}, step=1)
    made.close()
    done = cli("export", rollouts, "--format", "chat", "--out", tmp_path / "c.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]

    assert "8 trajectories, 1 left out for lack of text" in done.out
    assert [message["role"] for message in rows[0]["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    (asked,) = rows[0]["messages"][2]["tool_calls"]
    assert asked["function"] == {"name": "calculator", "arguments": '{"expression":"6*7"}'}
    assert rows[1]["messages"][3]["content"] == "ZeroDivisionError: division by zero"
    assert rows[0]["metadata"]["reward"] == 1.0


# Of the trace event format (Chrome's "Trace Event Format"): what a complete, a beginning and a naming event must have.
_EVENT = {
    "type": "object",
    "properties": {
        "name": {"type": "string"}, "cat": {"type": "string"}, "ph": {"enum": ["X", "B", "M"]},
        "ts": {"type": "number", "minimum": 0}, "dur": {"type": "number", "minimum": 0}, "pid": {"type": "integer"},
        "tid": {"type": "integer"}, "args": {"type": "object"},
    },
    "additionalProperties": False,
    "required": ["name", "ph", "pid", "tid"],
    "oneOf": [
        {"properties": {"ph": {"const": "X"}}, "required": ["ts", "dur", "cat"]},
        {"properties": {"ph": {"const": "B"}, "dur": False}, "required": ["ts", "cat"]},
        {"properties": {"ph": {"const": "M"}, "name": {"const": "process_name"}, "args": {"required": ["name"]}}},
    ],
}  # fmt: skip
_TRACE = {
    "type": "object",
    "properties": {"traceEvents": {"type": "array", "items": _EVENT}, "displayTimeUnit": {"enum": ["ms", "ns"]}},
    "additionalProperties": False,
    "required": ["traceEvents"],
}


def test_chrome_events_are_as_the_format_says(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """Of ordinary calls and of odd ones: without an end, a start, a duration, a time."""
    made = writer(tmp_path / "runs", "p")
    trajectory(made, 1, 0, 1, answer=HOSTILE)
    made.start(HOSTILE, step=2)
    made.append(b'{"kind":"end","trace_id":"t","id":"x","op":5,"duration":-1,"started_at":"1066-01-01T00:00:00Z"}')
    made.append(b'{"kind":"start","trace_id":"u","id":"y","started_at":"soon"}')
    made.age(3600)
    assert cli("export", tmp_path / "runs", "--format", "chrome", "--out", tmp_path / "t.json").code == 0
    trace = json.loads((tmp_path / "t.json").read_text())

    jsonschema.Draft202012Validator(_TRACE).validate(trace)
    assert sum(event["ph"] != "M" for event in trace["traceEvents"]) == 8


def test_chrome_lanes_hold_one_thing_at_a_time(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """Within a lane events nest or follow each other; what overlaps is in lanes of its own."""
    made = writer(tmp_path / "runs", "p")
    roots = [made.start("Loop.run", step=1) for _ in range(3)]
    calls = [made.start("Client.generate", parent=root) for root in roots for _ in range(3)]
    for head in [*calls, *roots]:
        made.end(head)
    made.start("never.ends", step=1)
    made.age(3600)
    assert cli("export", tmp_path / "runs", "--format", "chrome", "--out", tmp_path / "t.json").code == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = [(e["pid"], e["tid"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]

    assert len(spans) == 12
    assert [event["name"] for event in events if event["ph"] == "B"] == ["never.ends"]
    for one in spans:
        for other in spans:
            if one is not other and one[:2] == other[:2]:
                apart = one[3] <= other[2] or other[3] <= one[2]
                inside = (one[2] <= other[2] and other[3] <= one[3]) or (other[2] <= one[2] and one[3] <= other[3])
                assert apart or inside


def test_otlp(cli: Cli, rollouts: Path, tmp_path: Path) -> None:
    """Ids of the right length, parents that exist, times in nanoseconds, errors with their event."""
    cli("export", rollouts, "--format", "otlp", "--out", tmp_path / "o.jsonl")
    spans = [
        span
        for line in (tmp_path / "o.jsonl").read_text().splitlines()
        for span in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ]
    ids = {span["spanId"] for span in spans}

    assert len(ids) == 40
    assert all(len(span["traceId"]) == 32 and len(span["spanId"]) == 16 for span in spans)
    assert {span["parentSpanId"] for span in spans if "parentSpanId" in span} <= ids
    assert all(1_772_000_000e9 < int(s["startTimeUnixNano"]) <= int(s["endTimeUnixNano"]) for s in spans)
    assert sum(span["status"]["code"] == 2 for span in spans) == 4 == sum("events" in span for span in spans)


@pytest.mark.parametrize(
    "command", ["export --format chat", "export --format chrome", "sql --format csv", "sql --format table"]
)
def test_a_file_that_cannot_be_made(cli: Cli, rollouts: Path, tmp_path: Path, command: str) -> None:
    """The error names --out, and no temporary file."""
    name, *options = command.split()
    query = ["SELECT 1"] if name == "sql" else []
    done = cli(name, rollouts, *query, *options, "--out", tmp_path / "no" / "x")

    assert done.code == 2
    assert f"--out {tmp_path / 'no' / 'x'}: No such file or directory (name a file in a folder" in done.err


def test_what_is_there_is_not_replaced(cli: Cli, rollouts: Path, tmp_path: Path) -> None:
    """Unless it is asked for."""
    out = tmp_path / "there"
    out.write_text("mine")
    done = cli("export", rollouts, "--format", "chat", "--out", out)

    assert (done.code, out.read_text()) == (2, "mine")
    assert "--force" in done.err
    assert cli("export", rollouts, "--format", "chat", "--out", out, "--force").code == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []
