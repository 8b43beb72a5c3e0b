"""A module with the shape of an older verl's `rollout_trace`, with the stand-ins in place."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from verl_trace.schemas.lines import parse_line
from verl_trace.verl_plugin import rollout_trace


class OldConfig:
    """The configuration of verl 0.6, reduced to what its decorators need."""

    _instance: Any = None
    _initialized = False
    backend: str | None = None
    client: object | None = None
    token2text = False
    project_name: str | None = None
    experiment_name: str | None = None

    @classmethod
    def get_instance(cls) -> Any:
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    @classmethod
    def init(cls, project_name: str, experiment_name: str, backend: str | None, token2text: bool = False) -> None:
        config = cls.get_instance()
        if not config._initialized:
            config.backend, config.client, config._initialized = backend, f"client of {backend}", True

    @classmethod
    def reset(cls) -> None:
        cls._instance = None


@pytest.fixture
def verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module like verl's with the stand-ins in place; `log` has what its own functions were asked."""
    monkeypatch.setenv("VERL_TRACE_DIR", str(tmp_path))
    for name in ("WANDB_MODE", "VERL_TRACE_OFFLINE", "VERL_TRACE_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    module: Any = ModuleType("rollout_trace")
    module.log = []
    module.RolloutTraceConfig = type("RolloutTraceConfig", (), dict(OldConfig.__dict__))

    def rollout_trace_op(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def own(*args: Any, **kwargs: Any) -> Any:
            module.log.append(func.__name__)
            return func(*args, **kwargs)

        return own

    @contextlib.contextmanager
    def rollout_trace_attr(step: int | None = None) -> Iterator[None]:
        module.log.append(f"step {step}")
        yield

    module.rollout_trace_op, module.rollout_trace_attr = rollout_trace_op, rollout_trace_attr
    rollout_trace.replace(module)
    yield module
    module.RolloutTraceConfig.reset()


@pytest.fixture
def recorded(verl: Any, tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """verl initialised for the recorder; end and start records so far, heads with their payload."""

    def read() -> list[dict[str, Any]]:
        lines = [
            parse_line(line) for path in (tmp_path / "e").glob("*.jsonl") for line in path.read_bytes().splitlines(True)
        ]
        return [{**line.head, "payload": json.loads(line.payload)} for line in lines if line.kind in ("start", "end")]

    verl.RolloutTraceConfig.init("p", "e", "jsonl")
    return read
