"""A trajectory's place travels with the data that verl sends to a reward worker, and the call there is recorded.

It is put into the pickled form of a `DataProto` and taken out again when that is unpickled, so that no batch ever has a
column or an entry more; a worker without the plugin would see one text more in `meta_info`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from .. import recorder
from ..recorder.counters import warn_once
from .rollout_trace import visit

__all__ = ["carried", "score_here", "watch_data", "watch_reward_worker", "watch_reward_worker_actor"]

# True while data on its way to a reward worker is made.
_carrying: ContextVar[bool] = ContextVar("verl_trace_carrying", default=False)
_KEY = "verl_trace_context"
_ATTRIBUTE = "_verl_trace_context"


@contextlib.contextmanager
def carried() -> Iterator[None]:
    """Data pickled inside carries the place of the current call."""
    token = _carrying.set(True)
    try:
        yield
    finally:
        _carrying.reset(token)


def watch_data(module: ModuleType) -> None:
    """Wrap how `DataProto` of `verl.protocol`, which has just been executed, is pickled."""
    cls = module.DataProto
    get_state, set_state = cls.__dict__["__getstate__"], cls.__dict__["__setstate__"]

    @functools.wraps(get_state)
    def getstate(self: Any) -> Any:
        state = get_state(self)
        return _with_place(state) if _carrying.get() else state

    @functools.wraps(set_state)
    def setstate(self: Any, state: Any) -> None:
        state, place = _without_place(state)
        set_state(self, state)
        if place is not None:
            setattr(self, _ATTRIBUTE, place)

    cls.__getstate__, cls.__setstate__ = getstate, setstate


def _with_place(state: Any) -> Any:
    try:
        *rest, meta_info = state
        context = recorder.current_context()
        if context is not None and type(meta_info) is dict:
            return (*rest, {**meta_info, _KEY: context.to_text()})
    except Exception as error:  # noqa: BLE001
        warn_once("carry", f"a trajectory's place does not travel: {type(error).__name__}: {error}")
    return state


def _without_place(state: Any) -> tuple[Any, str | None]:
    try:
        if type(state) is tuple and type(state[-1]) is dict and _KEY in state[-1]:
            *rest, meta_info = state
            place = meta_info[_KEY]
            return (*rest, {name: value for name, value in meta_info.items() if name != _KEY}), place
    except Exception as error:  # noqa: BLE001
        warn_once("carry", f"a trajectory's place was not found: {type(error).__name__}: {error}")
    return state, None


def watch_reward_worker(module: ModuleType) -> None:
    """Record `compute_score` of verl's reward worker, where a rollout asked for it (verl 0.7 and later)."""
    _wrap(module.RewardLoopWorker)


def watch_reward_worker_actor(module: ModuleType) -> None:
    """The same in verl 0.6, where the class is an actor class that travels by value."""
    _wrap(module.RewardManagerWorker.__ray_metadata__.modified_class)


def _wrap(cls: Any) -> None:
    original = cls.compute_score

    @functools.wraps(original)
    async def compute_score(self: Any, data: Any) -> Any:
        return await score_here(original, self, data)

    cls.compute_score = compute_score


async def score_here(original: Callable[..., Awaitable[Any]], worker: Any, data: Any) -> Any:
    """`original(worker, data)`, as a call of the trajectory that the data came from, where it says which."""
    place = getattr(data, _ATTRIBUTE, None)
    if place is None:
        return await original(worker, data)
    with recorder.use_context(place):
        try:
            visit()
            call = _kind(original.__qualname__)(lambda: original(worker, data))
            manager = type(getattr(worker, "reward_manager", None)).__name__
        except Exception as error:  # noqa: BLE001
            warn_once("reward-worker", f"a scoring call is not recorded: {type(error).__name__}: {error}")
            return await original(worker, data)
        return await call.call(manager)


class _Call:
    """A call that is about to be made."""

    def __init__(self, make: Callable[[], Awaitable[Any]]) -> None:
        self._make = make


@functools.lru_cache(maxsize=8)
def _kind(name: str) -> Any:
    async def call(self: Any, reward_manager: str) -> Any:
        return await self._make()

    call.__qualname__ = name
    return type("_Call", (_Call,), {"call": recorder.rollout_trace_op(call)})
