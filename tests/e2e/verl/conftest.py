"""Real verl, real Ray: one cluster for the module's runs, started before every driver and with other variables."""

from __future__ import annotations

import importlib.util
import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
# A run takes one minute on two idle cores, ten times that where others are at work.
PATIENCE = 900
COMMON = {
    # Ray lets a second program into a cluster only with the cluster's token.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    # with VERL_TRACE_EXTRA the tree is larger than that of live tracing, which these tests count against
    "VERL_TRACE_EXTRA": "0",
}
Environment = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def verl_environment(clean_environment: Environment) -> Environment:
    """`clean_environment` with what all programs here share."""
    return lambda **more: clean_environment(**{**COMMON, **more})


@pytest.fixture(scope="session")
def model(verl_environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the tiny model."""
    folder = tmp_path_factory.mktemp("model")
    program = [sys.executable, str(HERE.parent / "tiny_model.py"), str(folder)]
    subprocess.run(program, env=verl_environment(), timeout=PATIENCE, check=True)
    return str(folder)


@pytest.fixture(scope="session")
def cluster(
    verl_environment: Environment, records: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Address of a cluster whose own variables say: record elsewhere, and W&B is online."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    environment = verl_environment(VERL_TRACE_DIR=str(elsewhere), VERL_TRACE_OFFLINE="0", WANDB_MODE="online")
    process = subprocess.Popen(
        [sys.executable, str(HERE / "cluster.py")],
        env=environment,
        cwd=elsewhere,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
        assert records(elsewhere).heads == []
        # W&B's runs lie in the folder of verl's task runner, which is the cluster's
        assert {path.name for path in elsewhere.iterdir()} <= {"wandb"}
    finally:
        process.stdin.close()
        process.wait(PATIENCE)
        process.stdout.close()


@pytest.fixture
def wandb_backend() -> Iterator[Any]:
    """A back end that accepts `wandb sync`, the one of tests/wandb_runs."""
    spec = importlib.util.spec_from_file_location("wandb_backend", HERE.parents[1] / "wandb_runs" / "backend.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    running = module.Backend()
    running.entity = "me"
    yield running
    running.close()


@pytest.fixture(scope="session")
def drive(model: str, cluster: str, verl_environment: Environment) -> Callable[..., dict[str, dict[str, Any]]]:
    """Run the driver in a folder and return its report by experiment; keyword arguments are the plan's."""

    def run(
        folder: Path,
        environment: dict[str, str] | None = None,
        program: str = "driver.py",
        tool: str = "rollout_parts.CalculatorTool",
        **plan: Any,
    ) -> dict[str, dict[str, Any]]:
        tools_file, calls_file = folder / "tools.yaml", folder / "calls"
        config = {"type": "native", "calls_file": str(calls_file)}
        tools_file.write_text(json.dumps({"tools": [{"class_name": tool, "config": config}]}))
        base = {"project": "me/proj", "model": model, "address": cluster, "tools_file": str(tools_file)}
        sizes = {"workers": 2, "steps": 2, "samples": 4, "n": 2}
        rest = {
            "calls_file": str(calls_file),
            "report": str(folder / "report.json"),
            "start": "run_ppo",
            "end": "return",
        }
        plan_file = folder / "plan.json"
        plan_file.write_text(json.dumps({**base, **sizes, **rest, **plan}))
        done = subprocess.run(
            [sys.executable, str(HERE / program), str(plan_file)],
            cwd=folder,
            env=verl_environment(**(environment or {})),
            timeout=PATIENCE,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        report = json.loads((folder / "report.json").read_text())
        return {scene["experiment"]: scene for scene in report}

    return run
