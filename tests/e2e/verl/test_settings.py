"""A setting on the driver reaches workers on a cluster that was started earlier and says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

SIZES = {"steps": 1, "samples": 2, "n": 1}


def test_offline_wandb_records_weave(drive: Callable[..., Any], records: Callable[[Path], Any], tmp_path: Path) -> None:
    """`backend=weave` with W&B offline on the driver is recorded where the driver says, though the cluster is online.

    The driver calls `ray.init` by itself here, without the environment that verl would give.
    """
    scene = {"worker": "v0", "backend": "weave", "experiment": "off line"}
    environment = {"WANDB_MODE": "offline", "VERL_TRACE_DIR": "spans here", "VERL_TRACE_STEPS": "1:"}
    report = drive(tmp_path, environment, scenes=[scene], start="ray.init", **SIZES)["off line"]
    folders = [path for path in (tmp_path / "spans here").iterdir() if path.is_dir()]
    found = records(folders[0])

    assert len(folders) == 1
    assert {(h["backend"], h["experiment_name"], h["project_name"]) for h in found.of("header")} == {
        ("weave", "off line", "me/proj")
    }
    assert found.ops()["ToolAgentLoop.run"] == report["trajectories"] == 2
    assert found.ops()["LLMServerClient.generate"] == report["model_calls"]
    assert report["loaded"] == [["verl_trace"]] * 2
    assert [config["backend"] for config in report["trace_config"]] == ["weave"] * 2
    assert report["config_unchanged"]


def test_switch_on_the_driver_reaches_the_workers(drive: Callable[..., Any], tmp_path: Path) -> None:
    """VERL_TRACE_DISABLED=1 on the driver alone: the rollouts run and nothing at all is written."""
    scene = {"worker": "v0", "backend": "jsonl", "experiment": "nothing"}
    report = drive(tmp_path, {"VERL_TRACE_DISABLED": "1"}, scenes=[scene], **SIZES)["nothing"]

    assert report["trajectories"] == 2
    assert report["model_calls"] > 2
    assert not (tmp_path / "runs").exists()
