"""After sending: what the server holds is held against what was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.demo.server_env import Server
from verl_trace.uploader import check, upload
from verl_trace.uploader.check import DIFFERS, MOVED, REWRITTEN, STRIPPED, compare, count_traces, same_instant
from verl_trace.uploader.payload import Encoded
from verl_trace.uploader.plan import Trace

Stored = Callable[[str], dict[str, Any]]


@pytest.fixture
def recording(writer: Any, project: str, tmp_path: Path) -> Any:
    """Thirty trajectories of two calls."""
    recording = writer(tmp_path / "runs", project)
    for _ in range(30):
        root = recording.start("A.run", inputs={"n": 1})
        recording.call("B.run", {"text": "ü", "numbers": [1, 2.5, None, 1e300, 2**53 + 1]}, parent=root)
        recording.end(root)
    recording.close()
    return recording


@pytest.mark.parametrize(("how", "checked"), [("none", None), ("counts", 60), ("deep", 60)])
def test_all_is_there(wandb_login: Server, recording: Any, how: str, checked: int | None) -> None:
    """Every kind of check finds a good upload good, the first time and the second."""
    for _ in range(2):
        result = upload(recording.folder, check=how)

        report = result.runs[0]
        assert (report.recorded, report.stored, report.failed, report.checked) == (60, 60, 0, checked)
        assert (report.differences, report.more) == ([], 0)
        assert report.compared == (60 if how == "deep" else None)


def test_calls_that_a_server_confirms_and_does_not_have(
    proxy: Any, recording: Any, project: str, stored: Stored, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers 200 and stores nothing is found out by counting: the calls count as failed, not as sent."""
    monkeypatch.setattr(check, "_LAG", (0.01,))
    proxy.decide = lambda path, body: fault(299, content=b"{}") if path.endswith("/complete") else None

    result = upload(recording.folder)

    assert (result.sent, result.failed, len(stored(project))) == (0, 60, 0)
    assert "does not show it" in result.runs[0].failures[0].reason
    proxy.decide = lambda path, body: None
    assert upload(recording.folder).sent == 60


def test_calls_beyond_the_recorded_ones(wandb_login: Server, writer: Any, project: str, tmp_path: Path) -> None:
    """A copy with fewer calls than the server has: nothing is wrong, and the number of the others is told."""
    recording = writer(tmp_path / "runs", project)
    root = recording.start("A.run")
    recording.call("B.run", parent=root)
    older = recording.path.read_bytes()
    recording.call("C.run", parent=root)
    recording.age(3600)
    upload(recording.folder)
    recording.path.write_bytes(older)
    recording.age(3600)

    result = upload(recording.folder)

    assert (result.sent, result.failed, result.runs[0].checked, result.runs[0].more) == (0, 0, 2, 1)


@pytest.mark.parametrize(
    ("shown", "kind"),
    [
        ({"_weave": {"error": "<EXCEEDS_LIMITS>"}}, STRIPPED),
        ({"_type": "CustomWeaveType", "weave_type": {"type": "weave.Content"}, "files": {}}, REWRITTEN),
    ],
)
def test_value_that_the_server_changes(
    proxy: Any, recording: Any, monkeypatch: pytest.MonkeyPatch, shown: Any, kind: str
) -> None:
    """Deep finds the stub that a server leaves for a value that is too large, and tells it from what it makes of a long
    data URI. (W&B's hosted storage does both, its SQLite storage neither: a proxy does it here.)"""
    handler = proxy.RequestHandlerClass
    reply = handler.reply

    def changing(self: Any, status: int, content: bytes, *rest: Any, **named: Any) -> None:
        if self.path.endswith("/stream_query"):
            rows = [json.loads(row) for row in content.splitlines()]
            changed = [row | {"output": shown} if (row.get("output") or {}).get("text") else row for row in rows]
            content = b"\n".join(json.dumps(row).encode() for row in changed)
        reply(self, status, content, *rest, **named)

    monkeypatch.setattr(handler, "reply", changing)

    result = upload(recording.folder, check="deep")

    assert result.runs[0].differing == {kind: 30}
    assert {difference.field for difference in result.runs[0].differences} == {"output"}
    assert result.failed == 0


def call(output: str) -> Encoded:
    """A call with this JSON as output."""
    head = b'"trace_id":"t","parent_id":null,"op_name":"op","started_at":"2026-03-01T12:00:00.000001Z"'
    tail = b'"ended_at":"2026-03-01T12:00:01Z","exception":null,"summary":{"status_counts":{"success":1}}'
    return Encoded("i", "t", "op", "me/p", head, b'{"a":1}', b"{}", tail, output.encode())


def row(output: Any, **fields: Any) -> dict[str, Any]:
    """What a server would hold of it."""
    return {
        "trace_id": "t", "parent_id": None, "op_name": "op", "started_at": "2026-03-01T12:00:00.000001+00:00",
        "ended_at": "2026-03-01T12:00:01.000000Z", "exception": None, "inputs": {}, "output": output,
        "attributes": {"a": 1, "weave": {"kind": "x"}},
        "summary": {"status_counts": {"success": 1}, "weave": {"status": "success"}}, **fields,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "held", "kinds"),
    [
        ('{"a":1,"b":[1,2]}', {"b": [1, 2.0], "a": 1}, []),
        ("[1,[2,3]]", [1, [2, 4]], [("output.1.1", DIFFERS)]),
        ("1", True, [("output", DIFFERS)]),
        ("9007199254740993", 9007199254740992, [("output", REWRITTEN)]),
        ('"x"', None, [("output", DIFFERS)]),
        ('{"a":1}', {}, [("output", DIFFERS)]),
        ('"data:…"', {"_type": "CustomWeaveType"}, [("output", REWRITTEN)]),
        ('{"a":[1,2]}', {"a": {"_moved": "list", "preview": [1]}}, [("output.a", MOVED)]),
        ('{"a":"x"}', {"a": {"_weave": {"error": "<EXCEEDS_LIMITS>"}}}, [("output.a", STRIPPED)]),
        ("[" * 400 + "]" * 400, json.loads("[" * 400 + "]" * 400), []),
    ],
)
def test_normal_form(sent: str, held: Any, kinds: list[tuple[str, str]]) -> None:
    """Order of keys, 1 and 1.0 and the server's own additions do not count; every other change does."""
    assert [(found.field, found.kind) for found in compare(call(sent), row(held))] == kinds


def test_times_are_compared_as_instants() -> None:
    """Another way to write a moment is no other moment; a microsecond is."""
    assert same_instant("2026-03-01T12:00:00.120000Z", "2026-03-01T12:00:00.12+00:00")
    assert not same_instant("2026-03-01T12:00:00.120000Z", "2026-03-01T12:00:00.120001Z")
    assert [found.field for found in compare(call("1"), row(1, ended_at=None))] == ["ended_at"]


def test_a_lost_call_whose_neighbour_is_there() -> None:
    """Of a trajectory of which single calls were sent, a number says nothing: the calls themselves are asked for."""

    class Holding:
        def count(self, trace_ids: list[str]) -> int:
            return 1

        def existing(self, ids: list[str]) -> dict[str, str]:
            return {key: "2026" for key in ids if key == "neighbour"}

    lost = Trace("trace", ["meant"], b"mark", left=0, remembered=True, partial=True)

    assert count_traces(Holding(), [lost]).missing == [(lost, "meant")]  # type: ignore[arg-type]
