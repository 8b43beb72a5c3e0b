"""What verl's agent-loop worker does not say itself: the `uid`, and tracing on the default trainer (TransferQueue).

`AgentLoopWorkerTQ` calls `_run_agent_loop` with `trace=False` for every rollout. Here, only while a recording is
active, tracing is switched on for it, `rollout_n` is the session's number, and the sampling limit is applied as the
older worker applies it: at most that many samples per call of `generate_sequences`, at random, each with all its
rollouts.

`AgentLoopWorkerTQ` travels to Ray by value and its base by reference, so the base is what is wrapped, in the worker.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from ..recorder.context import extra_attributes
from ..recorder.counters import warn_once
from .rollout_trace import recording

__all__ = ["replace"]

_TQ_WORKER = "AgentLoopWorkerTQ"
_LIMIT = "max_samples_per_step_per_worker"
# Of its own: drawing from numpy's or Python's would change what verl draws next.
_random = random.Random()


class _Trajectory(dict[str, Any]):
    """verl's dict of a trajectory, which also remembers whether sampling chose it."""

    traced = True


def replace(module: ModuleType) -> None:
    """Wrap two functions of `verl.experimental.agent_loop.agent_loop`, which has just been executed."""
    # verl 0.6 keeps the methods in a base, and AgentLoopWorker is an actor class already, as in 0.5
    worker: Any = getattr(module, "AgentLoopWorkerBase", None) or module.AgentLoopWorker
    is_class = inspect.isclass(worker)
    if not is_class:
        # 0.5 has neither a uid, nor a default trainer that switches tracing off, nor a sampling limit
        return
    run, info = worker.__dict__["_run_agent_loop"], module.get_trajectory_info
    config = module.RolloutTraceConfig
    worker._run_agent_loop = _run_agent_loop(run)
    module.get_trajectory_info = _get_trajectory_info(info, config)  # type: ignore[attr-defined]


def _run_agent_loop(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    async def run_agent_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recording():
            return await original(self, *args, **kwargs)
        extra = None
        try:
            if kwargs.get("uid") is not None:
                extra = {"uid": str(kwargs["uid"])}
            if _is_tq(self) and not kwargs.get("trace", False):
                args, kwargs = _switch_on(signature, self, args, kwargs)
        except Exception as error:  # noqa: BLE001
            warn_once("agent-loop", f"attributes of a trajectory: {type(error).__name__}: {error}; verl goes on")
        token = extra_attributes.set(extra)
        try:
            return await original(self, *args, **kwargs)
        finally:
            extra_attributes.reset(token)

    return run_agent_loop


def _is_tq(worker: object) -> bool:
    # by name: the class arrives by value, so there is no object to compare with
    return any(base.__name__ == _TQ_WORKER for base in type(worker).__mro__)


def _switch_on(
    signature: inspect.Signature, worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with tracing on where sampling allows it and the trajectory's numbers as plain values."""
    bound = signature.bind(worker, *args, **kwargs)
    trajectory = bound.arguments["trajectory"]
    plain = {**trajectory, "sample_index": _plain(trajectory["sample_index"]), "step": _plain(trajectory["step"])}
    session_id = kwargs.get("session_id")
    if session_id is not None:
        plain["rollout_n"] = session_id
    bound.arguments["trajectory"] = plain
    bound.arguments["trace"] = getattr(trajectory, "traced", True)
    return bound.args[1:], bound.kwargs


def _get_trajectory_info(original: Callable[..., Awaitable[Any]], config: Any) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(original)
    async def get_trajectory_info(*args: Any, **kwargs: Any) -> Any:
        found = await original(*args, **kwargs)
        # verl 0.6 has no limit
        limit = getattr(config.get_instance(), _LIMIT, None) if recording() else None
        if limit is None:
            return found
        try:
            return _choose(found, limit)
        except Exception as error:  # noqa: BLE001
            warn_once("sampling", f"the sampling limit: {type(error).__name__}: {error}; all trajectories are recorded")
            return found

    return get_trajectory_info


def _choose(found: list[dict[str, Any]], limit: int) -> list[_Trajectory]:
    """Copies of the trajectories' dicts, of which those of at most `limit` samples are to be traced."""
    samples = [_plain(trajectory["sample_index"]) for trajectory in found]
    unique = list(dict.fromkeys(samples))
    kept = set(unique if limit >= len(unique) else _random.sample(unique, limit))
    out = []
    for trajectory, sample in zip(found, samples, strict=True):
        marked = _Trajectory(trajectory)
        marked.traced = sample in kept
        out.append(marked)
    return out


def _plain(value: Any) -> Any:
    """The Python value in a tensor or numpy scalar; anything else as it is."""
    item = getattr(value, "item", None)
    return item() if callable(item) else value
