"""Questions that do not need each other's answers are asked at once, and nothing is sent before those that it needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from urllib3.connection import HTTPConnection

from verl_trace.schemas.errors import CannotStart
from verl_trace.uploader import upload
from verl_trace.uploader.ops import OBJECT_DIGEST
from verl_trace.uploader.target import resolve
from verl_trace.uploader.transport import Http

Stored = Callable[[str], dict[str, Any]]
WRITES = ("/file/create", "/obj/create", "/calls/complete", "/call/upsert_batch")
# Seconds after which something that should have happened will not happen any more.
PATIENCE = 20.0


@pytest.fixture
def recording(writer: Any, project: str, tmp_path: Path) -> Any:
    """A run of six calls of two ops."""
    recording = writer(tmp_path / "runs", project)
    for _ in range(3):
        recording.call("A.run")
        recording.call("B._step")
    recording.close()
    return recording


def writes(proxy: Any) -> list[str]:
    """What the server was asked to keep, in this order."""
    return [path for path, _ in proxy.requests if path.endswith(WRITES)]


def test_ops_are_published_while_the_server_is_asked_for_the_calls(
    proxy: Any, recording: Any, project: str, stored: Stored
) -> None:
    """Neither waits for the other, both ops are published at once, and calls are sent after all of that."""
    asked, both = threading.Event(), threading.Barrier(2, timeout=PATIENCE)
    in_time: list[bool] = []

    def decide(path: str, body: bytes) -> None:
        if path == "/calls/stream_query":
            asked.set()
        if path == "/obj/create":
            in_time.append(asked.wait(PATIENCE))
            both.wait()

    proxy.decide = decide

    result = upload(recording.folder)

    assert (result.sent, result.failed, in_time) == (6, 0, [True, True])
    assert writes(proxy) == ["/file/create", "/obj/create", "/obj/create", f"/v2/demo/{project}/calls/complete"]
    names = {call["op_name"].rpartition("/")[2] for call in stored(project).values()}
    assert names == {f"A.run:{OBJECT_DIGEST}", f"B-step:{OBJECT_DIGEST}"}


@pytest.mark.parametrize("how", ["other digest", "refused"])
def test_server_that_answers_otherwise_than_expected(
    proxy: Any, recording: Any, project: str, stored: Stored, fault: Any, how: str
) -> None:
    """Calls refer to their op as the server says, whatever was expected of it; other ops are as they were."""
    answers = {
        "other digest": (fault(299, content=b'{"digest":"Other"}'), f"weave:///demo/{project}/op/B-step:Other"),
        "refused": (fault(400), "B-step"),
    }
    answer, name = answers[how]
    proxy.decide = lambda path, body: answer if path == "/obj/create" and b"B-step" in body else None

    result = upload(recording.folder)

    assert (result.sent, result.failed) == (6, 0)
    (body,) = proxy.sent("/calls/complete")
    assert body.count(f'"op_name":"{name}"'.encode()) == 3
    assert body.count(f'/op/A.run:{OBJECT_DIGEST}"'.encode()) == 3
    assert len(stored(project)) == 6
    assert any("refuses the op B._step" in note for note in result.runs[0].notes) == (how == "refused")
    assert upload(recording.folder, check="deep").runs[0].differing == {}


def test_no_call_is_sent_without_its_op(proxy: Any, recording: Any, fault: Any) -> None:
    """Where ops cannot be published for want of access, the upload stops before it has sent a call."""
    proxy.decide = lambda path, body: fault(403) if path == "/obj/create" else None

    result = upload(recording.folder)

    assert (result.sent, result.failed) == (0, 6)
    assert "HTTP 403" in result.stopped
    assert proxy.sent("/calls/complete") == []


def test_who_waits_for_the_ops_code_gives_up_with_who_asked(
    proxy: Any, writer: Any, project: str, tmp_path: Path, fault: Any
) -> None:
    """A server that does not take it is asked by one thread, not by one after the other for as long as each waits."""
    recording = writer(tmp_path / "runs", project)
    for number in range(4):
        recording.call(f"A.op_{number}")
    recording.close()
    proxy.decide = lambda path, body: fault(503, stall=0.5) if path == "/file/create" else None

    result = upload(recording.folder, workers=4, max_wait=0.0)

    assert (result.sent, result.failed) == (0, 4)
    assert "HTTP 503" in result.stopped
    assert len(proxy.sent("/file/create")) == 1


def test_both_servers_are_asked_at_once(proxy: Any, recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The W&B API's answer about a project that is there, and the trace server's, do not wait for each other."""
    resolve(recording.project)
    monkeypatch.setenv("WANDB_BASE_URL", proxy.url)
    both = threading.Barrier(2, timeout=PATIENCE)
    first = {"/graphql", "/calls/query_stats"}

    def decide(path: str, body: bytes) -> None:
        if path in first:
            first.discard(path)
            both.wait()

    proxy.decide = decide

    result = upload(recording.folder)

    assert (result.sent, result.failed) == (6, 0)
    # the project was right: asked once before, and once afterwards how many calls there are
    assert len(proxy.sent("/calls/query_stats")) == 2


