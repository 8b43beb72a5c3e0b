"""Calls and turns as JSON values, with the names that every command prints them under."""

from __future__ import annotations

from typing import Any

from ..reader import Call
from ..reader.conversation import Turn
from ..reader.kinds import MODEL, tokens_of

__all__ = ["call_json", "turn_json"]


def call_json(call: Call, kind: str) -> dict[str, Any]:
    """A call, of a kind that its trajectory tells (`kinds_of`), without its inputs and output."""
    return {
        "id": call.id,
        "trace_id": call.trace_id,
        "parent_id": call.parent_id,
        "op": call.op,
        "kind": kind,
        "status": call.status,
        "started_at": call.started_at,
        "ended_at": call.ended_at,
        "duration": call.duration,
        "tokens": tokens_of(call) if kind == MODEL else None,
        "exception": call.exception,
        "orphan": call.orphan,
        "node": call.writer.node,
        "clock_skew": call.clock_skew,
    }


def turn_json(turn: Turn) -> dict[str, Any]:
    """A turn of a conversation."""
    return {
        "role": turn.role,
        "name": turn.name or None,
        "text": turn.text,
        "tokens": turn.tokens,
        "arguments": turn.arguments,
        "tool_calls": [{"name": asked.name, "arguments": asked.arguments} for asked in turn.tool_calls],
        "call_id": turn.call.id if turn.call is not None else None,
        "started_at": turn.call.started_at if turn.call is not None else None,
        "duration": turn.call.duration if turn.call is not None else None,
        "status": turn.call.status if turn.call is not None else None,
        "exception": turn.call.exception if turn.call is not None else None,
    }
