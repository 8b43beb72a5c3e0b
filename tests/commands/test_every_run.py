"""Every reading command on every kind of run: what it says is true of it, and it neither crashes nor obeys a text."""

from __future__ import annotations

import importlib
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zstandard

from .conftest import ATTEMPTS, HOSTILE, of_attempt, trajectory

duckdb: Any = importlib.import_module("duckdb")
Cli = Callable[..., Any]
Writers = Callable[..., Any]
FOREIGN = b'{"messages":[{"role":"user","content":"question of another program"}]}'


class Case(NamedTuple):
    """A run: its folder, what can be read, whether more is wrong than a torn end, and what verify ends with."""

    run: Path
    ids: list[str]
    damaged: bool = False
    verified: int = 0


def empty(writer: Writers, runs: Path) -> Case:
    """A process that recorded nothing."""
    made = writer(runs, "p")
    made.close()
    made.age(3600)
    return Case(made.folder, [])


def torn(writer: Writers, runs: Path) -> Case:
    """Killed within a line, and within a trajectory."""
    made = writer(runs, "p")
    ids = [trajectory(made, 1, sample, 0)["trace_id"] for sample in (0, 1)]
    ids.append(made.start("ToolAgentLoop.run", step=1, sample_index=2, inputs={"q": "question 2?"})["trace_id"])
    made.age(3600)
    with made.path.open("ab") as file:
        file.write(b'{"kind":"end","bytes":100,"step":1,"sam')
    os.utime(made.path, (0, 0))
    return Case(made.folder, ids, verified=3)


def damaged(writer: Writers, runs: Path) -> Case:
    """A sealed file of three frames, of which the second is broken."""
    made = writer(runs, "p")
    frames, ids = [], []
    done = 0
    for sample in (0, 1, 2):
        ids.append(trajectory(made, 1, sample, 0)["trace_id"])
        data = made.path.read_bytes()
        frames.append(zstandard.ZstdCompressor(write_checksum=True).compress(data[done:]))
        done = len(data)
    # no block begins so
    frames[1] = frames[1][:6] + b"\xff" * 16 + frames[1][22:]
    sealed = made.path.with_name(made.path.name + ".zst")
    sealed.write_bytes(b"".join(frames))
    os.utime(sealed, (0, 0))
    made.path.unlink()
    return Case(made.folder, [ids[0], ids[2]], damaged=True, verified=4)


def mixed(writer: Writers, runs: Path) -> Case:
    """Sample indexes of every type, and the same place more than once."""
    made = writer(runs, "p")
    samples = (1, "1", "uuid-é", None, 2.5, True, {"a": [1]}, 1)
    ids = [trajectory(made, step, sample, 0)["trace_id"] for step in (1, "s", None) for sample in samples]
    made.close()
    made.age(3600)
    return Case(made.folder, ids)


def attempts(writer: Writers, runs: Path) -> Case:
    """The same place in three training starts."""
    ids = []
    for number, attempt in enumerate(ATTEMPTS):
        made = writer(runs, "p", pid=number)
        ids.append(trajectory(made, 1, 0, 0)["trace_id"])
        made.close()
        of_attempt(made, attempt)
        made.age(3600)
    return Case(made.folder, ids)


def hostile(writer: Writers, runs: Path) -> Case:
    """Markup, escape sequences, HTML and direction marks wherever a text may be."""
    made = writer(runs, HOSTILE, HOSTILE)
    ids = [trajectory(made, 1, HOSTILE, 0, answer=HOSTILE, reward=HOSTILE)["trace_id"]]
    head = made.start(HOSTILE, inputs={HOSTILE: "question"}, step=HOSTILE)
    frame = {"filename": HOSTILE, "line_number": 1, "function_name": HOSTILE, "text": HOSTILE}
    made.end(head, HOSTILE, exception={"type": HOSTILE, "message": HOSTILE, "traceback": [frame]})
    made.close()
    made.age(3600)
    return Case(made.folder, [*ids, head["trace_id"]])


