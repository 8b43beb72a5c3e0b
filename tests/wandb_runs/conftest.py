"""Real offline runs, written by wandb itself, and a back end to sync them to."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest
import requests

from verl_trace.cli import main
from verl_trace.demo.server_env import Server

from .backend import Backend

KEY = "0123456789abcdef0123456789abcdef01234567"
ENTITY = "demo"
# Steps are logged until the number is reached, or, with "wait", until it is killed or its standard input ends.
PROGRAM = """
import sys, time, wandb
name, project, run_id, first, steps, ending = sys.argv[1:7]
wandb.init(project=project, name=name, id=run_id or None, config={"lr": 0.5}, resume="allow" if run_id else None)
for step in range(int(first), int(first) + int(steps)):
    page = {"page": wandb.Html("<b>first</b>")} if "html" in sys.argv[7:] and not step else {}
    wandb.log({"loss": 1 / (step + 1), **page}, step=step)
if ending == "wait":
    print("logged", flush=True)
    sys.stdin.read()
wandb.finish()
"""

MakeRun = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`wandb sync` leaves its log in the current folder, which must not be the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., contextlib.AbstractContextManager[tuple[Path, Any]]]:
    """`with trainer(name, …) as (folder, process)`: a program that has logged its steps to an offline run in `folder`,
    which is on the disk as far as wandb has written it, and goes on until the end of the block or until it is killed.
    `python`: an interpreter with another wandb.
    """

    @contextlib.contextmanager
    def running(
        name: str,
        *,
        run_id: str = "",
        first: int = 0,
        steps: int = 4,
        project: str = "proj",
        ending: str = "wait",
        python: str = sys.executable,
        html: bool = False,
    ) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
        folder = tmp_path / "train"
        folder.mkdir(exist_ok=True)
        before = set(folder.glob("wandb/offline-run-*"))
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "WEAVE_"))}
        environment = {**kept, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
        # 15 s in real life
        environment["WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL"] = "0.2"
        words = [name, project, run_id, str(first), str(steps), ending, *(["html"] if html else [])]
        process = subprocess.Popen(
            [python, "-c", PROGRAM, *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == ("logged\n" if ending == "wait" else "")
            (made,) = set(folder.glob("wandb/offline-run-*")) - before
            yield made, process
        finally:
            process.communicate(timeout=120)

    return running


@pytest.fixture
def make_run(trainer: Any) -> MakeRun:
    """`make_run(name, …)` writes an offline run; its folder. `killed`: SIGKILL after so many seconds."""

    def make(name: str, *, killed: float | None = None, **about: Any) -> Path:
        with trainer(name, ending="finish" if killed is None else "wait", **about) as (made, process):
            if killed is not None:
                time.sleep(killed)
                os.killpg(process.pid, signal.SIGKILL)
        return Path(made)

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


@pytest.fixture
def both(wandb_login: Server, backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    """Metrics go to the back end, traces to the Weave server; one key for both."""
    backend.entity = ENTITY
    monkeypatch.setenv("WANDB_BASE_URL", backend.url)
    monkeypatch.setenv("WF_TRACE_SERVER_URL", wandb_login.url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return wandb_login


@pytest.fixture
def project() -> str:
    """A project name that no other test has."""
    return f"proj-{secrets.token_hex(4)}"


@pytest.fixture
def recorded(writer: Any, tmp_path: Path) -> Callable[..., Path]:
    """`recorded(project, attempt=…, ago=…)`: two trajectories, of steps 3 and -1, in `train/runs`, of an attempt that
    began so many seconds ago."""

    def record(
        project: str = "proj", experiment: str = "exp1", attempt: str = "attempt0", ago: float = 5, **wandb: str
    ) -> Path:
        recording = writer(tmp_path / "train" / "runs", project, experiment)
        for step in (3, -1):
            root = recording.start("Loop.run", step=step, sample_index=0, rollout_n=0)
            recording.end(recording.start("Tool.execute", parent=root))
            recording.end(root)
        recording.close()
        header, *rest = recording.path.read_bytes().splitlines(keepends=True)
        began = datetime.now(timezone.utc) - timedelta(seconds=ago)
        head = orjson.loads(header) | {"attempt": attempt, "wandb": wandb}
        head["started_at"] = began.isoformat().replace("+00:00", "Z")
        recording.path.write_bytes(b"".join([orjson.dumps(head) + b"\n", *rest]))
        return Path(recording.path.parent)

    return record


@pytest.fixture
def calls(both: Server) -> Callable[..., list[dict[str, Any]]]:
    """`calls(project, filter=…)`: what the Weave server has."""

    def query(project: str, **filters: Any) -> list[dict[str, Any]]:
        body = {"project_id": f"{ENTITY}/{project}", "filter": filters}
        answer = requests.post(f"{both.url}/calls/stream_query", json=body, auth=("api", both.api_key), timeout=30)
        answer.raise_for_status()
        return [orjson.loads(line) for line in answer.text.splitlines()]

    return query


@pytest.fixture
def command(
    both: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """`command("upload", …)`: exit code, standard output, standard error of `verl-trace`."""

    def call(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["verl-trace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    yield call
    with warnings.catch_warnings():
        # weave leaves the connection on which it was refused to the collector
        warnings.simplefilter("ignore")
        gc.collect()
