"""Trajectories, calls and turns as rows: the columns that `sql` and `export` share.

Values of the run's own making (attributes, scores, inputs, output) are JSON in a text column: their types may differ
from row to row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..reader import Trajectory
from ..reader.conversation import Decode, conversation
from ..reader.facts import trajectory_facts
from ..reader.kinds import MODEL, kinds_of, tokens_of
from ..reader.payloads import json_text
from ..reader.score_names import flat_scores
from ..reader.steps import number_of

__all__ = ["TABLES", "Row", "call_rows", "trajectory_row", "turn_rows"]

Row = dict[str, Any]

_PLACE = {
    "run": "VARCHAR",
    "trace_id": "VARCHAR",
    "attempt": "VARCHAR",
    "step": "BIGINT",
    "sample_index": "VARCHAR",
    "rollout_n": "BIGINT",
    "validate": "BOOLEAN",
}

# Table -> column -> type of DuckDB. Times are UTC, durations seconds.
TABLES: dict[str, dict[str, str]] = {
    "trajectories": {
        **_PLACE,
        "project": "VARCHAR",
        "node": "VARCHAR",
        "op": "VARCHAR",
        "status": "VARCHAR",
        "started_at": "TIMESTAMP",
        "duration": "DOUBLE",
        "reward": "DOUBLE",
        "turns": "BIGINT",
        "tokens": "BIGINT",
        "calls": "BIGINT",
        "errors": "BIGINT",
        "attributes": "JSON",
        "scores": "JSON",
    },
    "calls": {
        **_PLACE,
        "id": "VARCHAR",
        "parent_id": "VARCHAR",
        "node": "VARCHAR",
        "op": "VARCHAR",
        "kind": "VARCHAR",
        "status": "VARCHAR",
        "started_at": "TIMESTAMP",
        "ended_at": "TIMESTAMP",
        "duration": "DOUBLE",
        "tokens": "BIGINT",
        "exception_type": "VARCHAR",
        "exception_message": "VARCHAR",
        "exception": "JSON",
        "inputs": "JSON",
        "output": "JSON",
    },
    "turns": {
        **_PLACE,
        "turn": "BIGINT",
        "role": "VARCHAR",
        "name": "VARCHAR",
        "text": "VARCHAR",
        "tokens": "BIGINT",
        "arguments": "JSON",
        "tool_calls": "JSON",
        "call_id": "VARCHAR",
        "status": "VARCHAR",
        "duration": "DOUBLE",
    },
}


def _place(run: str, facts: dict[str, Any]) -> Row:
    return {
        "run": run,
        "trace_id": facts["trace_id"],
        "attempt": facts["attempt"],
        "step": _integer(facts["step"]),
        # an index of the data set or any name
        "sample_index": None if facts["sample_index"] is None else str(facts["sample_index"]),
        "rollout_n": _integer(facts["rollout_n"]),
        "validate": bool(facts["validate"]),
    }


def trajectory_row(run: str, project: str, trajectory: Trajectory) -> Row:
    """The row of a trajectory."""
    facts = trajectory_facts(trajectory)
    return {
        **_place(run, facts),
        "project": project,
        "node": trajectory.calls[0].writer.node if trajectory.calls else None,
        **{name: facts[name] for name in ("op", "status", "duration", "turns", "tokens", "calls", "errors")},
        "started_at": _time(facts["started_at"]),
        "reward": number_of(facts.get("reward")),
        "attributes": json_text(trajectory.attributes),
        "scores": json_text(flat_scores(trajectory, ())),
    }


def call_rows(run: str, trajectory: Trajectory, *, payloads: bool) -> Iterator[Row]:
    """A row a call; without `payloads`, inputs and output are null."""
    place = _place(run, trajectory_facts(trajectory))
    kinds = kinds_of(trajectory.calls)
    for call in trajectory.calls:
        exception = call.exception
        yield {
            **place,
            "id": call.id,
            "parent_id": call.parent_id,
            "node": call.writer.node,
            "op": call.op,
            "kind": kinds[call.id],
            "status": call.status,
            "started_at": _time(call.started_at),
            "ended_at": _time(call.ended_at),
            "duration": call.duration,
            "tokens": tokens_of(call) if kinds[call.id] == MODEL else None,
            "exception_type": None if exception is None else str(exception.get("type")),
            "exception_message": None if exception is None else str(exception.get("message")),
            "exception": None if exception is None else json_text(exception),
            "inputs": _raw(call.inputs) if payloads else None,
            "output": _raw(call.output()) if payloads else None,
        }


def turn_rows(run: str, trajectory: Trajectory, decode: Decode = None) -> Iterator[Row]:
    """A row a turn, numbered from 0."""
    place = _place(run, trajectory_facts(trajectory))
    for number, turn in enumerate(conversation(trajectory, decode)):
        yield {
            **place,
            "turn": number,
            "role": turn.role,
            "name": turn.name or None,
            "text": turn.text,
            "tokens": turn.tokens,
            "arguments": None if turn.arguments is None else json_text(turn.arguments),
            "tool_calls": json_text([{"name": asked.name, "arguments": asked.arguments} for asked in turn.tool_calls]),
            "call_id": turn.call.id if turn.call is not None else None,
            "status": turn.call.status if turn.call is not None else None,
            "duration": turn.call.duration if turn.call is not None else None,
        }


def _raw(payload: bytes | None) -> str | None:
    """A payload as text that is JSON: what a disk broke is null, and so is nothing."""
    if not payload:
        return None
    text = payload.decode("utf-8", "replace")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return text


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63 else None


def _time(text: str | None) -> str | None:
    """As DuckDB reads it: UTC without a zone."""
    return text.removesuffix("Z").replace("T", " ") if text else None
