"""The Weave server's environment and process: made once, gone with its owner, clear when it fails."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from verl_trace.demo.server_env import Server, environment_python, start_server
from verl_trace.schemas.errors import VerlTraceError


def test_environment_is_made_once(tmp_path: Path) -> None:
    """Of several that ask at the same time one builds; all get the same interpreter, and nothing half-made stays."""
    told: list[str] = []

    with ThreadPoolExecutor(3) as pool:
        pythons = set(pool.map(lambda _: environment_python([], cache=tmp_path, progress=told.append), range(3)))

    [python] = pythons
    assert subprocess.run([python, "-c", "pass"], check=False).returncode == 0
    assert len(told) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        python.parent.parent.name,
        f"{python.parent.parent.name}.lock",
    ]


def test_environment_that_lost_its_python_is_made_again(tmp_path: Path) -> None:
    """An interpreter that was upgraded away is noticed."""
    python = environment_python([], cache=tmp_path)
    python.unlink()
    python.symlink_to(tmp_path / "gone")

    assert subprocess.run([environment_python([], cache=tmp_path), "-c", "pass"], check=False).returncode == 0


def test_failed_install_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip's own words, what to do, and no environment that would be taken for a good one."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    with pytest.raises(VerlTraceError, match="no-such-package") as caught:
        environment_python(["no-such-package==1"], cache=tmp_path)

    assert "PIP_INDEX_URL" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """A clear message that names the variable to set."""
    blocked = tmp_path / "file"
    blocked.write_text("")

    with pytest.raises(VerlTraceError, match="cannot make the environment") as caught:
        environment_python([], cache=blocked / "cache")

    assert "VERL_TRACE_CACHE" in caught.value.hint


def test_server_serves_and_stops(weave_server: Server, tmp_path: Path) -> None:
    """Inside the block it answers; after it the port is free, and the data is in the file."""
    database = tmp_path / "weave.db"

    with start_server(database, entity="me") as server:
        health = requests.get(server.url + "/health", timeout=10).json()

    assert health == {"status": "ok"}
    assert database.stat().st_size > 0
    assert not is_open(server.url)


def test_taken_port(weave_server: Server, tmp_path: Path) -> None:
    """A server that cannot start says so with its last words."""
    port = int(weave_server.url.rpartition(":")[2])

    with (
        pytest.raises(VerlTraceError, match=r"ended with code 1: (.|\n)*Address already in use"),
        start_server(tmp_path / "weave.db", port=port),
    ):
        pass


def test_missing_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """VERL_TRACE_SERVER_PYTHON that leads nowhere is named."""
    monkeypatch.setenv("VERL_TRACE_SERVER_PYTHON", str(tmp_path / "python"))

    with pytest.raises(VerlTraceError, match="cannot start the Weave server"), start_server(tmp_path / "weave.db"):
        pass


def test_server_ends_with_its_owner(weave_server: Server, tmp_path: Path) -> None:
    """An owner that is killed leaves no server behind."""
    program = (
        "import sys; from verl_trace.demo.server_env import start_server\n"
        "with start_server(sys.argv[1]) as server:\n"
        "    print(server.url, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "weave.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        assert is_open(url)
        os.kill(owner.pid, signal.SIGKILL)

    deadline = time.monotonic() + 30
    while is_open(url) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_open(url)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v2/demo/p/calls/complete", b'{"batch":[{"id":1}]}', 422),
        ("/v2/demo/p/calls/complete", b"{", 422),
        ("/call/upsert_batch", b'{"batch":[{"mode":"middle"}]}', 422),
        ("/calls/query_stats", b'{"project_id":"other-team/p"}', 403),
        ("/no/such/route", b"{}", 404),
    ],
)
def test_bad_requests(weave_server: Server, path: str, body: bytes, status: int) -> None:
    """What the hosted service refuses is refused, with its status."""
    assert requests.post(weave_server.url + path, data=body, timeout=10).status_code == status


def test_too_large(tmp_path: Path) -> None:
    """A body above the limit gets 413."""
    with start_server(tmp_path / "weave.db", max_body=1000) as server:
        answer = requests.post(server.url + "/calls/query_stats", data=b"x" * 1001, timeout=10)

    assert answer.status_code == 413


def is_open(url: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = url.removeprefix("http://").partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return True
    except OSError:
        return False
