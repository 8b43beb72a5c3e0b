"""Trajectories as OpenTelemetry spans, in OTLP's JSON: one ExportTraceServiceRequest for each."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from typing import Any

from ..reader import Call, Run, Trajectory
from ..reader.kinds import MODEL, kinds_of
from ..reader.payloads import json_text

__all__ = ["otlp_request"]

_INTERNAL, _CLIENT = 1, 3
_OK, _ERROR = 1, 2
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Payloads are JSON texts of this many characters at most; a collector refuses messages of some MB.
_MAX_TEXT = 16_384
_DIGITS = set("0123456789abcdef")


def otlp_request(run: Run, trajectory: Trajectory) -> dict[str, Any]:
    """One request. A call that never ended ends when its process was last seen, with status error."""
    resource = {"service.name": run.project_name, "verl_trace.experiment_name": run.experiment_name}
    kinds = kinds_of(trajectory.calls)
    spans = [_span(call, kinds[call.id]) for call in trajectory.calls]
    scope = {"scope": {"name": "verl_trace"}, "spans": spans}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}


def _span(call: Call, kind: str) -> dict[str, Any]:
    begin = _nanoseconds(call.started_at)
    if call.duration is not None:
        end = begin + max(0, round(call.duration * 1e9))
    else:
        end = max(begin, _nanoseconds(call.last_seen_at))
    told: dict[str, Any] = {
        "verl_trace.id": call.id,
        "verl_trace.attempt": call.writer.attempt,
        **call.attributes,
        "input.value": _text(call.inputs),
        "output.value": _text(call.output()),
    }
    span = {
        "traceId": _hex(call.trace_id, 32),
        "spanId": _hex(call.id, 16),
        "name": call.op,
        "kind": _CLIENT if kind == MODEL else _INTERNAL,
        "startTimeUnixNano": str(begin),
        "endTimeUnixNano": str(end),
        "attributes": _attributes({name: value for name, value in told.items() if value is not None}),
        "status": {"code": _OK},
    }
    if call.parent_id is not None:
        span["parentSpanId"] = _hex(call.parent_id, 16)
    if call.unfinished:
        span["status"] = {"code": _ERROR, "message": "the call never ended"}
    if call.exception is not None:
        error, message = str(call.exception.get("type")), str(call.exception.get("message"))
        span["status"] = {"code": _ERROR, "message": f"{error}: {message}"}
        told = {"exception.type": error, "exception.message": message}
        span["events"] = [{"name": "exception", "timeUnixNano": str(end), "attributes": _attributes(told)}]
    return span


def _hex(call_id: str, digits: int) -> str:
    """The last digits of a UUID: they are the random ones. Of other ids their hash, and of zeros, which none may be."""
    plain = call_id.replace("-", "").lower()
    if len(plain) < digits or not set(plain) <= _DIGITS or not plain[-digits:].strip("0"):
        plain = hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()
    return plain[-digits:]


def _nanoseconds(time: str) -> int:
    try:
        since = datetime.fromisoformat(time.replace("Z", "+00:00")) - _EPOCH
    except ValueError:
        return 0
    return max(0, (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000)


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": str(key), "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        # 64 bits are a text in protobuf's JSON
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value if isinstance(value, str) else json_text(value)}


def _text(payload: bytes | None) -> str | None:
    if payload is None:
        return None
    text = payload.decode("utf-8", "replace")
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text):,} characters)"