def foreign(writer: Writers, runs: Path) -> Case:
    """Lines and files of other programs among ours."""
    made = writer(runs, "p")
    ids = [trajectory(made, 1, 0, 0)["trace_id"]]
    for line in (FOREIGN, b"[1, 2]", b'"text"', b'{"kind":"thought","bytes":2,"x":{}}'):
        made.append(line)
    ids.append(trajectory(made, 1, 1, 0)["trace_id"])
    made.close()
    made.age(3600)
    (made.folder / "dataset.jsonl").write_bytes(FOREIGN)
    (made.folder / "20260301T120000.jsonl").write_bytes(FOREIGN)
    (made.folder / "notes.jsonl.zst").write_bytes(b"no zstd")
    return Case(made.folder, ids, damaged=True, verified=4)


RUNS = {kind.__name__: kind for kind in (empty, torn, damaged, mixed, attempts, hostile, foreign)}


@pytest.fixture(params=sorted(RUNS))
def case(request: pytest.FixtureRequest, writer: Writers, tmp_path: Path) -> Case:
    return RUNS[request.param](writer, tmp_path / "runs")


def ids_of(lines: str) -> set[str]:
    return {json.loads(line)["trace_id"] for line in lines.splitlines()}


def check_ls(cli: Cli, case: Case, out: Path) -> None:
    (facts,) = json.loads(cli("ls", case.run, "--json").out)
    assert facts["trajectories"] == sum(row["trajectories"] for row in facts["by_step"]) == len(case.ids)
    assert bool(facts["damages"]) == case.damaged or case.verified == 3
    assert {fact["trace_id"] for fact in json.loads(cli("ls", "-t", case.run, "--json").out)} == set(case.ids)


def check_stats(cli: Cli, case: Case, out: Path) -> None:
    (facts,) = json.loads(cli("stats", case.run, "--json").out)
    assert sum(row["trajectories"] for row in facts["attempts"]) == len(case.ids)


def check_show(cli: Cli, case: Case, out: Path) -> None:
    for trace_id in case.ids:
        shown = json.loads(cli("show", case.run, trace_id, "--json").out)
        assert shown["trajectory"]["trace_id"] == trace_id
        assert shown["calls"][0]["id"] == trace_id
    assert cli("show", case.run, "ffffffff").code == 2


def check_compare(cli: Cli, case: Case, out: Path) -> None:
    if len(case.ids) < 2:
        assert cli("compare", case.run, "0193", "0194").code == 2
        return
    done = cli("compare", case.run, *case.ids[:2], "--json")
    assert [fact["trace_id"] for fact in json.loads(done.out)["trajectories"]] == case.ids[:2]


def check_grep(cli: Cli, case: Case, out: Path) -> None:
    done = cli("grep", "-l", "question", case.run, "--json")
    assert ids_of(done.out) == set(case.ids)
    assert done.code == (2 if "damaged" in str(case.run) or (case.damaged and "zst" in done.err) else not case.ids)


def check_cat(cli: Cli, case: Case, out: Path) -> None:
    done = cli("cat", case.run)
    records = [record for line in done.out.splitlines() if isinstance(record := json.loads(line), dict)]
    assert {record["trace_id"] for record in records if record.get("kind") == "start"} == set(case.ids)


def check_sql(cli: Cli, case: Case, out: Path) -> None:
    done = cli("sql", case.run, "SELECT trace_id FROM trajectories", "--format", "json")
    assert ids_of(done.out) == set(case.ids)


def check_parquet(cli: Cli, case: Case, out: Path) -> None:
    assert cli("export", case.run, "--format", "parquet", "--out", out).code == 0
    rows = duckdb.sql(f"SELECT trace_id FROM '{out}/trajectories.parquet'").fetchall()
    assert {row[0] for row in rows} == set(case.ids)


def check_chat(cli: Cli, case: Case, out: Path) -> None:
    assert cli("export", case.run, "--format", "chat", "--out", out).code == 0
    rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert {row["metadata"]["trace_id"] for row in rows} <= set(case.ids)
    assert len(rows) >= len(case.ids) - 1


