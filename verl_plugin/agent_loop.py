"""What verl's agent-loop worker does not say itself: `uid`, tracing on the default trainer (TransferQueue), rewards.

`AgentLoopWorkerTQ` calls `_run_agent_loop` with `trace=False` for every rollout. Here, only while a recording is
active, tracing is switched on for it, `rollout_n` is the session's number, and the sampling limit is applied as the
older worker applies it: at most that many samples per call of `generate_sequences`, at random, each with all its
rollouts.

What is known of a rollout only after its `run` has ended, its reward above all, is recorded as its scores (`rewards`).

`AgentLoopWorkerTQ` travels to Ray by value and its base by reference, so the base is what is wrapped, in the worker. In
verl 0.5 the worker is an actor class, which travels by value with what wraps its methods: those wrappers refer to
nothing but functions that a worker can import.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from ..recorder.context import Place, expected_place, extra_attributes
from ..recorder.counters import warn_once
from . import rewards
from .carry import carried
from .rollout_trace import recording

__all__ = ["replace", "run_recorded"]

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
    if not inspect.isclass(worker):
        # 0.5 has neither a uid, nor a default trainer that switches tracing off, nor a sampling limit
        actor: Any = worker.__ray_metadata__.modified_class
        actor._run_agent_loop = _run_agent_loop(actor._run_agent_loop)
        return
    run, info = worker.__dict__["_run_agent_loop"], module.get_trajectory_info
    config = module.RolloutTraceConfig
    score = worker.__dict__.get("_compute_score")
    cls: Any = worker
    cls._run_agent_loop = _run_agent_loop(run)
    module.get_trajectory_info = _get_trajectory_info(info, config)  # type: ignore[attr-defined]
    if score is not None:
        # 0.6 has no function of its own for it
        cls._compute_score = rewards.compute_score(score)


def _run_agent_loop(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(original)
    async def run_agent_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await run_recorded(original, self, args, kwargs)

    return run_agent_loop


async def run_recorded(
    original: Callable[..., Awaitable[Any]], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`original(worker, *args, **kwargs)`, with its attributes and scores recorded where a recording runs."""
    if not recording():
        return await original(worker, *args, **kwargs)
    extra, place = None, Place()
    join = rewards.Join()
    try:
        if kwargs.get("uid") is not None:
            extra = {"uid": str(kwargs["uid"])}
        bound = _signature(original).bind(worker, *args, **kwargs)
        join = rewards.join_of(worker, bound.arguments["trajectory"], kwargs)
        if _is_tq(worker) and not kwargs.get("trace", False):
            args, kwargs = _switch_on(bound, kwargs)
    except Exception as error:  # noqa: BLE001
        warn_once("agent-loop", f"attributes of a trajectory: {type(error).__name__}: {error}; verl goes on")
    tokens = extra_attributes.set(extra), expected_place.set(place), rewards.expected_join.set(join)
    try:
        # 0.6 scores in here, without a function of its own
        with contextlib.nullcontext() if hasattr(worker, "_compute_score") else carried():
            output = await original(worker, *args, **kwargs)
    finally:
        extra_attributes.reset(tokens[0])
        expected_place.reset(tokens[1])
        rewards.expected_join.reset(tokens[2])
    rewards.tell_after(place, join, output)
    return output


@functools.lru_cache(maxsize=8)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _is_tq(worker: object) -> bool:
    # by name: the class arrives by value, so there is no object to compare with
    return any(base.__name__ == _TQ_WORKER for base in type(worker).__mro__)


def _switch_on(bound: inspect.BoundArguments, kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with tracing on where sampling allows it and the trajectory's numbers as plain values."""
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
