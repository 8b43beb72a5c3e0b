"""Rewards computed in the trainer: by a reward model that shares the GPUs, or (verl 0.5, 0.6) by a reward function.

The trainer knows no trajectory. Its records say the group's `uid` and the session (default trainer), or the `uid`, the
row's number where verl gives one (`priority`, 0.9) and a hash of its ids, all of which stay when the trainer balances
its batch. The agent loop's record of the same rollout says the same beside the trajectory's id, and a reader joins the
two. Equal answers of one group without such a number are taken in the order of the rows.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any

from ..recorder.counters import warn_once
from ..recorder.score import Join, write_scores
from ..recorder.session import Session
from ..recorder.spans import encode_attributes
from .rewards import response_digest, row_number
from .rollout_trace import adopt

__all__ = ["watch_default_trainer", "watch_reward_functions", "watch_reward_loop"]

# Keys of the rows that the default trainer is about to have scored: {uid}_{session}_{index}.
_keys: ContextVar[Sequence[str] | None] = ContextVar("verl_trace_score_keys", default=None)


def watch_reward_loop(module: ModuleType) -> None:
    """Record what `compute_rm_score` of `RewardLoopManager` finds, in a module that has just been executed (0.7 on)."""
    original = module.RewardLoopManager.compute_rm_score

    @functools.wraps(original)
    def compute_rm_score(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, data, *args, **kwargs)
        _tell(lambda: (self.config, data, _rows_of(result)))
        return result

    module.RewardLoopManager.compute_rm_score = compute_rm_score


def watch_default_trainer(module: ModuleType) -> None:
    """Let the rows of the default trainer keep their keys while they are scored (0.9 on)."""
    original = module.PPOTrainer._compute_reward_colocate

    @functools.wraps(original)
    def compute_reward(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        token = _keys.set(getattr(batch, "keys", None))
        try:
            return original(self, batch, *args, **kwargs)
        finally:
            _keys.reset(token)

    module.PPOTrainer._compute_reward_colocate = compute_reward


def watch_reward_functions(module: ModuleType) -> None:
    """Record what reward managers of verl 0.5 and 0.6 find in the trainer: those that `load_reward_manager` gives."""
    original = module.load_reward_manager
    wrapped: set[type] = set()
    if hasattr(module, "extract_reward"):
        # 0.7 and later compute nothing in the trainer's process
        return

    @functools.wraps(original)
    def load_reward_manager(config: Any, *args: Any, **kwargs: Any) -> Any:
        manager = original(config, *args, **kwargs)
        try:
            if type(manager) not in wrapped:
                wrapped.add(type(manager))
                type(manager).__call__ = _call(type(manager).__call__, config)
        except Exception as error:  # noqa: BLE001
            _warn(error)
        return manager

    module.load_reward_manager = load_reward_manager  # type: ignore[attr-defined]


def _call(original: Callable[..., Any], config: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        # 0.6 scores in the rollout where it can, and then only reads it here
        known = _in_batch(data)
        result = original(self, data, *args, **kwargs)
        if not known:
            _tell(lambda: (config, data, _rows_of_function(result)))
        return result

    return call


def _in_batch(data: Any) -> bool:
    try:
        return "rm_scores" in data.batch.keys()  # noqa: SIM118  # a TensorDict has no `in`
    except Exception:  # noqa: BLE001
        return False


class _Rows:
    """Rewards of a batch and the extras of each row."""

    def __init__(self, rewards: list[float], extras: dict[str, Any]) -> None:
        self.rewards = rewards
        self.extras = extras

    def scores(self, row: int) -> dict[str, Any]:
        extras = {}
        for name, column in self.extras.items():
            if len(column) == len(self.rewards):
                extras[str(name)] = column[row]
        return {"reward": self.rewards[row], **({"reward_extra_info": extras} if extras else {})}


def _rows_of(result: Any) -> _Rows:
    names = result.meta_info.get("reward_extra_keys", [])
    columns = {name: result.non_tensor_batch[name] for name in names if name in result.non_tensor_batch}
    return _Rows(result.batch["rm_scores"].sum(-1).tolist(), columns)


def _rows_of_function(result: Any) -> _Rows:
    tensor = result["reward_tensor"] if isinstance(result, dict) else result
    extras = result.get("reward_extra_info", {}) if isinstance(result, dict) else {}
    return _Rows(tensor.sum(-1).tolist(), dict(extras))


def _tell(found: Callable[[], tuple[Any, Any, _Rows]]) -> None:
    """Record a batch's scores. Never raises."""
    try:
        config, data, rows = found()
        session = _session(config)
        if session is not None:
            _write(session, data, rows)
    except Exception as error:  # noqa: BLE001
        _warn(error)


def _session(config: Any) -> Session | None:
    rollout = config.actor_rollout_ref.rollout.get("trace") or {}
    # 0.6 and before name the run in the trainer's part alone
    names = rollout if rollout.get("project_name") else config.trainer
    return adopt(str(names.get("project_name")), str(names.get("experiment_name")), rollout.get("backend"))


def _write(session: Session, data: Any, rows: _Rows) -> None:
    info = data.meta_info or {}
    values = {"validate": bool(info.get("validate", False)), "experiment_name": session.experiment_name}
    if isinstance(info.get("global_steps"), int):
        values["step"] = info["global_steps"]
    trace = encode_attributes(values, session.experiment_name)
    now = time.time_ns()
    for row, join in _joins(data, len(rows.rewards)):
        write_scores(session, rows.scores(row), source="trainer", trace=trace, join=join, now=now)


def _joins(data: Any, count: int) -> list[tuple[int, Join]]:
    """The rows to tell of, and what each can be joined by."""
    keys = _keys.get()
    if keys is not None and len(keys) == count:
        # of a rollout with several outputs the last one is the trajectory's
        last: dict[tuple[str, str], tuple[int, int]] = {}
        for row, key in enumerate(keys):
            uid, session, index = key.rsplit("_", 2)
            last[uid, session] = max(last.get((uid, session), (-1, -1)), (int(index), row))
        return [(row, Join(uid=uid, session=int(session))) for (uid, session), (_, row) in last.items()]
    uids, numbers = (data.non_tensor_batch.get(name) for name in ("uid", "priority"))
    ids, mask = data.batch["input_ids"], data.batch["attention_mask"]
    out = []
    for row in range(count):
        response = response_digest(SimpleNamespace(input_ids=ids[row], attention_mask=mask[row]))
        name = None if uids is None else str(uids[row])
        number = None if numbers is None else row_number(numbers[row])
        out.append((row, Join(uid=name, row=number, response=response)))
    return out


def _warn(error: Exception) -> None:
    warn_once("trainer-scores", f"scores computed in the trainer: {type(error).__name__}: {error}; verl goes on")
