"""What travels from the driver to the workers, and by which way."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from verl_trace import verl_plugin
from verl_trace.verl_plugin import ray_env


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder and no variable of ours, of W&B or verl."""
    for name in list(os.environ):
        if name.startswith(("VERL_", "WANDB_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def constants(own: dict[str, str] | None = None) -> ModuleType:
    """A module like verl's `constants_ppo`, which drops from its list what the environment has."""
    module = ModuleType("constants_ppo")
    listed = {"env_vars": {"NCCL_DEBUG": "WARN", **(own or {})}}

    def get_ppo_ray_runtime_env(config: Any = None) -> dict[str, Any]:
        return {"env_vars": {k: v for k, v in listed["env_vars"].items() if k not in os.environ}, "working_dir": None}

    module.PPO_RAY_RUNTIME_ENV = listed  # type: ignore[attr-defined]
    module.get_ppo_ray_runtime_env = get_ppo_ray_runtime_env  # type: ignore[attr-defined]
    return module


def variables(module: ModuleType, *args: Any) -> dict[str, str]:
    """What verl would give to Ray."""
    found: dict[str, str] = module.get_ppo_ray_runtime_env(*args)["env_vars"]
    return found


def test_driver_decides_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Our variables, the folder as an absolute path, the offline decision and the list of modules are added."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("VERL_TRACE_STEPS", "1:9")
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "verl_trace.verl_plugin")
    module = constants()
    ray_env.replace(module)

    assert variables(module) == {
        "NCCL_DEBUG": "WARN",
        "VERL_TRACE_STEPS": "1:9",
        "VERL_TRACE_DIR": str(tmp_path / "runs"),
        "VERL_TRACE_OFFLINE": "1",
        "VERL_USE_EXTERNAL_MODULES": "verl_trace.verl_plugin",
    }


def test_online_is_a_decision_too() -> None:
    """A driver that is online says so, since the cluster may have been started with other words."""
    assert ray_env.forwarded()["VERL_TRACE_OFFLINE"] == "0"


def test_users_runtime_environment_wins(tmp_path: Path) -> None:
    """What stands in verl's configuration is neither overwritten nor contradicted."""
    users = {"VERL_TRACE_DIR": "/scratch", "WANDB_MODE": "offline"}
    config = {"ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": users}}}}
    module = constants()
    ray_env.replace(module)

    assert variables(module, config) == {"NCCL_DEBUG": "WARN", "VERL_TRACE_OFFLINE": "1"}
    assert variables(module, {"ray_kwargs": {}})["VERL_TRACE_DIR"] == str(tmp_path / "runs")


def test_verls_own_value_wins() -> None:
    """A name that verl itself lists keeps verl's value."""
    module = constants({"VERL_TRACE_OFFLINE": "verl's"})
    ray_env.replace(module)

    assert variables(module)["VERL_TRACE_OFFLINE"] == "verl's"


def test_trouble_leaves_verls_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """When the settings cannot be found out, verl gets its own environment and one line says so."""
    module = constants()
    ray_env.replace(module)

    assert variables(module, 4711) == {"NCCL_DEBUG": "WARN"}
    assert "do not reach the workers" in capsys.readouterr().err


@pytest.mark.parametrize(("loads_plugins", "hook"), [(True, None), (False, "verl_trace.verl_plugin.load")])
def test_old_verl_has_the_plugin_loaded_by_ray(
    monkeypatch: pytest.MonkeyPatch, loads_plugins: bool, hook: str | None
) -> None:
    """Where verl itself loads no plugins, its Ray workers load ours when they start."""
    verl = ModuleType("verl")
    if loads_plugins:
        verl.import_external_libs = print  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "verl", verl)
    module = constants()
    ray_env.replace(module)

    assert module.get_ppo_ray_runtime_env().get("worker_process_setup_hook") == hook
    assert verl_plugin.load() is None  # type: ignore[func-returns-value]


def test_users_hook_stays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A hook that is there already is kept, and one line says what it must do."""
    monkeypatch.setitem(sys.modules, "verl", ModuleType("verl"))
    module: Any = constants()
    own = module.get_ppo_ray_runtime_env
    module.get_ppo_ray_runtime_env = lambda: {**own(), "worker_process_setup_hook": "mine.hook"}
    ray_env.replace(module)

    assert module.get_ppo_ray_runtime_env()["worker_process_setup_hook"] == "mine.hook"
    assert "let it import verl_trace.verl_plugin" in capsys.readouterr().err


def test_switch_travels_without_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """VERL_TRACE_DISABLED on the driver reaches the workers though no function is replaced."""
    monkeypatch.setenv("VERL_TRACE_DISABLED", "1")
    module = constants({"VERL_TRACE_DISABLED": "1"})
    before = module.get_ppo_ray_runtime_env
    ray_env.carry_switch(module)

    assert module.get_ppo_ray_runtime_env is before
    assert variables(module) == {"NCCL_DEBUG": "WARN", ray_env.DRIVER_DISABLED: "1"}


class ActorClass:
    """Like a Ray actor class: notes with which options actors are made."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    def options(self, **options: Any) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *args: self.made.append(options))


def start_workers(monkeypatch: pytest.MonkeyPatch, inherited: dict[str, str]) -> list[dict[str, Any]]:
    """Start one worker in a job whose runtime environment has `inherited`; the options it was made with."""
    context = SimpleNamespace(runtime_env={"env_vars": inherited} if inherited else {})
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    actor_class = ActorClass()

    class AgentLoopManager:
        def __init__(self) -> None:
            self.agent_loop_workers_class: Any = actor_class

        async def _init_agent_loop_workers(self) -> None:
            self.agent_loop_workers_class.options(name="worker_0").remote("config")

    module = ModuleType("agent_loop")
    module.AgentLoopManager = AgentLoopManager  # type: ignore[attr-defined]
    ray_env.replace_manager(module)
    manager = AgentLoopManager()
    asyncio.run(manager._init_agent_loop_workers())
    assert manager.agent_loop_workers_class is actor_class
    made: list[dict[str, Any]] = actor_class.made
    return made


def test_workers_of_a_bare_job_get_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where `ray.init` was called without verl's environment, the workers have it as their own, after the user's."""
    (options,) = start_workers(monkeypatch, {"VERL_TRACE_DIR": "/scratch"})

    assert options == {"name": "worker_0", "runtime_env": {"env_vars": {"VERL_TRACE_OFFLINE": "0"}}}
    (options,) = start_workers(monkeypatch, {})
    assert options["runtime_env"]["env_vars"]["VERL_TRACE_DIR"] == str(tmp_path / "runs")


def test_workers_of_verls_job_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was started through verl's environment needs nothing more."""
    assert start_workers(monkeypatch, {"VERL_TRACE_OFFLINE": "0"}) == [{"name": "worker_0"}]