def test_an_answer_about_a_project_that_was_not_there_yet(
    proxy: Any, recording: Any, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the trace server says before the project is made counts for nothing."""
    monkeypatch.setenv("WANDB_BASE_URL", proxy.url)
    made: list[bytes] = []

    def decide(path: str, body: bytes) -> Any:
        if path == "/graphql" and b"upsertModel" in body:
            made.append(body)
        return fault(404) if path == "/calls/query_stats" and not made else None

    proxy.decide = decide

    result = upload(recording.folder)

    assert (result.sent, result.failed, len(made)) == (6, 0, 1)


@pytest.mark.parametrize("who", ["W&B API", "trace server", "both"])
def test_nothing_is_sent_without_access(
    proxy: Any, recording: Any, fault: Any, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Whoever refuses first, what the W&B API says comes first, and nothing was written anywhere."""
    resolve(recording.project)
    monkeypatch.setenv("WANDB_BASE_URL", proxy.url)
    refusing = {"W&B API": ["/graphql"], "trace server": ["/calls/query_stats"]}.get(
        who, ["/graphql", "/calls/query_stats"]
    )
    proxy.decide = lambda path, body: fault(403) if path in refusing else None
    words = "refuses access" if who == "trace server" else "forbids access"

    with pytest.raises(CannotStart, match=rf"{words}.*HTTP 403"):
        upload(recording.folder)

    assert writes(proxy) == []


def test_a_refusal_does_not_wait_for_a_server_that_is_away(
    proxy: Any, recording: Any, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace server asks for patience; the W&B API has refused the key meanwhile, which is told at once."""
    monkeypatch.setenv("WANDB_BASE_URL", proxy.url)
    refused = {"/graphql": fault(401), "/calls/query_stats": fault(429, headers=[("Retry-After", "100")])}
    proxy.decide = lambda path, body: refused.get(path)
    ended: list[str] = []

    def run() -> None:
        with pytest.raises(CannotStart, match="does not accept the API key"):
            upload(recording.folder)
        ended.append("told")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)

    assert ended == ["told"]


@pytest.fixture
def opened(proxy: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The connections that the proxy has accepted."""
    opened: list[Any] = []
    accept = proxy.get_request

    def get_request() -> Any:
        opened.append(found := accept())
        return found

    monkeypatch.setattr(proxy, "get_request", get_request)
    return opened


def test_a_connection_is_kept_whatever_the_address_looks_like(proxy: Any, opened: list[Any], fault: Any) -> None:
    """What is sent is not always the address as it was given: letters and spaces get another form in it."""
    proxy.decide = lambda path, body: fault(299, content=b"{}")
    http = Http(f"{proxy.url}/of the Universität", lambda: "Basic x")
    for _ in range(3):
        thread = threading.Thread(target=http.post_json, args=("/x", {}))
        thread.start()
        thread.join(PATIENCE)

    assert [path for path, _ in proxy.requests] == ["/of%20the%20Universit%C3%A4t/x"] * 3
    assert len(opened) == 1


def test_connections_are_kept(proxy: Any, recording: Any, opened: list[Any]) -> None:
    """The first question's connection serves all requests that come one after the other, in whatever thread."""
    resolve(recording.project)

    result = upload(recording.folder, workers=1)

    assert (result.sent, len(opened)) == (6, 1)
    assert len(proxy.requests) > 5


def test_connections_of_one_project_at_a_time(
    proxy: Any, writer: Any, project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder may hold runs of many projects: what was opened for the others is closed when one is sent."""
    for number in range(3):
        recording = writer(tmp_path / "runs", f"{project}-{number}", f"exp{number}")
        recording.call("A.run")
        recording.close()
    kept, most = set[Any](), 0
    connect, close = HTTPConnection.connect, HTTPConnection.close

    def opened(connection: HTTPConnection) -> None:
        nonlocal most
        connect(connection)
        if connection.port == proxy.server_port:
            kept.add(connection)
            most = max(most, len(kept))

    def closed(connection: HTTPConnection) -> None:
        kept.discard(connection)
        close(connection)

    monkeypatch.setattr(HTTPConnection, "connect", opened)
    monkeypatch.setattr(HTTPConnection, "close", closed)

    result = upload(tmp_path / "runs", workers=1)

    assert (result.sent, len(result.runs)) == (3, 3)
    # one that was just opened, before those of the project before it are closed
    assert most <= 2
    assert kept == set()
