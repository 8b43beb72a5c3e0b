"""Metrics and traces in one project: real offline runs, the real Weave server, and calls that lead to their run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest
import requests

from verl_trace.demo.server_env import Server
from verl_trace.uploader.pipeline import upload
from verl_trace.uploader.wandb_links import WandbOptions
from verl_trace.wandb_runs.offline import read_offline_run

from .backend import Backend

ENTITY = "demo"


@pytest.fixture
def both(wandb_login: Server, backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    """Metrics go to the back end, traces to the Weave server; one key for both."""
    backend.entity = ENTITY
    monkeypatch.setenv("WANDB_BASE_URL", backend.url)
    monkeypatch.setenv("WF_TRACE_SERVER_URL", wandb_login.url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return wandb_login


@pytest.fixture
def recorded(writer: Any, tmp_path: Path) -> Callable[..., Path]:
    """A run of project `proj` that began now, of steps 3 and -1, in `train/runs`."""

    def record(project: str = "proj", experiment: str = "exp1", attempt: str = "attempt0", **wandb: str) -> Path:
        recording = writer(tmp_path / "train" / "runs", project, experiment)
        for step in (3, -1):
            root = recording.start("Loop.run", step=step, sample_index=0, rollout_n=0)
            recording.end(recording.start("Tool.execute", parent=root))
            recording.end(root)
        recording.close()
        header, *rest = recording.path.read_bytes().splitlines(keepends=True)
        head = orjson.loads(header) | {"attempt": attempt, "wandb": wandb}
        head["started_at"] = (datetime.now(timezone.utc) - timedelta(seconds=5)).isoformat().replace("+00:00", "Z")
        recording.path.write_bytes(b"".join([orjson.dumps(head) + b"\n", *rest]))
        return Path(recording.path.parent)

    return record


def calls(server: Server, project: str, **filters: Any) -> list[dict[str, Any]]:
    body = {"project_id": f"{ENTITY}/{project}", "filter": filters}
    answer = requests.post(f"{server.url}/calls/stream_query", json=body, auth=("api", server.api_key), timeout=30)
    answer.raise_for_status()
    return [json.loads(line) for line in answer.text.splitlines()]


def test_metrics_first_then_linked_calls(
    both: Server, backend: Backend, recorded: Any, make_run: Any, tmp_path: Path
) -> None:
    """History and config arrive; each call names its run and its step, never -1; again, nothing is sent or synced."""
    name = f"proj-{tmp_path.name}"[:40].replace("_", "-")
    run = recorded(name)
    folder = make_run("exp1", run_id="abc123", project=name)
    result = upload(run)
    rows = calls(both, name, wb_run_ids=[f"{ENTITY}/{name}/abc123"])
    again = upload(run)

    assert (result.sent, result.failed, result.runs[0].stopped) == (4, 0, "")
    assert [found["state"] for found in result.runs[0].wandb] == ["synced"]
    assert [row["loss"] for row in backend.runs["abc123"]["history"].values() if "loss" in row] == [1, 0.5, 1 / 3, 0.25]
    assert len(rows) == 4
    assert {row["wb_run_step"] for row in rows} == {3, None}
    assert {row["attributes"]["step"] for row in rows if row["wb_run_step"] is None} == {-1}
    assert (again.sent, [found["state"] for found in again.runs[0].wandb]) == (0, ["synced before"])
    assert read_offline_run(folder) is not None


def test_a_wrong_key_stops_before_the_first_call(both: Server, backend: Backend, recorded: Any, make_run: Any) -> None:
    """Nothing is sent: the calls could not be linked later. One clear line; without W&B they go."""
    run = recorded("proj")
    make_run("exp1", run_id="abc123")
    backend.mode = "graphql-error"
    stopped = upload(run)
    backend.mode = "ok"
    alone = upload(run, wandb=WandbOptions(enabled=False))

    assert stopped.sent == 0
    assert "abc123 was not synced" in stopped.runs[0].stopped
    assert any("wandb said" in note for note in stopped.runs[0].notes)
    assert any("--no-wandb" in note for note in stopped.runs[0].notes)
    assert alone.sent == 4
    assert "abc123" not in backend.runs


def test_calls_that_are_stored_without_a_link_are_told(
    both: Server, backend: Backend, recorded: Any, make_run: Any, tmp_path: Path
) -> None:
    """A stored call is final: a later upload with the run counts what lacks the link."""
    name = f"proj-{tmp_path.name}"[:40].replace("_", "-")
    run = recorded(name)
    upload(run)
    make_run("exp1", run_id="abc123", project=name)
    later = upload(run)

    assert (later.sent, later.runs[0].unlinked) == (0, 4)
    assert any("without a link" in note for note in later.runs[0].notes)


def test_a_run_of_another_project_is_not_linked(both: Server, backend: Backend, recorded: Any, make_run: Any) -> None:
    """--run-id of a run elsewhere, and traces that go elsewhere: a sentence, and no wrong link."""
    run = recorded("proj")
    make_run("exp1", run_id="abc123")
    result = upload(run, project="elsewhere")

    assert result.sent == 4
    assert backend.runs["abc123"]["project"] == "proj"
    assert any("links no run of another project" in note for note in result.runs[0].notes)
    assert all(row["wb_run_id"] is None for row in calls(both, "elsewhere"))


def test_only_the_metrics(both: Server, backend: Backend, recorded: Any, make_run: Any, tmp_path: Path) -> None:
    """`only` syncs and sends no call; offline runs may lie anywhere that is named; a dry run only says it."""
    run = recorded("proj")
    folder = make_run("exp1", run_id="abc123")
    elsewhere = tmp_path / "elsewhere"
    shutil.move(folder, elsewhere / folder.name)
    options = WandbOptions(only=True, folders=(elsewhere,))
    missed = upload(run, dry_run=True, wandb=WandbOptions(only=True))
    dry = upload(run, dry_run=True, wandb=options)
    nothing = dict(backend.runs)
    done = upload(run, wandb=options)

    assert any("no offline run was found" in note for note in missed.runs[0].notes)
    assert ([found["state"] for found in dry.runs[0].wandb], nothing) == (["would be synced"], {})
    assert (done.sent, [found["state"] for found in done.runs[0].wandb]) == (0, ["synced"])
    assert backend.runs["abc123"]["exit"] == 0
