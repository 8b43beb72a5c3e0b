"""What verl's agent loop knows of a rollout after its `run` has ended: reward, extras, turns; and how it was scored.

The scores are records of their own and belong to the root call of the same task. The scoring call, where a reward
worker is asked, is a child of that root; `VERL_TRACE_EXTRA=0` leaves the call out, not the scores.
"""

from __future__ import annotations

import functools
import hashlib
from array import array
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from .. import recorder
from ..recorder import session as sessions
from ..recorder.context import Place, current_attributes, current_span, tracing
from ..recorder.counters import warn_once
from ..recorder.score import Join, write_scores
from . import extra
from .carry import carried
from .rollout_trace import recording

__all__ = [
    "Join",
    "compute_score",
    "expected_join",
    "join_of",
    "response_digest",
    "row_number",
    "score_recorded",
    "tell_after",
]

# What names the rollout that is being made, for the score that the trainer will compute.
expected_join: ContextVar[Join] = ContextVar("verl_trace_expected_join", default=Join())  # noqa: B039


def join_of(worker: Any, trajectory: dict[str, Any], kwargs: dict[str, Any]) -> Join:
    """What the arguments of `_run_agent_loop` say of the rollout's place in its group."""
    uid, session = kwargs.get("uid"), kwargs.get("session_id")
    return Join(
        uid=None if uid is None else str(uid),
        session=session if isinstance(session, int) else None,
        row=row_number(kwargs.get("priority")),
        group_size=_group_size(worker, bool(trajectory.get("validate"))),
    )


def row_number(value: Any) -> int | None:
    """verl's number of a row, which may come in a numpy scalar."""
    value = value.item() if hasattr(value, "item") else value
    return value if type(value) is int else None


def _group_size(worker: Any, validate: bool) -> int | None:
    try:
        rollout = worker.config.actor_rollout_ref.rollout
        size = rollout.val_kwargs.get("n", 1) if validate else rollout.get("n", 1)
    except Exception:  # noqa: BLE001
        # a worker of somebody's own: then nobody knows when a group is whole
        return None
    return size if isinstance(size, int) else None


def compute_score(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`AgentLoopWorker._compute_score` (verl 0.7 and later) with the scoring call and the scores recorded."""

    @functools.wraps(original)
    async def _compute_score(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await score_recorded(original, self, args, kwargs)

    return _compute_score


async def score_recorded(
    original: Callable[..., Awaitable[Any]], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`original(worker, *args, **kwargs)`, recorded; what it returns and raises is the same."""
    place, output, asks, about = None, None, False, {}
    try:
        trace = current_attributes.get() if recording() and tracing.get() else None
        place = trace.place if trace is not None else None
        if place is not None and place.root is not None:
            output = _output(args, kwargs)
            asks = output.reward_score is None and worker.reward_loop_worker_handles is not None
            about = _about(args, kwargs)
    except Exception as error:  # noqa: BLE001
        _warn(error)
        place = None
    if place is None or output is None:
        return await original(worker, *args, **kwargs)
    returned: Any = None

    async def make() -> None:
        nonlocal returned
        returned = await original(worker, *args, **kwargs)

    # the root may have ended, and is the parent all the same
    token = current_span.set(place.root) if current_span.get() is None else None
    try:
        await (_kind(original.__qualname__)(make, output).call(**about) if asks and extra.switched_on() else make())
    except BaseException as error:
        _tell(place, expected_join.get(), output, "reward_worker", error=error)
        raise
    finally:
        if token is not None:
            current_span.reset(token)
    if getattr(output, "reward_score", None) is not None or expected_join.get().session is not None:
        _tell(place, expected_join.get(), output, "reward_worker" if asks else "agent_loop")
    return returned


class _Scoring:
    """A scoring call that is about to be made; the record has what is worth reading of it."""

    def __init__(self, make: Callable[[], Awaitable[Any]], output: Any) -> None:
        self._make = make
        self._output = output


@functools.lru_cache(maxsize=8)
def _kind(name: str) -> Any:
    async def call(self: Any, data_source: Any = None, ground_truth: Any = None) -> Any:
        with carried():
            await self._make()
        try:
            extras = self._output.extra_fields.get("reward_extra_info")
            return {"reward_score": self._output.reward_score, "reward_extra_info": extras}
        except Exception as error:  # noqa: BLE001
            _warn(error)
            return None

    call.__qualname__ = name
    return type("_Scoring", (_Scoring,), {"call": recorder.rollout_trace_op(call)})


def tell_after(place: Place, join: Join, output: Any) -> None:
    """The scores of a rollout whose `_run_agent_loop` has returned, where they were not told before. Never raises."""
    if place.settled or place.root is None or output is None:
        return
    try:
        known = getattr(output, "reward_score", None) is not None
        if not known:
            # the trainer will score it, and knows the answer's ids
            join = join.answering(response_digest(output))
        _tell(place, join, output, "agent_loop")
    except Exception as error:  # noqa: BLE001
        _warn(error)


def _tell(place: Place, join: Join, output: Any, source: str, error: BaseException | None = None) -> None:
    try:
        session = sessions.current()
        if session is None or place.root is None:
            return
        scores = _scores(output)
        place.settled = True
        place.scores.update(scores)
        write_scores(
            session,
            scores,
            source=source,
            trace=place.attributes,
            trace_id=place.root.trace_id,
            join=join,
            error=error,
        )
    except Exception as trouble:  # noqa: BLE001
        _warn(trouble)


def _scores(output: Any) -> dict[str, Any]:
    """What an `AgentLoopOutput` of whatever version says."""
    fields = getattr(output, "extra_fields", None) or {}
    scores: dict[str, Any] = {"reward": getattr(output, "reward_score", None)}
    for name, value in (
        ("num_turns", getattr(output, "num_turns", None)),
        ("tool_rewards", fields.get("tool_rewards")),
        ("turn_scores", fields.get("turn_scores")),
        ("reward_extra_info", fields.get("reward_extra_info")),
    ):
        if value is not None:
            scores[name] = value
    return scores


def response_digest(output: Any) -> str | None:
    """16 hex digits over prompt and response ids, from lists or from tensors with padding; None where there are none.

    The output of an agent loop and its row in the trainer's batch have the same.
    """
    ids = getattr(output, "input_ids", None)
    if ids is not None:
        data = ids[output.attention_mask.bool()].cpu().numpy().astype("int64").tobytes()
    elif isinstance(getattr(output, "prompt_ids", None), list):
        data = array("q", [*output.prompt_ids, *output.response_ids]).tobytes()
    else:
        return None
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _output(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output that gets the reward: the last one of several."""
    given = args[0] if args else kwargs["outputs"] if "outputs" in kwargs else kwargs["output"]
    return given[-1] if isinstance(given, list) else given


def _about(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What of the sample decides the reward; the answer itself is the root call's output."""
    sample = kwargs.get("kwargs", args[1] if len(args) > 1 else None)
    if not isinstance(sample, dict):
        return {}
    model = sample.get("reward_model")
    truth = model.get("ground_truth") if isinstance(model, dict) else None
    return {"data_source": sample.get("data_source"), "ground_truth": truth}


def _warn(error: Exception) -> None:
    session = sessions.current()
    if session is not None:
        session.counters.drop("internal error scoring")
    warn_once("rewards", f"scores of a trajectory: {type(error).__name__}: {error}; verl goes on")
