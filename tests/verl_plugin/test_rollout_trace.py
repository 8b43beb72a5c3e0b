"""The stand-ins for verl's decorators, over a module with the shape of an older verl: fewer parameters."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from verl_trace.recorder.session import current
from verl_trace.verl_plugin import rollout_trace


def roll(verl: Any) -> tuple[int, int]:
    """One trajectory with a call of each kind."""

    class Agent:
        @verl.rollout_trace_op  # type: ignore[untyped-decorator]
        async def run(self, x: int) -> int:
            """What run does."""
            return x + 1

        @verl.rollout_trace_op  # type: ignore[untyped-decorator]
        def step(self, x: int) -> int:
            return x + 2

    assert inspect.iscoroutinefunction(Agent.run)
    assert not inspect.iscoroutinefunction(Agent.step)
    assert str(inspect.signature(Agent.run)) == "(self, x: 'int') -> 'int'"
    assert (Agent.run.__name__, Agent.run.__doc__) == ("run", "What run does.")
    assert Agent.run.__wrapped__(Agent(), 1).close() is None
    with verl.rollout_trace_attr(step=3):
        return asyncio.run(Agent().run(1)), Agent().step(1)


def span_files(folder: Path) -> list[Path]:
    """Whatever was written."""
    return list(folder.glob("*/*.jsonl*"))


@pytest.mark.parametrize("backend", [None, "mlflow", "weave", "trackio"])
def test_other_backends_run_verls_own(verl: Any, tmp_path: Path, backend: str | None) -> None:
    """Online weave and everything that is not ours is done by verl's own three functions."""
    verl.RolloutTraceConfig.init("p", "e", backend)

    assert roll(verl) == (2, 3)
    assert verl.log == ["step 3", "run", "step"]
    assert verl.RolloutTraceConfig.get_instance().client == f"client of {backend}"
    assert current() is None
    assert span_files(tmp_path) == []


@pytest.mark.parametrize(("backend", "mode"), [("jsonl", "online"), ("jsonl", "offline"), ("weave", "offline")])
def test_ours_are_recorded(verl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, mode: str) -> None:
    """`jsonl` always, `weave` while W&B is offline; the configuration keeps the name and has no client."""
    monkeypatch.setenv("WANDB_MODE", mode)
    verl.RolloutTraceConfig.init("p", "e", backend, token2text=True)
    config = verl.RolloutTraceConfig.get_instance()

    assert roll(verl) == (2, 3)
    assert verl.log == []
    assert (config.backend, config.client, config._initialized, config.token2text) == (backend, None, True, True)
    assert (config.project_name, config.experiment_name) == ("p", "e")
    assert rollout_trace.recording()
    verl.RolloutTraceConfig.reset()
    assert current() is None
    assert len(span_files(tmp_path)) == 1


def test_first_init_counts(verl: Any) -> None:
    """A second `init` changes nothing until `reset`, as in verl; after it the other side may have its turn."""
    verl.RolloutTraceConfig.init("p", "e", "jsonl")
    verl.RolloutTraceConfig.init("p", "e", "mlflow")
    verl.RolloutTraceConfig.init("p", "other", "jsonl")
    config = verl.RolloutTraceConfig.get_instance()
    assert (config.backend, config.experiment_name) == ("jsonl", "e")

    verl.RolloutTraceConfig.reset()
    verl.RolloutTraceConfig.init("p", "e", "mlflow")
    assert roll(verl) == (2, 3)
    assert verl.log == ["step 3", "run", "step"]
    assert not rollout_trace.chosen()


def test_exceptions_are_the_methods_own(verl: Any) -> None:
    """What a recorded method raises arrives unchanged."""
    error = KeyError("mine")

    class Agent:
        @verl.rollout_trace_op  # type: ignore[untyped-decorator]
        async def run(self) -> None:
            raise error

    verl.RolloutTraceConfig.init("p", "e", "jsonl")
    with pytest.raises(KeyError) as caught:
        asyncio.run(Agent().run())
    assert caught.value is error


def test_wrong_arguments_are_verls_to_refuse(verl: Any) -> None:
    """`init` with arguments that this verl does not know raises what verl raises."""
    with pytest.raises(TypeError, match="max_samples"):
        verl.RolloutTraceConfig.init("p", "e", "jsonl", max_samples_per_step_per_worker=3)


def test_unknown_shape_is_left_whole(verl: Any) -> None:
    """A verl whose module lacks one of the names is not half replaced."""
    module: Any = ModuleType("rollout_trace")
    module.rollout_trace_op = own = object()
    module.RolloutTraceConfig = type("RolloutTraceConfig", (), dict(verl.RolloutTraceConfig.__dict__))
    before = module.RolloutTraceConfig.__dict__["init"]

    with pytest.raises(AttributeError):
        rollout_trace.replace(module)
    assert module.rollout_trace_op is own
    assert module.RolloutTraceConfig.__dict__["init"] is before


@pytest.mark.parametrize("backend", ["weave", "jsonl"])
def test_no_home_and_no_folder_reach_no_caller(
    verl: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], backend: str
) -> None:
    """A user without a home folder, a current folder that is gone: a warning, and training goes on."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(rollout_trace, "decide", fail)
    monkeypatch.setattr(rollout_trace, "pin_folder", fail)
    verl.RolloutTraceConfig.init("p", "e", backend)

    assert roll(verl) == (2, 3)
    verl.RolloutTraceConfig.reset()
    assert "Could not determine home directory." in capfd.readouterr().err
