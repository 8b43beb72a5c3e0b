"""Who may send where: keys that are refused or expire, servers of both kinds, and a copy in another project."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.schemas.errors import CannotStart
from verl_trace.uploader import plan, transport, upload
from verl_trace.uploader.client import Client, Unreachable
from verl_trace.uploader.result import ALREADY_STORED
from verl_trace.uploader.target import Target

Stored = Callable[[str], dict[str, Any]]
KEY = "0123456789" * 3 + "abcdefwxyz"
OLD = f"api:{KEY}".encode()


@pytest.fixture
def recording(writer: Any, project: str, tmp_path: Path) -> Any:
    """A run of 60 calls, sent in requests of ten."""
    recording = writer(tmp_path / "runs", project)
    for _ in range(60):
        recording.call("A.run")
    recording.close()
    return recording


@pytest.fixture
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of ten calls."""
    monkeypatch.setattr(plan, "MAX_CALLS", 10)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_access_withdrawn_midway(
    proxy: Any,
    recording: Any,
    project: str,
    stored: Stored,
    fault: Any,
    status: int,
    small_requests: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The upload stops at once and says which key, project and host; nothing that did not arrive counts as sent. With
    the new key the rest arrives."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    taken: list[bytes] = []

    def decide(path: str, body: bytes) -> Any:
        if path.endswith("/complete"):
            taken.append(body)
        # after two requests with calls the key is worth nothing, whatever is asked with it
        return fault(status) if len(taken) > 2 and base64.b64decode(proxy.authorization[6:]) == OLD else None

    proxy.decide = decide

    result = upload(recording.folder, workers=1)
    requests = len(proxy.requests)

    assert (result.sent, result.failed, len(stored(project))) == (20, 40, 20)
    for part in ("wxyz", f"demo/{project}", proxy.url, f"HTTP {status}"):
        assert part in result.stopped
    assert KEY[-5:] not in result.stopped
    monkeypatch.setenv("WANDB_API_KEY", "new" * 15)
    rest = upload(recording.folder)
    assert (rest.sent, dict(rest.skipped), rest.failed) == (40, {ALREADY_STORED: 20}, 0)
    assert len(stored(project)) == 60
    # one refused question, and not one for each call that was left
    assert requests <= 10


@pytest.mark.parametrize("status", [301, 405, 407, 451])
def test_other_refusals_stop(proxy: Any, recording: Any, fault: Any, status: int) -> None:
    """What is not about a call is not tried call by call."""
    proxy.decide = lambda path, body: fault(status) if path.endswith("/complete") else None

    result = upload(recording.folder)

    assert f"HTTP {status}" in result.stopped
    assert len(proxy.sent("/complete")) == 1


def test_project_in_the_newer_form_and_a_server_without_its_route(
    proxy: Any, recording: Any, fault: Any, project: str
) -> None:
    """A project that takes whole calls only, behind something that does not let them pass: said, and nothing failed."""
    body = b'{"reason":"The project was created in complete mode","error_code":"CALLS_COMPLETE_MODE_REQUIRED"}'

    def decide(path: str, _: bytes) -> Any:
        if path.startswith("/v2/"):
            return fault(404)
        return fault(400, content=body) if path.endswith("/upsert_batch") else None

    proxy.decide = decide

    result = upload(recording.folder)

    assert "is kept in Weave's newer form" in result.stopped
    assert f"/v2/demo/{project}/calls/complete" in result.stopped
    assert len(proxy.sent("/upsert_batch")) == 1


def test_older_server_twice(proxy: Any, recording: Any, project: str, stored: Stored, fault: Any) -> None:
    """A server without the v2 route: all arrives, it is said, and a second upload sends nothing."""
    proxy.decide = lambda path, body: fault(404) if path.startswith("/v2/") else None

    first = upload(recording.folder)
    proxy.requests.clear()
    second = upload(recording.folder)

    assert (first.sent, first.failed, len(stored(project))) == (60, 0, 60)
    assert any("older version" in note for note in first.runs[0].notes)
    assert (second.sent, second.failed) == (0, 0)
    assert proxy.sent("/upsert_batch") == []


def test_copy_in_another_project_on_sqlite(proxy: Any, recording: Any, project: str, stored: Stored) -> None:
    """W&B's SQLite storage has one key for the calls of all projects: it is said at once, and nothing is changed."""
    upload(recording.folder)
    proxy.requests.clear()

    result = upload(recording.folder, project=f"{project}-copy")

    assert "keeps one call per id over all of its projects" in result.stopped
    assert (result.sent, result.failed) == (0, 60)
    assert len(proxy.sent("/complete")) == 1
    assert len(stored(project)) == 60


@pytest.mark.parametrize("status", [429, 502, 0])
def test_api_that_hiccups(proxy: Any, recording: Any, fault: Any, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The W&B API, too, is asked again; when it does not recover, the upload says so and has sent nothing."""
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.05)
    monkeypatch.setenv("WANDB_BASE_URL", proxy.url)
    hiccups = [fault(status)] * 2
    proxy.decide = lambda path, body: hiccups.pop() if hiccups and path == "/graphql" else None

    assert upload(recording.folder).sent == 60
    assert hiccups == []
    proxy.decide = lambda path, body: fault(status) if path == "/graphql" else None
    with pytest.raises(CannotStart, match=proxy.url):
        upload(recording.folder, max_wait=0.2)


def test_answer_of_somebody_else(proxy: Any, recording: Any, project: str, stored: Stored, fault: Any) -> None:
    """A page of 200 from something between here and the server stores nothing, and is not believed."""
    pages = [fault(299, content=b"<html>please log in</html>")] * 2
    proxy.decide = lambda path, body: pages.pop() if pages and path.endswith("/complete") else None

    result = upload(recording.folder)

    assert (result.sent, result.failed, len(stored(project))) == (60, 0, 60)
    assert pages == []


def test_refused_call_is_sent_lighter(proxy: Any, recording: Any, project: str, stored: Stored, fault: Any) -> None:
    """A call that is too large for the server is sent once more with its heavy fields as files."""
    big = type(recording)(recording.folder.parent, project, "heavy")
    head = big.call("A.run", {"big": "x" * 200_000})
    other = big.call("B.refused")
    big.close()
    proxy.decide = lambda path, body: (
        fault(413) if path.endswith("/complete") and (len(body) > 100_000 or b"B.refused" in body) else None
    )

    result = upload(big.folder)

    assert (result.sent, result.failed, result.runs[0].lightened) == (1, 1, 1)
    (moved,) = result.runs[0].moved
    assert (moved.id, moved.path) == (head["id"], "output.big")
    (failure,) = result.runs[0].failures
    assert (failure.id, failure.op) == (other["id"], "B.refused")
    found = stored(project)[head["id"]]["output"]["big"]
    assert (found["_moved"], found["items"], found["preview"]) == ("text", 200_000, "x" * 1000)


def test_server_that_asks_for_more_patience_than_there_is(proxy: Any, project: str, fault: Any) -> None:
    """`Retry-After` beyond `max_wait` is not disobeyed: the upload ends at once and says so."""
    target = Target("demo", project, proxy.url, proxy.url, lambda: "Basic YXBpOmFueQ==")
    proxy.decide = lambda path, body: fault(429, headers=[("Retry-After", "3000")])

    with pytest.raises(Unreachable, match="asks to wait 3000 s"):
        Client(target, max_wait=10).existing(["a"])

    assert len(proxy.requests) == 1
