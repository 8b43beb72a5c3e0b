"""What `export --format otlp` writes is what OpenTelemetry's own messages can be read from."""

from __future__ import annotations

import base64
import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import HOSTILE, trajectory

json_format: Any = importlib.import_module("google.protobuf.json_format")
service: Any = importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
Cli = Callable[..., Any]
GOLDEN_RUN = Path(__file__).parents[1] / "golden" / "v1"
# OTLP's JSON has these as hexadecimal digits, where protobuf's own JSON has base64.
IDS = {"traceId": 16, "spanId": 8, "parentSpanId": 8}


def request_of(line: str) -> Any:
    """The message that a line says; every field is known, and of its type."""

    def as_protobuf(value: dict[str, Any]) -> dict[str, Any]:
        for name in IDS.keys() & value.keys():
            data = bytes.fromhex(value[name])
            assert len(data) == IDS[name]
            assert any(data), "an id of zeros is none"
            value[name] = base64.b64encode(data).decode()
        return value

    known = json.loads(line, object_hook=as_protobuf)
    return json_format.ParseDict(known, service.ExportTraceServiceRequest(), ignore_unknown_fields=False)


def odd(writer: Callable[..., Any], folder: Path) -> Path:
    """Values and times that protobuf has no form for, ids that are no UUIDs, a call that never ends."""
    made = writer(folder, HOSTILE)
    trajectory(made, 2**63 + 1, {"a": [HOSTILE, None]}, 1, answer=HOSTILE, big=-(2**63), small=1e-300, none=None)
    made.start("never ends", step=2)
    made.append(
        b'{"kind":"end","trace_id":"t","id":"only-an-end","op":5,"duration":-1,"started_at":"1066-01-01T00:00:00Z"}'
    )
    made.append(b'{"kind":"start","trace_id":"00000000-0000-0000-0000-000000000000","id":"0000","started_at":"soon"}')
    made.age(3600)
    return Path(made.folder)


@pytest.mark.parametrize("run", ["rollouts", "odd", "golden"])
def test_opentelemetry_reads_it(
    cli: Cli, request: pytest.FixtureRequest, writer: Callable[..., Any], tmp_path: Path, run: str
) -> None:
    """As many requests as trajectories, and in them as many spans as calls, each with parent, times and status."""
    if run == "golden":
        folder = shutil.copytree(GOLDEN_RUN, tmp_path / "golden")
    else:
        folder = odd(writer, tmp_path / "odd") if run == "odd" else request.getfixturevalue("rollouts")
    assert cli("export", folder, "--format", "otlp", "--out", tmp_path / "o.jsonl").code == 0
    requests = [request_of(line) for line in (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()]
    facts = json.loads(cli("ls", "-t", folder, "--json").out)
    spans = [span for one in requests for span in one.resource_spans[0].scope_spans[0].spans]

    assert len(requests) == len(facts) > 0
    assert len(spans) == sum(fact["calls"] for fact in facts)
    assert sum(span.status.code == 2 for span in spans) >= sum(fact["errors"] for fact in facts)
    for one in requests:
        ids = {span.span_id for span in one.resource_spans[0].scope_spans[0].spans}
        assert one.resource_spans[0].resource.attributes[0].key == "service.name"
        for span in one.resource_spans[0].scope_spans[0].spans:
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            assert not span.parent_span_id or run != "rollouts" or span.parent_span_id in ids
