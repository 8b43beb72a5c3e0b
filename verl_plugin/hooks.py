"""Which of verl's modules are watched, and what happens to each."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from ..recorder.counters import warn_once
from ..recorder.settings import disabled
from . import (
    agent_loop,
    carry,
    extra,
    import_hook,
    ops,
    ray_env,
    rollout_trace,
    sync_mode,
    tokenizers,
    tool_actors,
    trainer_scores,
    wandb_run,
)

__all__ = ["install", "installed"]

_TRACE = "verl.utils.rollout_trace"
_AGENT_LOOP = "verl.experimental.agent_loop.agent_loop"
_CONSTANTS = "verl.trainer.constants_ppo"
_TRAINER = "verl.trainer.ppo.ray_trainer"
_TRACKING = "verl.utils.tracking"
_REWARD_LOOP = "verl.experimental.reward_loop.reward_loop"
_SCORES = {
    _REWARD_LOOP: trainer_scores.watch_reward_loop,
    "verl.trainer.ppo.v1.trainer_base": trainer_scores.watch_default_trainer,
    "verl.trainer.ppo.reward": trainer_scores.watch_reward_functions,
}
_ELSEWHERE = {
    "verl.protocol": carry.watch_data,
    _REWARD_LOOP: carry.watch_reward_worker,
    "verl.experimental.reward.reward_manager": carry.watch_reward_worker_actor,
    "ray.actor": tool_actors.watch_actor_handles,
    "ray._private.function_manager": tool_actors.watch_actor_classes,
}
_EXTRA = {
    "verl.tools.base_tool": extra.watch_tools,
    "verl.tools.function_tool": extra.watch_function_tools,
    _AGENT_LOOP: extra.watch_agent_loops,
    "verl.experimental.agent_loop.tool_agent_loop": extra.watch_tool_calls,
}
_installed = False


def installed() -> bool:
    """Whether the hooks are in place in this process."""
    return _installed


def install() -> None:
    """Watch verl's modules, once per process. Replaces nothing with VERL_TRACE_DISABLED=1, here or on the driver."""
    global _installed
    if _installed:
        return
    if os.environ.get(ray_env.DRIVER_DISABLED):
        os.environ.setdefault("VERL_TRACE_DISABLED", "1")
    if disabled():
        import_hook.after_import(_CONSTANTS, ray_env.carry_switch)
        return
    _installed = True
    import_hook.after_import(_TRACE, _late if _TRACE in sys.modules else rollout_trace.replace)
    import_hook.after_import(_AGENT_LOOP, agent_loop.replace)
    import_hook.after_import(_AGENT_LOOP, ray_env.replace_manager)
    import_hook.after_import(_AGENT_LOOP, tokenizers.lend)
    import_hook.after_import(_CONSTANTS, ray_env.replace)
    import_hook.after_import(_TRAINER, sync_mode.watch_trainer)
    import_hook.after_import(_TRACKING, wandb_run.replace)
    for module, watch in _SCORES.items():
        import_hook.after_import(module, watch)
    if extra.switched_on():
        for module, watch in [*_EXTRA.items(), *_ELSEWHERE.items()]:
            import_hook.after_import(module, watch)
    ops.watch()


def _late(module: ModuleType) -> None:
    """verl's decorators are in use already: only a backend of ours, which verl's own ones pass over, may be claimed."""
    warn_once(
        "late",
        f"{_TRACE} was imported before verl-trace: what it decorated by then is not recorded; let verl load the plugin "
        "or import verl_trace.verl_plugin first",
    )
    rollout_trace.replace(module, backends=frozenset({"jsonl"}))
