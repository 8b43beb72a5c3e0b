"""Real wheels of verl, several in one environment: each program gets the one that it asks for, and no other."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import zstandard

from verl_trace.demo.server_env import Server, start_server
from verl_trace.schemas.lines import parse_line

HERE = Path(__file__).resolve().parent
# A folder with one unpacked wheel per version; without it, the installed verl is what is tested.
WHEELS = os.environ.get("VERL_TRACE_TEST_WHEELS")
PLUGIN = "verl_trace.verl_plugin"
FOREIGN = ("VERL_", "WANDB_", "WEAVE_", "WF_", "RAY_", "SLURM_")
PATIENCE = 300

Program = Callable[..., Any]


def versions() -> list[str]:
    """What there is to test; where verl is missing, a name with which every test fails (collecting needs one)."""
    if WHEELS:
        return sorted(os.listdir(WHEELS))
    try:
        return [metadata.version("verl")]
    except metadata.PackageNotFoundError:
        return ["none installed"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that asks for a version runs with each one that is there."""
    if "version" in metafunc.fixturenames:
        metafunc.parametrize("version", versions(), scope="session")


@pytest.fixture(scope="session")
def program() -> Program:
    """Run a module of this folder with a version of verl, with or without the plugin; what it printed last, as JSON."""

    def run(version: str, folder: Path, *command: str, plugin: bool = True, **variables: str) -> Any:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        path = [str(Path(WHEELS) / version)] if WHEELS else []
        environment = {
            **kept,
            "PYTHONPATH": os.pathsep.join([*path, str(HERE), str(HERE.parent)]),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "WANDB_CONFIG_DIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "VERL_USE_EXTERNAL_PLUGINS": "auto" if plugin else "none",
        }
        start = [sys.executable, "-W", "ignore", "-m"]
        # 0.5 has no variable for it: there the launcher is how a driver loads the plugin
        if plugin and version.startswith("0.5."):
            start.append(PLUGIN)
        elif plugin:
            environment["VERL_USE_EXTERNAL_MODULES"] = PLUGIN
        done = subprocess.run(
            [*start, *command],
            cwd=folder,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """W&B's trace server on loopback."""
    with start_server(tmp_path_factory.mktemp("server") / "weave.db", entity="me") as running:
        yield running


@pytest.fixture(scope="session")
def read() -> Callable[[Path], list[dict[str, Any]]]:
    """All records in a folder, heads with their payload, in the order of their files."""

    def records(folder: Path) -> list[dict[str, Any]]:
        heads = []
        for path in sorted(folder.glob("*.jsonl*")):
            data = path.read_bytes()
            if path.suffix == ".zst":
                data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
            lines = [parse_line(line) for line in data.splitlines(keepends=True)]
            heads += [{**line.head, "payload": json.loads(line.payload or b"null")} for line in lines]
        return heads

    return records
