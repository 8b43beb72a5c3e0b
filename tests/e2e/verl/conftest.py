"""Real verl, real Ray: one cluster for the module's runs, started before every driver and with other variables."""

from __future__ import annotations

import io
import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zstandard

from verl_trace.schemas.lines import parse_line

HERE = Path(__file__).resolve().parent
# No run takes half of this, on a busy machine with two cores.
PATIENCE = 300
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "WANDB_ERROR_REPORTING": "false",
    # Ray lets a second program into a cluster only with the cluster's token.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
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


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without what belongs to W&B, Ray or us, with `more` added."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    # with VERL_TRACE_EXTRA the tree is larger than that of live tracing, which these tests count against
    return {**kept, **QUIET, "VERL_TRACE_EXTRA": "0", **more}


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
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the tiny model."""
    folder = tmp_path_factory.mktemp("model")
    program = "import sys, pathlib, rollout_parts; rollout_parts.make_model_folder(pathlib.Path(sys.argv[1]))"
    environment = clean_environment(PYTHONPATH=str(HERE), VERL_TRACE_DISABLED="1")
    subprocess.run([sys.executable, "-c", program, str(folder)], env=environment, timeout=PATIENCE, check=True)
    return str(folder)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a cluster whose own variables say: record elsewhere, and W&B is online."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    environment = clean_environment(VERL_TRACE_DIR=str(elsewhere), VERL_TRACE_OFFLINE="0", WANDB_MODE="online")
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
        assert read_records(elsewhere).heads == []
        assert [path.name for path in elsewhere.iterdir()] == []
    finally:
        process.stdin.close()
        process.wait(PATIENCE)
        process.stdout.close()


@pytest.fixture(scope="session")
def drive(model: str, cluster: str) -> Callable[..., dict[str, dict[str, Any]]]:
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
            env=clean_environment(**(environment or {})),
            timeout=PATIENCE,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        report = json.loads((folder / "report.json").read_text())
        return {scene["experiment"]: scene for scene in report}

    return run


@pytest.fixture(scope="session")
def records() -> Callable[[Path], Records]:
    """`read_records`, for the tests."""
    return read_records


@pytest.fixture(scope="session")
def verl_environment() -> Callable[..., dict[str, str]]:
    """`clean_environment`, for programs that a test writes itself."""
    return clean_environment
