"""Real offline runs, written by wandb itself, and a back end to sync them to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .backend import Backend

KEY = "0123456789abcdef0123456789abcdef01234567"
PROGRAM = """
import sys, time, wandb
name, project, run_id, steps, ending = sys.argv[1:]
wandb.init(project=project, name=name, id=run_id or None, config={"lr": 0.5}, resume="allow" if run_id else None)
for step in range(int(steps)):
    wandb.log({"loss": 1 / (step + 1)}, step=step)
if ending == "finish":
    wandb.finish()
else:
    print("logged", flush=True)
    time.sleep(600)
"""

MakeRun = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`wandb sync` leaves its log in the current folder, which must not be the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """`make_run(name, …)` writes an offline run; its folder. `killed`: SIGKILL after so many seconds."""

    def make(
        name: str, *, run_id: str = "", steps: int = 4, killed: float | None = None, project: str = "proj"
    ) -> Path:
        folder = tmp_path / "train"
        folder.mkdir(exist_ok=True)
        before = set(folder.glob("wandb/offline-run-*"))
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "WEAVE_"))}
        environment = {**kept, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
        command = [
            sys.executable,
            "-c",
            PROGRAM,
            name,
            project,
            run_id,
            str(steps),
            "finish" if killed is None else "wait",
        ]
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        if killed is not None:
            assert process.stdout is not None
            assert process.stdout.readline() == "logged\n"
            try:
                process.wait(killed)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)
        (made,) = set(folder.glob("wandb/offline-run-*")) - before
        return made

    return make


@pytest.fixture
def backend() -> Iterator[Backend]:
    """A W&B back end on loopback."""
    running = Backend()
    yield running
    running.close()


@pytest.fixture
def login(backend: Backend, tmp_path: Path) -> dict[str, str]:
    """The environment of a user who is logged in there."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "WEAVE_"))}
    home = tmp_path / "home"
    home.mkdir()
    return {
        **kept,
        "HOME": str(home),
        "WANDB_BASE_URL": backend.url,
        "WANDB_API_KEY": KEY,
        "WANDB_ERROR_REPORTING": "false",
    }
