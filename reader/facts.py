"""What can be asked of a trajectory in one word: the names that filters, listings and exports share."""

from __future__ import annotations

from typing import Any

from .calls import Trajectory
from .kinds import MODEL, kind_of, tokens_of
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


def trajectory_facts(trajectory: Trajectory) -> dict[str, Any]:
    """Name -> value. `status`: the worst of its calls (error, unfinished, success); `duration`: the root's, in seconds.

    `turns` and `tokens` are what the model was asked for and what it wrote. Attributes of the trajectory are in it
    under their own names, where these are not taken, and so are its scores (`score_names`): `reward`, `num_turns`, …
    `node` and `rank`, of the process that made the root call, give way to attributes of these names.
    """
    root = trajectory.root
    first = root if root is not None else (trajectory.calls[0] if trajectory.calls else None)
    attributes = trajectory.attributes
    head = first.head if first is not None else {}
    facts: dict[str, Any] = {
        "trace_id": trajectory.trace_id,
        "attempt": first.writer.attempt if first is not None else "",
        **{name: head.get(name, attributes.get(name)) for name in FACTS[2:7]},
        "op": root.op if root is not None else "",
        "status": status_of(trajectory),
        "started_at": first.started_at if first is not None else "",
        "duration": root.duration if root is not None else None,
        "calls": len(trajectory.calls),
        "errors": sum(call.status == "error" for call in trajectory.calls),
        "turns": sum(kind_of(call) == MODEL for call in trajectory.calls),
        "tokens": tokens_of(trajectory),
    }
    known = {**attributes, **facts}
    everything = {**known, **flat_scores(trajectory, known)}
    for name, value in (("node", first.writer.node), ("rank", first.writer.rank)) if first is not None else ():
        if value:
            everything.setdefault(name, value)
    return everything


def status_of(trajectory: Trajectory) -> str:
    """`error` where a call raised, else `unfinished` where one has no end, else `success`."""
    found = {call.status for call in trajectory.calls}
    return "error" if "error" in found else "unfinished" if "unfinished" in found else "success"
