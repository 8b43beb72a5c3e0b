"""The note of the trainer's W&B run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from verl_trace.verl_plugin import wandb_run

JSONL = {"actor_rollout_ref": {"rollout": {"trace": {"backend": "jsonl"}}}}


@pytest.fixture
def tracking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type:
    """verl's Tracking with a `wandb` that has made a run, wrapped."""
    monkeypatch.setenv("VERL_TRACE_DIR", str(tmp_path))
    monkeypatch.setenv("VERL_TRACE_ATTEMPT", "token")

    class Tracking:
        def __init__(
            self, project_name: str, experiment_name: str, default_backend: Any = "console", config: Any = None
        ) -> None:
            if experiment_name == "fails":
                raise RuntimeError("no such backend")
            self.logger: dict[str, Any] = {}
            if "wandb" in default_backend:
                run = SimpleNamespace(id="abc123", entity="", project="proj", name=experiment_name, dir="/x/files")
                monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
                self.logger["wandb"] = sys.modules["wandb"]

    module: Any = ModuleType("tracking")
    module.Tracking = Tracking
    wandb_run.replace(module)
    return Tracking


def notes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("*/.wandb-*")]


def test_the_run_is_noted_beside_the_span_files(tracking: Any, tmp_path: Path) -> None:
    """Once per attempt and run, with what links it."""
    for _ in range(2):
        tracking("proj", "exp/1", default_backend=["console", "wandb"], config=JSONL)

    (note,) = notes(tmp_path)
    assert (note["run_id"], note["project"], note["experiment_name"]) == ("abc123", "proj", "exp/1")
    assert len(note["attempt"]) == 12
    assert [path.name for path in tmp_path.glob("*/*.tmp")] == []


@pytest.mark.parametrize(
    ("backend", "config"),
    [
        (["console"], JSONL),
        (["wandb"], None),
        (["wandb"], {}),
        (["wandb"], {"actor_rollout_ref": None}),
        (["wandb"], {"actor_rollout_ref": {"rollout": {"trace": {"backend": "mlflow"}}}}),
    ],
)
def test_nothing_is_noted_where_nothing_is_recorded(tracking: Any, tmp_path: Path, backend: Any, config: Any) -> None:
    """Without W&B, without a recording, with another backend."""
    tracking("proj", "exp1", backend, config)
    assert notes(tmp_path) == []


def test_offline_weave_is_recorded(tracking: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """backend=weave counts where W&B is offline, as for the rollouts."""
    config = {"actor_rollout_ref": {"rollout": {"trace": {"backend": "weave"}}}}
    monkeypatch.setenv("VERL_TRACE_OFFLINE", "0")
    tracking("proj", "exp1", ["wandb"], config)
    assert notes(tmp_path) == []
    monkeypatch.setenv("VERL_TRACE_OFFLINE", "1")
    tracking("proj", "exp1", ["wandb"], config)
    assert len(notes(tmp_path)) == 1


def test_trouble_stays_ours(
    tracking: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that cannot be written is one line; what verl raises is verl's."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("VERL_TRACE_DIR", str(tmp_path / "file"))
    tracking("proj", "exp1", ["wandb"], JSONL)
    assert "--run-id" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="no such backend"):
        tracking("proj", "fails", ["wandb"], JSONL)
