"""What the Weave server now holds, as the official `weave` client tells it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from .server_env import Server

__all__ = ["ServerCall", "read_back"]


class ServerCall(NamedTuple):
    """One call of a Weave project; `children` in the order in which they started."""

    id: str
    op: str
    status: str
    started_at: datetime
    seconds: float | None
    attributes: dict[str, Any]
    output: Any
    exception: str | None
    children: list[ServerCall]

    def as_json(self) -> dict[str, Any]:
        """Plain data, without the inputs and outputs."""
        return {
            "id": self.id,
            "op": self.op,
            "status": self.status,
            "started_at": self.started_at.isoformat(),
            "seconds": self.seconds,
            "attributes": self.attributes,
            "exception": self.exception,
            "children": [child.as_json() for child in self.children],
        }


def read_back(server: Server, project: str) -> list[ServerCall]:
    """All call trees of `project` (`entity/name`), by their roots, sorted by step, sample and rollout.

    The caller has put `server.client_environment()` into the environment, where W&B's libraries look for it.
    """
    from weave.trace.weave_client import WeaveClient
    from weave.trace_server_bindings.remote_http_trace_server import RemoteHTTPTraceServer

    entity, name = project.split("/")
    # weave.init would patch libraries, install a tracer provider and ask the internet for its newest version
    transport = RemoteHTTPTraceServer(server.url, username="api", password=server.api_key)
    client = WeaveClient(entity, name, transport, ensure_project_exists=False)
    calls = [(call.parent_id, _server_call(call)) for call in client.get_calls()]
    return _trees(calls)


def _server_call(call: Any) -> ServerCall:
    # an enum in some versions of the client, plain text in others
    status = (call.summary or {}).get("weave", {}).get("status")
    return ServerCall(
        id=call.id,
        op=call.func_name,
        status=str(getattr(status, "value", status)),
        started_at=call.started_at,
        seconds=(call.ended_at - call.started_at).total_seconds() if call.ended_at else None,
        attributes={
            key: value for key, value in dict(call.attributes or {}).items() if key not in ("weave", "verl_trace")
        },
        output=call.output,
        exception=call.exception,
        children=[],
    )


def _trees(calls: list[tuple[str | None, ServerCall]]) -> list[ServerCall]:
    by_id = {call.id: call for _, call in calls}
    roots: list[ServerCall] = []
    for parent_id, call in sorted(calls, key=lambda pair: pair[1].started_at):
        parent = by_id.get(parent_id or "")
        (roots if parent is None else parent.children).append(call)
    return sorted(roots, key=_place)


def _place(call: ServerCall) -> tuple[int, int, int]:
    found = call.attributes.get
    return (found("step", 0), found("sample_index", 0), found("rollout_n", 0))
