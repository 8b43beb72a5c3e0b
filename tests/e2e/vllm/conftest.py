"""A real vLLM on the CPU with a model of random weights, made here; programs run as a user would run them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from verl_trace.demo.server_env import Server, start_server

ROOT = Path(__file__).parents[3]
# A start of vLLM takes half a minute on two idle cores, verl's Ray workers as much; ten times that on busy ones.
PATIENCE = 900
VLLM = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}


@pytest.fixture(scope="session")
def model(clean_environment: Callable[..., dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model, weights included."""
    folder = tmp_path_factory.mktemp("model")
    program = [sys.executable, str(ROOT / "tests/e2e/tiny_model.py"), str(folder), "--weights"]
    subprocess.run(program, env=clean_environment(), timeout=PATIENCE, check=True)
    return folder


@pytest.fixture(scope="session")
def run(clean_environment: Callable[..., dict[str, str]]) -> Callable[..., str]:
    """Run a Python file in a folder; the last line that it printed."""

    def program(folder: Path, file: Path, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, str(file), *arguments],
            cwd=folder,
            env=clean_environment(**VLLM),
            timeout=PATIENCE,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        return done.stdout.splitlines()[-1]

    return program


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """W&B's trace server on loopback."""
    with start_server(tmp_path_factory.mktemp("server") / "weave.db", entity="me") as running:
        yield running
