"""Shared by the tests in environments of their own: what is in a run's files, and an environment for programs."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zstandard

from verl_trace.demo.server_env import Server
from verl_trace.schemas.lines import parse_line

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "WANDB_ERROR_REPORTING": "false",
}
# Whatever the machine says about W&B or us must not decide a test.
FOREIGN = ("VERL_TRACE_", "WANDB_", "WEAVE_", "WF_", "RAY_ADDRESS", "VERL_USE_", "SLURM_")


class Records(NamedTuple):
    """All records of one experiment's folder: heads with their payload under `payload`."""

    heads: list[dict[str, Any]]

    def of(self, kind: str, **wanted: Any) -> list[dict[str, Any]]:
        """Those of a kind whose fields are as wanted."""
        return [h for h in self.heads if h["kind"] == kind and all(h.get(k) == v for k, v in wanted.items())]

    def ops(self, kind: str = "start") -> Counter[str]:
        """How often each operation occurs."""
        return Counter(head["op"] for head in self.of(kind))


def read_records(folder: Path) -> Records:
    """Every whole line in the folder's span files; a file that exists raw and sealed counts once."""
    heads = []
    for path in sorted(folder.glob("*.jsonl*")):
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read()
        elif path.suffix == ".jsonl" and not path.with_name(f"{path.name}.zst").exists():
            data = path.read_bytes()
        else:
            continue
        for line in data.splitlines(keepends=True):
            parsed = parse_line(line)
            heads.append({**parsed.head, "payload": json.loads(parsed.payload or "null"), "file": path.name})
    return Records(heads)


@pytest.fixture(scope="session")
def records() -> Callable[[Path], Records]:
    """`read_records`, for the tests."""
    return read_records


@pytest.fixture(scope="session")
def clean_environment() -> Callable[..., dict[str, str]]:
    """This process's environment without what belongs to W&B, Ray or us, with what is given added."""

    def environment(**more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return {**kept, **QUIET, **more}

    return environment


@pytest.fixture(scope="session")
def stored() -> Callable[[Server, str], list[dict[str, Any]]]:
    """All calls of a project (`entity/name`), as the server's own query route gives them."""

    def query(server: Server, project: str) -> list[dict[str, Any]]:
        key = base64.b64encode(f"api:{server.api_key}".encode()).decode()
        request = urllib.request.Request(
            f"{server.url}/calls/stream_query",
            data=json.dumps({"project_id": project}).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Basic {key}"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return [json.loads(line) for line in answer]

    return query


@pytest.fixture(scope="session")
def upload(clean_environment: Callable[..., dict[str, str]]) -> Callable[[Server, Path], None]:
    """Run `verl-trace upload` on a run's folder."""

    def run(server: Server, folder: Path) -> None:
        program = "import sys; from verl_trace.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", program, "upload", str(folder)]
        environment = clean_environment(**server.client_environment())
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    return run
