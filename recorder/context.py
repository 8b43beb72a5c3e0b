"""Where a call belongs: the current span and the trajectory's attributes, carried by context variables."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple

__all__ = ["TraceAttributes", "Where", "current_attributes", "current_span", "extra_attributes", "tracing"]


class Where(NamedTuple):
    """Ids of the span that new calls become children of."""

    id: str
    trace_id: str


class TraceAttributes(NamedTuple):
    """A trajectory's attributes, encoded once: `head` begins every record, `json` is the `attributes` object."""

    head: bytes
    json: bytes
    values: dict[str, Any]


current_span: ContextVar[Where | None] = ContextVar("verl_trace_span", default=None)
current_attributes: ContextVar[TraceAttributes | None] = ContextVar("verl_trace_attributes", default=None)
# False inside a trajectory that sampling left out: its calls, at any depth, are not recorded.
tracing: ContextVar[bool] = ContextVar("verl_trace_tracing", default=True)
# What an integration knows of the trajectory that is about to begin (verl's uid), for the next rollout_trace_attr.
extra_attributes: ContextVar[dict[str, Any] | None] = ContextVar("verl_trace_extra_attributes", default=None)
