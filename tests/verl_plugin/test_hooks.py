"""Installing the hooks: once, early, or with a word about what came too late."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from verl_trace.verl_plugin import extra, hooks, import_hook, ops, ray_env, rollout_trace

Watched = dict[str, list[Callable[[ModuleType], None]]]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """What `install` asks to be called for, in a process where nothing was installed yet."""
    found: Watched = {}
    monkeypatch.setattr(import_hook, "after_import", lambda name, call: found.setdefault(name, []).append(call))
    monkeypatch.setattr(hooks, "_installed", False)
    for name in ("VERL_TRACE_DISABLED", ray_env.DRIVER_DISABLED, extra.VARIABLE, ops.VARIABLE):
        # set first, so that what `install` sets is taken away again
        monkeypatch.setenv(name, "")
    return found


ALWAYS = {
    "verl.experimental.agent_loop.agent_loop": 3,
    "verl.experimental.reward_loop.reward_loop": 1,
    "verl.trainer.constants_ppo": 1,
    "verl.trainer.ppo.ray_trainer": 1,
    "verl.trainer.ppo.reward": 1,
    "verl.trainer.ppo.v1.trainer_base": 1,
    "verl.utils.rollout_trace": 1,
    "verl.utils.tracking": 1,
}
EXTRA = {
    "ray._private.function_manager": 1,
    "ray.actor": 1,
    "verl.experimental.agent_loop.agent_loop": 4,
    "verl.experimental.reward.reward_manager": 1,
    "verl.experimental.reward_loop.reward_loop": 2,
    "verl.protocol": 1,
    "verl.experimental.agent_loop.tool_agent_loop": 1,
    "verl.tools.base_tool": 1,
    "verl.tools.function_tool": 1,
}


@pytest.mark.parametrize(
    ("variable", "expected"), [("", {**ALWAYS, **EXTRA}), ("1", {**ALWAYS, **EXTRA}), ("0", ALWAYS)]
)
def test_modules_are_watched_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, variable: str, expected: dict[str, int]
) -> None:
    """The second time, as when both the entry point and the variable load the plugin, nothing happens.

    With VERL_TRACE_EXTRA=0 no module is watched for what verl leaves undecorated.
    """
    monkeypatch.setenv(extra.VARIABLE, variable)
    hooks.install()
    assert {name: len(callbacks) for name, callbacks in watched.items()} == expected

    watched.clear()
    hooks.install()
    assert watched == {}


@pytest.mark.parametrize("variable", ["VERL_TRACE_DISABLED", ray_env.DRIVER_DISABLED])
def test_disabled_watches_nothing_to_replace(watched: Watched, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Switched off here or on the driver: only the switch itself is handed on."""
    monkeypatch.delenv("VERL_TRACE_DISABLED")
    monkeypatch.setenv(variable, "1")
    hooks.install()

    assert watched == {"verl.trainer.constants_ppo": [ray_env.carry_switch]}
    assert not hooks.installed()


def test_late_plugin_claims_its_own_backend_only(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where verl's decorators are in use already, `weave` stays verl's, offline or not, and one line says why."""
    claimed: list[Any] = []
    monkeypatch.setattr(rollout_trace, "replace", lambda module, backends: claimed.append(backends))
    monkeypatch.setitem(sys.modules, "verl.utils.rollout_trace", ModuleType("rollout_trace"))
    hooks.install()
    watched["verl.utils.rollout_trace"][0](ModuleType("rollout_trace"))

    assert claimed == [{"jsonl"}]
    assert "imported before verl-trace" in capsys.readouterr().err
