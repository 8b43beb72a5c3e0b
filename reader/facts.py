"""What can be asked of a trajectory in one word: the names that filters, listings and exports share."""

from __future__ import annotations

from typing import Any

from .calls import Trajectory
from .outline import PLACES, Outline, outline_of
from .score_names import flat_scores

__all__ = ["FACTS", "trajectory_facts"]

# In the order of columns; attributes of the trajectory that are none of these come behind them.
FACTS = (
    "trace_id",
    "attempt",
    "step",
    "sample_index",
    "rollout_n",
    "validate",
    "experiment_name",
    "op",
    "status",
    "started_at",
    "duration",
    "calls",
    "errors",
    "turns",
    "tokens",
)


def trajectory_facts(trajectory: Trajectory | Outline) -> dict[str, Any]:
    """Name -> value. `status`: the worst of its calls (error, unfinished, success); `duration`: the root's, in seconds.

    `turns` and `tokens` are what the model was asked for and what it wrote. Attributes of the trajectory are in it
    under their own names, where these are not taken, and so are its scores (`score_names`): `reward`, `num_turns`, …
    `node` and `rank`, of the process that made the root call, give way to attributes of these names.
    """
    if isinstance(trajectory, Outline):
        # asked for by the filters, and again by whoever prints
        if trajectory.facts is None:
            trajectory.facts = _facts(trajectory)
        return trajectory.facts
    return _facts(outline_of(trajectory))


def _facts(outline: Outline) -> dict[str, Any]:
    figures, attributes = outline.figures, outline.attributes
    head = figures.place.head
    facts: dict[str, Any] = {
        "trace_id": outline.trace_id,
        "attempt": outline.attempt,
        **{name: head.get(name, attributes.get(name)) for name in PLACES},
        "op": figures.op,
        "status": figures.status,
        "started_at": figures.started_at,
        "duration": figures.duration,
        "calls": figures.calls,
        "errors": figures.errors,
        "turns": figures.turns,
        "tokens": figures.tokens,
    }
    known = {**attributes, **facts}
    everything = {**known, **flat_scores(outline, known)}
    writer = outline.writer
    for name, value in (("node", writer.node), ("rank", writer.rank)) if writer is not None else ():
        if value:
            everything.setdefault(name, value)
    return everything
