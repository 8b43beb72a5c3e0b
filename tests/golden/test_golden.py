"""The golden run of every version is read as it was meant, and the JSON Schemas describe its every line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import zstandard

import verl_trace
from verl_trace.reader import Call, Run, find_runs, iter_trajectories, summarise
from verl_trace.viewer.listing import run_facts

HERE = Path(__file__).parent
V1 = HERE / "v1"
KINDS = ("header", "start", "end", "text", "skip", "score", "lost", "close")
SCHEMAS = Path(verl_trace.__file__).resolve().parent / "schemas"


def validator(kind: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{kind}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The golden run as it lies there long after: in a fresh clone its files are young, and might still be written."""
    folder = tmp_path_factory.mktemp("golden") / V1.name
    shutil.copytree(V1, folder)
    for path in folder.rglob("*.jsonl*"):
        os.utime(path, (0, 0))
    (run,) = find_runs(folder)
    return run


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((V1 / "expected.json").read_text())
    return found


def content(path: Path) -> bytes:
    """The file's records as plain JSONL, with nothing but zstandard."""
    data = path.read_bytes()
    if path.suffix != ".zst":
        return data
    return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()


def lines() -> list[dict[str, Any]]:
    """All whole lines of the golden run."""
    whole = [line for path in sorted(V1.rglob("*.jsonl*")) for line in content(path).split(b"\n")[:-1]]
    return [json.loads(line) for line in whole]


def as_expected(call: Call) -> dict[str, Any]:
    output, inputs = call.output(), call.inputs
    names = ("id", "op", "parent_id", "started_at", "ended_at", "duration", "status", "exception", "attributes")
    return {name: getattr(call, name) for name in names} | {
        "inputs": None if inputs is None else json.loads(inputs),
        "output": None if output is None else json.loads(output),
        "orphan": call.orphan,
        "last_seen_at": call.last_seen_at,
    }


def test_its_calls_are_read_as_they_were_meant(run: Run, expected: dict[str, Any]) -> None:
    """Ids, parents, times, payloads, texts, exceptions and what a kill left: all of it."""
    found = {t.trace_id: [as_expected(call) for call in t.calls] for t in iter_trajectories(run)}

    assert found == expected["trajectories"]


def test_its_scores_are_read_as_they_were_meant(run: Run, expected: dict[str, Any]) -> None:
    """Told with the trajectory's id or joined by group and session; a group is whole when its size is reached."""
    found = {
        t.trace_id: [t.scores, t.score_status, None if t.group is None else list(t.group)]
        for t in iter_trajectories(run)
    }

    assert found == expected["scores"]


def test_its_summary_counts_what_was_put_in(run: Run, expected: dict[str, Any]) -> None:
    """Counts, steps and times, with one damage: the torn tail of the killed writer."""
    facts = run_facts(run, summarise(run))
    facts["attempts"] = [attempt["id"] for attempt in facts["attempts"]]
    damages = [[d["file"], d["offset"], d["length"], d["kind"]] for d in facts["damages"]]

    assert {key: facts[key] for key in expected["facts"]} == expected["facts"]
    assert damages == expected["damages"]


def test_every_line_is_valid_under_the_schema_of_its_kind() -> None:
    """And every kind of the format occurs."""
    found = lines()
    for record in found:
        if record["kind"] in KINDS:
            validator(record["kind"]).validate(record)

    assert set(Counter(record["kind"] for record in found)) == {*KINDS, "note"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_insists_on_the_documented_keys_and_types(kind: str) -> None:
    """Without a documented key, or with a value of another type in it, no record passes; a new key is welcome."""
    record = next(record for record in lines() if record["kind"] == kind)
    schema = validator(kind)
    assert schema.is_valid({**record, "a_later_key": [1]})
    for key in schema.schema["required"]:
        assert not schema.is_valid({name: value for name, value in record.items() if name != key}), key
        takes_anything = key == "sample_index" or (kind, key) == ("end", "output")
        assert schema.is_valid({**record, key: ["no documented type"]}) == takes_anything, key


def test_the_schemas_name_every_key_of_the_document() -> None:
    """`docs/format.md`, the schemas and the golden run know the same keys."""
    documents = list(Path(__file__).resolve().parents[2].glob("docs/format.md"))
    assert documents != []
    text = documents[0].read_text()
    for kind in KINDS:
        for key in validator(kind).schema["properties"]:
            assert re.search(rf"[\"`]{re.escape(key)}[\"`]", text), f"{kind}.{key}"


def test_the_script_still_says_what_was_committed(tmp_path: Path) -> None:
    """The same files, byte for byte once decompressed (compressors differ from version to version)."""
    subprocess.run([sys.executable, HERE / "make_v1.py", tmp_path], check=True, timeout=60)
    names = sorted(path.relative_to(V1) for path in V1.rglob("*") if path.is_file())

    assert names == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert [content(tmp_path / name) for name in names] == [content(V1 / name) for name in names]
