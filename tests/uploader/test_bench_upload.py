"""The benchmark of uploading runs, and its server notices what is missing. No times are asserted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_a_small_round() -> None:
    """Sides and ratio of one kind, after every call has been found on the server."""
    command = [
        sys.executable,
        str(BENCHMARKS / "bench_upload.py"),
        "--scale",
        "0.01",
        "--kinds",
        "mix",
        "--rounds",
        "1",
    ]
    done = subprocess.run(
        [*command, "--servers", "null", "--sides", "bare", "verl-trace"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    bare, ours = done.stdout.splitlines()
    assert re.match(r"mix +null +bare +[\d,]+ calls ", bare)
    assert re.search(r"µs CPU/call +\d+ % of bare", ours)
    assert bare.split()[3] == ours.split()[3] != "0"


@pytest.fixture
def server() -> Iterator[str]:
    command = [sys.executable, str(BENCHMARKS / "null_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def test_the_null_server_counts_what_comes(server: str) -> None:
    """Calls by their ids, those that come twice, and what belongs to a trace; texts that look like calls are none."""

    def ask(path: str, body: object = None) -> bytes:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(server + path, data)) as answer:
            content: bytes = answer.read()
        return content

    def call(key: str, text: str = "") -> str:
        head = {"project_id": "p/q", "id": key, "trace_id": "t", "inputs": {"text": text}}
        return json.dumps(head, separators=(",", ":"))

    batch = ",".join([call("1", '},{"project_id":"' * 3), call("2")])
    ask("/v2/p/q/calls/complete", f'{{"batch":[{batch}]}}'.encode())
    ask("/v2/p/q/calls/complete", f'{{"batch":[{call("2")},{call("3", "x" * 300_000)}]}}'.encode())
    known = ask("/calls/stream_query", {"filter": {"call_ids": ["3", "4"]}})

    assert {name: json.loads(ask("/counts"))[name] for name in ("calls", "twice", "requests")} == {
        "calls": 3, "twice": 1, "requests": 2,
    }  # fmt: skip
    assert json.loads(known)["id"] == "3"
    assert json.loads(ask("/calls/query_stats", {"filter": {"trace_ids": ["t", "u"]}}))["count"] == 4