def check_chrome(cli: Cli, case: Case, out: Path) -> None:
    assert cli("export", case.run, "--format", "chrome", "--out", out).code == 0
    events = json.loads(out.read_bytes())["traceEvents"]
    assert {event["args"]["trace_id"] for event in events if event["ph"] != "M"} == set(case.ids)


def check_otlp(cli: Cli, case: Case, out: Path) -> None:
    assert cli("export", case.run, "--format", "otlp", "--out", out).code == 0
    spans = [
        span
        for line in out.read_bytes().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    assert {span["traceId"] for span in spans} == {trace_id.replace("-", "") for trace_id in case.ids}


def check_verify(cli: Cli, case: Case, out: Path) -> None:
    done = cli("verify", case.run, "--json")
    assert done.code == case.verified
    assert len(json.loads(done.out)) == 1


def check_repair(cli: Cli, case: Case, out: Path) -> None:
    assert cli("repair", case.run, "--out", out).code in (0, 1)
    found = json.loads(cli("ls", "-t", out, "--json").out)
    assert {fact["trace_id"] for fact in found} == set(case.ids)


def check_pack(cli: Cli, case: Case, out: Path) -> None:
    packed = out.with_suffix(".tar")
    # a raw file is compressed as it is, whatever its lines say
    assert cli("pack", case.run, "-o", packed).code in (0, case.damaged)
    assert tarfile.is_tarfile(packed)
    found = json.loads(cli("ls", "-t", packed, "--json").out)
    assert {fact["trace_id"] for fact in found} == set(case.ids)


def check_seal(cli: Cli, case: Case, out: Path) -> None:
    assert cli("seal", case.run, "--idle", "60").code == 0
    assert not list(case.run.glob("2*-*.jsonl"))
    check_ls(cli, case, out)


CHECKS = {name[6:]: check for name, check in globals().items() if name.startswith("check_")}


@pytest.mark.parametrize("command", sorted(CHECKS))
def test_every_command_reads_every_run(cli: Cli, case: Case, command: str, tmp_path: Path) -> None:
    """All trajectories that are readable, and no others."""
    before = {path.name: path.read_bytes() for path in case.run.iterdir()}

    CHECKS[command](cli, case, tmp_path / "out")

    if command != "seal":
        assert {path.name: path.read_bytes() for path in case.run.iterdir()} == before


@pytest.mark.parametrize("words", ["ls", "ls -t", "stats", "grep question", "verify", "show {id}", "compare {id} {id}"])
def test_no_text_is_obeyed(cli: Cli, case: Case, words: str) -> None:
    """As text, too: exit codes are the documented ones, and no control character comes through."""
    if "{id}" in words and not case.ids:
        return
    name, *rest = words.format(id=case.ids[-1] if case.ids else "").split()
    done = cli(name, *rest, case.run) if name != "show" and name != "compare" else cli(name, case.run, *rest)

    assert done.code in (0, 1, 2, 3, 4)
    assert "Traceback (most" not in done.err
    assert not {"\x1b", "\x07", "\u202e"} & set(done.out + done.err)


@pytest.mark.parametrize(
    ("before", "after"),
    [("show", ["1:0:0"]), ("grep x", []), ("compare", ["1:0:0", "1:0:1"]), ("sql", ["SELECT * FROM turns"]),
     ("export", ["--format", "chat", "--out", "OUT"]), ("export", ["--format", "parquet", "--out", "OUT"])],
)  # fmt: skip
def test_a_tokenizer_that_is_not_there(cli: Cli, rollouts: Path, tmp_path: Path, before: str, after: list[str]) -> None:
    """One line that names it, before anything is read or written."""
    more = [str(tmp_path / "out") if word == "OUT" else word for word in after]
    done = cli(*before.split(), rollouts, *more, "--tokenizer", tmp_path / "nowhere")

    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert f"--tokenizer {tmp_path / 'nowhere'}" in done.err
    assert not (tmp_path / "out").exists()
