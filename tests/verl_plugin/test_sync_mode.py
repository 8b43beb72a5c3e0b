"""A rollout mode that no backend can trace is told at the start, once, and only to whom it concerns."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest

from verl_trace.recorder import counters
from verl_trace.verl_plugin.sync_mode import watch_trainer


class Trainer:
    """Like verl's: its configuration, and workers that need GPUs."""

    def __init__(self, rollout: Any) -> None:
        self.config = types.SimpleNamespace(actor_rollout_ref=types.SimpleNamespace(rollout=rollout))

    def init_workers(self, *, fail: bool = False) -> str:
        """verl's."""
        if fail:
            raise RuntimeError("no GPU")
        return "started"


@pytest.fixture
def start() -> Iterator[Any]:
    """`start(rollout)` starts a watched trainer."""
    original = Trainer.init_workers
    watch_trainer(types.SimpleNamespace(RayPPOTrainer=Trainer))  # type: ignore[arg-type]
    try:
        yield lambda rollout, **kwargs: Trainer(rollout).init_workers(**kwargs)
    finally:
        Trainer.init_workers = original  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No warning was given yet, and W&B is online."""
    monkeypatch.setattr(counters, "_warned", set())
    monkeypatch.setenv("WANDB_MODE", "online")


def test_sync_mode_is_told_once(start: Any, capfd: Any) -> None:
    """One line with what to set; the trainer starts, or fails, as it would have."""
    rollout = {"mode": "sync", "trace": {"backend": "jsonl"}}
    assert start(rollout) == "started"
    with pytest.raises(RuntimeError, match="no GPU"):
        start(rollout, fail=True)

    err = capfd.readouterr().err
    assert err.count("nothing will be recorded") == 1
    assert "actor_rollout_ref.rollout.mode=async" in err


@pytest.mark.parametrize(
    "rollout",
    [
        {"mode": "async", "trace": {"backend": "jsonl"}},
        {"mode": "sync", "trace": {"backend": None}},
        {"mode": "sync", "trace": {"backend": "weave"}},
        {"mode": "sync", "trace": {"backend": "mlflow"}},
        {"mode": "sync", "trace": None},
        {"mode": "sync"},
        {},
    ],
)
def test_others_are_left_in_peace(start: Any, capfd: Any, rollout: Any) -> None:
    """No recording was asked for, or the mode has agent loops: not a word."""
    assert start(rollout) == "started"
    assert capfd.readouterr().err == ""


def test_weave_offline_is_a_recording(start: Any, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`backend=weave` while W&B is offline would have been recorded."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    start({"mode": "sync", "trace": {"backend": "weave"}})
    assert "nothing will be recorded" in capfd.readouterr().err


def test_a_strange_configuration_is_survived(start: Any, capfd: Any) -> None:
    """One line, and verl goes on."""
    assert start(None) == "started"
    assert "the rollout mode cannot be read: AttributeError" in capfd.readouterr().err


def test_a_verl_without_that_trainer() -> None:
    """Nothing to watch, nothing raised."""
    watch_trainer(types.ModuleType("verl.trainer.ppo.ray_trainer"))
