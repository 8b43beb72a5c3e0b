"""What the uploader does when the server does not answer as hoped. The server is real, a proxy before it misbehaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from verl_trace.schemas.errors import CannotStart
from verl_trace.uploader.client import Client, Unreachable
from verl_trace.uploader.payload import Encoded
from verl_trace.uploader.target import Target

Stored = Callable[[str], dict[str, Any]]


@pytest.fixture
def client(proxy: Any, project: str) -> Client:
    return Client(target(proxy.url, project), max_wait=20)


def target(url: str, project: str) -> Target:
    return Target("demo", project, url, url, lambda: "Basic YXBpOmFueQ==")


def encoded(project: str, number: int, *, inputs: bytes = b"{}") -> Encoded:
    # ids must differ between projects, too: SQLite has one key for all
    call_id = f"{project[-8:]}-b3c4-7000-8000-{number:012d}"
    head = (
        f'"project_id":"demo/{project}","id":"{call_id}","trace_id":"{call_id}","parent_id":null,"op_name":"op",'
        '"started_at":"2026-03-01T12:00:00.000001Z"'
    )
    tail = '"ended_at":"2026-03-01T12:00:01Z","exception":null,"summary":{"status_counts":{"success":1,"error":0}}'
    return Encoded(call_id, call_id, "op", f"demo/{project}", head.encode(), b"{}", inputs, tail.encode(), b"1")


def many(project: str, count: int) -> list[Encoded]:
    return [encoded(project, number) for number in range(count)]


def first_only(path_end: str, fault: Any) -> Callable[[str, bytes], Any]:
    """A fault for the first request of a route."""
    pending = [fault]
    return lambda path, body: pending.pop() if pending and path.endswith(path_end) else None


@pytest.mark.parametrize(("status", "after"), [(500, True), (503, True), (0, True), (502, False), (0, False)])
def test_lost_answer_stores_nothing_twice(
    proxy: Any, client: Client, project: str, stored: Stored, fault: Any, status: int, after: bool
) -> None:
    """Whether or not the server had stored the calls when the answer was lost: they are there once, and count."""
    proxy.decide = first_only("/calls/complete", fault(status, after=after))
    calls = many(project, 5)

    outcome = client.store(calls)

    assert {call.id for call in outcome.stored} == {call.id for call in calls} == set(stored(project))
    assert len(proxy.sent("/calls/complete")) == (1 if after else 2)


def test_partly_stored_batch_is_completed(proxy: Any, client: Client, project: str, stored: Stored, fault: Any) -> None:
    """After an error only what is missing is sent again."""
    calls = many(project, 6)
    client.store(calls[:2])
    proxy.decide = first_only("/calls/complete", fault(500))

    outcome = client.store(calls)

    assert len(outcome.stored) == len(stored(project)) == 6
    assert proxy.sent("/calls/complete")[-1].count(b'"op_name"') == 4


@pytest.mark.parametrize("status", [429, 503])
def test_server_asks_for_patience(
    proxy: Any, client: Client, project: str, stored: Stored, fault: Any, status: int
) -> None:
    """What it refuses for now is sent again after as long as Retry-After says, which is longer than we would wait."""
    asked: list[float] = []
    refuse = first_only("/calls/complete", fault(status, headers=[("Retry-After", "1")]))

    def decide(path: str, body: bytes) -> Any:
        if path.endswith("/calls/complete"):
            asked.append(time.monotonic())
        return refuse(path, body)

    proxy.decide = decide

    client.store(many(project, 3))

    assert len(stored(project)) == 3
    first, second = asked
    assert second - first >= 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_refused_call_is_found_alone(
    proxy: Any, client: Client, project: str, stored: Stored, fault: Any, status: int
) -> None:
    """A batch with one call that the server does not take: that one is reported, and the others arrive."""
    proxy.decide = lambda path, body: fault(status) if b"poison" in body and path.endswith("/complete") else None
    calls = many(project, 20)
    calls[7] = encoded(project, 7, inputs=b'{"poison":1}')

    outcome = client.store(calls)

    assert [(found.call.id, found.words) for found in outcome.refused] == [
        (calls[7].id, f"HTTP {status}: as told by the test")
    ]
    assert len(outcome.stored) == len(stored(project)) == 19


def test_real_refusals(client: Client, project: str, stored: Stored) -> None:
    """What the server itself refuses: inputs of a wrong type, a body that is no JSON, a reference to nowhere."""
    calls = many(project, 12)
    bad = {2: b"[]", 5: b"{,}", 9: b'{"a":"weave:///nowhere"}'}
    for number, inputs in bad.items():
        calls[number] = encoded(project, number, inputs=inputs)

    outcome = client.store(calls)

    assert {found.call.id for found in outcome.refused} == {calls[number].id for number in bad}
    assert {found.words[:8] for found in outcome.refused} == {"HTTP 422", "HTTP 400"}
    assert [found.field for found in outcome.refused if found.call is calls[2]] == ["inputs"]
    assert len(stored(project)) == 9


def test_call_that_breaks_the_server(proxy: Any, client: Client, project: str, stored: Stored, fault: Any) -> None:
    """A call at which the server fails with 500 every time does not hold up its neighbours."""
    proxy.decide = lambda path, body: fault(500) if b"poison" in body and path.endswith("/complete") else None
    calls = [encoded(project, 0), encoded(project, 1, inputs=b'{"poison":1}')]

    outcome = client.store(calls)

    assert [found.call.id for found in outcome.refused] == [calls[1].id]
    assert list(stored(project)) == [calls[0].id]


def test_older_server(proxy: Any, client: Client, project: str, stored: Stored, fault: Any) -> None:
    """A server without the v2 route gets starts and ends, and the same calls result."""
    proxy.decide = lambda path, body: fault(404) if path.startswith("/v2/") else None
    calls = many(project, 3)

    outcome = client.store(calls)

    assert client.legacy
    assert len(outcome.stored) == 3
    rows = stored(project)
    assert {row["ended_at"] for row in rows.values()} == {"2026-03-01T12:00:01Z"}
    assert {row["summary"]["weave"]["status"] for row in rows.values()} == {"success"}
    assert len(proxy.sent("/calls/complete")) == 1


def test_start_without_end_is_completed(proxy: Any, client: Client, project: str, stored: Stored) -> None:
    """A call of which the server has the start only (an older upload was cut off) gets its end."""
    calls = many(project, 2)
    client._http.post("/call/upsert_batch", b'{"batch":[' + b"".join(calls[0].start()) + b"]}")

    known = client.existing([call.id for call in calls])
    client.store(calls, frozenset(known))

    assert known == {calls[0].id: None}
    assert None not in client.existing([call.id for call in calls]).values()
    assert {row["output"] for row in stored(project).values()} == {1}


def test_gives_up_after_max_wait(proxy: Any, project: str, fault: Any) -> None:
    """A server that stays down ends the upload after `max_wait`, with what was stored before told."""
    client = Client(target(proxy.url, project), max_wait=0.5)
    proxy.decide = lambda path, body: fault(503)

    with pytest.raises(Unreachable, match=r"did not recover within 0 s: HTTP 503"):
        client.store(many(project, 2))


def test_stop_ends_a_wait(proxy: Any, project: str, fault: Any) -> None:
    """Stopping does not wait for a server's Retry-After."""
    stop = threading.Event()
    client = Client(target(proxy.url, project), stop=stop)

    def decide(path: str, body: bytes) -> Any:
        stop.set()
        return fault(429, headers=[("Retry-After", "3000")])

    proxy.decide = decide

    with pytest.raises(Unreachable, match="stopped"):
        client.store(many(project, 2))


def test_access_withdrawn(proxy: Any, client: Client, project: str, fault: Any) -> None:
    """A key that is refused half-way is not tried call by call."""
    proxy.decide = first_only("/calls/complete", fault(403))

    with pytest.raises(Unreachable, match="HTTP 403"):
        client.store(many(project, 50))

    assert len(proxy.sent("/calls/complete")) == 1


def test_check_tells_what_is_wrong(proxy: Any, client: Client, project: str, fault: Any, free_port: int) -> None:
    """Before anything is sent: a host that is down and a refusal are told apart."""
    with pytest.raises(CannotStart, match=r"does not answer: .*refused"):
        Client(target(f"http://127.0.0.1:{free_port}", project)).check()
    proxy.decide = lambda path, body: fault(401)
    with pytest.raises(CannotStart, match=r"refuses access to demo/.*HTTP 401"):
        client.check()
    proxy.decide = lambda path, body: None
    client.check()
