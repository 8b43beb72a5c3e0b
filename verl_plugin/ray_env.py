"""One setting on the driver reaches every worker: Ray hands on no environment, and verl only a list of its own.

Two ways. The usual one is the runtime environment that verl gives to `ray.init`, which every process of the job
inherits. Where a program has called `ray.init` by itself, the agent-loop workers get the settings as their own runtime
environment. Either way, what the user wrote into a runtime environment stays as it is, and so does the configuration.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from ..recorder.counters import warn_once
from .folder import FOLDER_VARIABLE, span_folder
from .offline import OFFLINE_VARIABLE, decide

__all__ = ["DRIVER_DISABLED", "LOADER_VARIABLE", "carry_switch", "forwarded", "replace", "replace_manager"]

PREFIX = "VERL_TRACE_"
# Which modules verl loads in a worker is a variable too, of verl's.
LOADER_VARIABLE = "VERL_USE_EXTERNAL_MODULES"
# verl's own function for it, in the package since 0.6.
_LOADER = "import_external_libs"
_HOOK = "worker_process_setup_hook"
# Tells workers that VERL_TRACE_DISABLED is set on the driver. verl forwards nothing that the driver's own environment
# has, so the variable itself cannot travel in its list.
DRIVER_DISABLED = "VERL_TRACE_DRIVER_DISABLED"


def forwarded(explicit: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The variables that workers need, as this process sees them; `explicit` is the user's own runtime environment."""
    explicit = explicit or {}
    seen = {**os.environ, **{str(name): str(value) for name, value in explicit.items()}}
    out = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    out[FOLDER_VARIABLE] = str(span_folder(seen))
    out[OFFLINE_VARIABLE] = "1" if decide(seen).offline else "0"
    if os.environ.get(LOADER_VARIABLE):
        out[LOADER_VARIABLE] = os.environ[LOADER_VARIABLE]
    return {name: value for name, value in out.items() if name not in explicit}


def replace(module: ModuleType) -> None:
    """Wrap `get_ppo_ray_runtime_env` of `verl.trainer.constants_ppo`, which has just been executed."""
    original = module.get_ppo_ray_runtime_env

    @functools.wraps(original)
    def get_ppo_ray_runtime_env(*args: Any, **kwargs: Any) -> Any:
        runtime_env = original(*args, **kwargs)
        try:
            variables = runtime_env.setdefault("env_vars", {})
            for name, value in forwarded(_users_variables(*args, **kwargs)).items():
                variables.setdefault(name, value)
            if "verl" in sys.modules and not hasattr(sys.modules["verl"], _LOADER):
                _load_by_hook(runtime_env)
        except Exception as error:  # noqa: BLE001
            warn_once("ray-env", f"settings do not reach the workers: {type(error).__name__}: {error}")
        return runtime_env

    module.get_ppo_ray_runtime_env = get_ppo_ray_runtime_env  # type: ignore[attr-defined]


def _load_by_hook(runtime_env: Any) -> None:
    """Have Ray load the plugin when a worker starts: verl 0.5 loads none. Once per job, since workers inherit it."""
    if runtime_env.setdefault(_HOOK, f"{__package__}.load") != f"{__package__}.load":
        warn_once("ray-hook", f"the runtime environment has a {_HOOK} already: let it import {__package__}")


def _users_variables(config: Any = None, **_: Any) -> dict[str, Any]:
    """`ray_kwargs.ray_init.runtime_env.env_vars` of verl's configuration, where verl passes it on (0.9 and later)."""
    for key in ("ray_kwargs", "ray_init", "runtime_env", "env_vars"):
        config = config.get(key) if config is not None else None
    return dict(config or {})


def carry_switch(module: ModuleType) -> None:
    """Add the driver's VERL_TRACE_DISABLED to the list that verl forwards; no function is touched."""
    module.PPO_RAY_RUNTIME_ENV["env_vars"][DRIVER_DISABLED] = "1"


def replace_manager(module: ModuleType) -> None:
    """Wrap how `AgentLoopManager` starts workers, for programs that called `ray.init` without verl's environment."""
    manager = module.AgentLoopManager
    original = manager.__dict__.get("_init_agent_loop_workers")
    if original is not None:
        manager._init_agent_loop_workers = _start_workers(original)


def _start_workers(original: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def init_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            with _variables_for_workers(self):
                return await original(self, *args, **kwargs)

        return init_async

    # before verl 0.7
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _variables_for_workers(self):
            return original(self, *args, **kwargs)

    return init


@contextlib.contextmanager
def _variables_for_workers(manager: Any) -> Iterator[None]:
    """Have the manager start its workers with the settings, where they would not inherit them."""
    workers_class = getattr(manager, "agent_loop_workers_class", None)
    try:
        missing = _missing() if workers_class is not None else {}
    except Exception as error:  # noqa: BLE001
        warn_once("ray-env", f"settings do not reach the workers: {type(error).__name__}: {error}")
        missing = {}
    if not missing:
        yield
        return
    manager.agent_loop_workers_class = _WithVariables(workers_class, missing)
    try:
        yield
    finally:
        manager.agent_loop_workers_class = workers_class


def _missing() -> dict[str, str]:
    """Settings that children of this process would not inherit from its runtime environment."""
    inherited = sys.modules["ray"].get_runtime_context().runtime_env.get("env_vars") or {}
    # a job that carries the decision was started through verl's environment, which carries everything
    return {} if OFFLINE_VARIABLE in inherited else forwarded(inherited)


class _WithVariables:
    """An actor class whose `options` add variables to the actor's runtime environment."""

    def __init__(self, actor_class: Any, variables: dict[str, str]) -> None:
        self._actor_class = actor_class
        self._variables = variables

    def options(self, **options: Any) -> Any:
        runtime_env = dict(options.get("runtime_env") or {})
        runtime_env["env_vars"] = {**self._variables, **(runtime_env.get("env_vars") or {})}
        return self._actor_class.options(**{**options, "runtime_env": runtime_env})

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return self.options().remote(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor_class, name)
