"""A proxy before the real server that misbehaves as told, and ways to see what the server holds."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests

from verl_trace.demo.server_env import Server

AUTH = ("api", "any")


class Fault(NamedTuple):
    """What happens instead of the plain answer. `after`: the real server gets the request first. Status 0: cut off;
    200: the plain answer.

    `stall`: seconds before anything happens. `cut`: "body" lets the real server have half of the request, "answer" lets
    the client have half of the answer. `reset`: cut off with RST in place of FIN. `content`: what the answer says.
    """

    status: int
    after: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    stall: float = 0.0
    cut: str = ""
    reset: bool = False
    content: bytes = b'{"reason":"as told by the test"}'


class Proxy(ThreadingHTTPServer):
    """Forwards to the real server; `decide(path, body)` may name a fault. Keeps what was asked."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = upstream
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.decide: Callable[[str, bytes], Fault | None] = lambda path, body: None
        self.requests: list[tuple[str, bytes]] = []
        self.faults = 0
        # of the last request
        self.authorization = ""
        # set at the end: no stall outlives the test
        self.stalls = threading.Event()

    def sent(self, path_end: str) -> list[bytes]:
        """Bodies of the requests whose path ends so."""
        return [body for path, body in self.requests if path.endswith(path_end)]


class Handler(BaseHTTPRequestHandler):
    """One request through the proxy."""

    server: Proxy
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, body))
        self.server.authorization = self.headers["Authorization"] or ""
        fault = self.server.decide(self.path, body)
        self.server.faults += fault is not None
        if fault is None:
            answer = self.forward(body)
            self.reply(answer.status_code, answer.content)
            return
        if fault.stall:
            self.server.stalls.wait(fault.stall)
        if fault.cut == "body":
            self.forward_half(body)
        answered = self.forward(body) if fault.after or fault.cut == "answer" or fault.status == 200 else None
        if fault.cut == "answer" and answered is not None:
            self.reply(answered.status_code, answered.content, announced=2 * len(answered.content) + 1)
            self.close_connection = True
        elif fault.status == 0:
            if fault.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            self.close_connection = True
        elif fault.status == 200 and answered is not None:
            self.reply(answered.status_code, answered.content)
        else:
            self.reply(fault.status, fault.content, fault.headers)

    def forward(self, body: bytes) -> requests.Response:
        headers = {name: self.headers[name] for name in ("Content-Type", "Authorization") if name in self.headers}
        return requests.post(self.server.upstream + self.path, data=body, headers=headers, timeout=30)

    def forward_half(self, body: bytes) -> None:
        """Let the real server wait for a body that ends too soon."""
        host, _, port = self.server.upstream.removeprefix("http://").partition(":")
        head = f"POST {self.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        head += f"Authorization: {self.headers['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=10) as upstream:
            upstream.sendall(head.encode() + body[: len(body) // 2])

    def reply(
        self, status: int, content: bytes, headers: tuple[tuple[str, str], ...] = (), announced: int | None = None
    ) -> None:
        try:
            self.send_response(status)
            for name, value in (("Content-Length", str(announced or len(content))), *headers):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            # the client has lost its patience
            self.close_connection = True

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def proxy(wandb_login: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that the uploader takes for the trace server."""
    server = Proxy(wandb_login.url)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setenv("WF_TRACE_SERVER_URL", server.url)
    yield server
    server.stalls.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def fault() -> type[Fault]:
    """`fault(status, after=…, headers=…)`."""
    return Fault


@pytest.fixture
def storm() -> Callable[..., Callable[[str, bytes], Fault | None]]:
    """`storm(seed, rate=0.4, largest=…)`: a `decide` that lets every kind of fault happen to so many of the requests.

    `largest`: bytes of a body above which the answer is 413, always. Stalls are longer than a second.
    """

    def make(seed: int, *, rate: float = 0.4, largest: int = 1 << 40) -> Callable[[str, bytes], Fault | None]:
        dice = random.Random(seed)
        lock = threading.Lock()
        wait = (("Retry-After", "0"),)
        kinds: list[Callable[[], Fault]] = [
            lambda: Fault(0),
            lambda: Fault(0, reset=True),
            lambda: Fault(0, after=True),
            lambda: Fault(0, after=True, reset=True),
            lambda: Fault(429),
            lambda: Fault(429, headers=wait),
            lambda: Fault(500, after=dice.random() < 0.5),
            lambda: Fault(502, after=dice.random() < 0.5),
            lambda: Fault(503, after=dice.random() < 0.5),
            lambda: Fault(200, stall=1.5),
            lambda: Fault(0, cut="body"),
            lambda: Fault(200, cut="answer"),
        ]

        def decide(path: str, body: bytes) -> Fault | None:
            with lock:
                if len(body) > largest:
                    return Fault(413)
                return dice.choice(kinds)() if dice.random() < rate else None

        return decide

    return make


@pytest.fixture
def stored(weave_server: Server) -> Callable[[str], dict[str, dict[str, Any]]]:
    """`stored(project)`: what the server has, by id, through its plain query route."""

    def query(project: str) -> dict[str, dict[str, Any]]:
        body = {"project_id": f"demo/{project}"}
        answer = requests.post(weave_server.url + "/calls/stream_query", json=body, auth=AUTH, timeout=30)
        answer.raise_for_status()
        # a recorded text may hold what Python, not JSON lines, takes for the end of a line
        rows = [json.loads(row) for row in answer.content.split(b"\n") if row]
        by_id = {row["id"]: row for row in rows}
        assert len(by_id) == len(rows)
        return by_id

    return query


OFFICIAL = """
import json, sys
import weave
from weave.trace.settings import UserSettings
client = weave.init(sys.argv[1], settings=UserSettings(print_call_link=False))
{action}
client.finish()
calls = []
for call in client.get_calls():
    fields = ("id", "trace_id", "parent_id", "op_name", "exception", "inputs", "output", "attributes", "summary")
    row = {{name: getattr(call, name) for name in fields}}
    row |= {{"started_at": call.started_at.isoformat(), "ended_at": call.ended_at.isoformat(), "op": call.func_name}}
    calls.append(row)
def plain(value):
    return dict(value) if hasattr(value, "keys") else list(value) if hasattr(value, "__iter__") else str(value)
print("ANSWER" + json.dumps(calls, default=plain))
"""


@pytest.fixture
def official_client(weave_server: Server, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """`official_client(project, action)`: run `action` with W&B's own client, then read the project back with it.

    In a process of its own, since `weave.init` changes the process it runs in.
    """

    def run(project: str, action: str = "") -> list[dict[str, Any]]:
        environment = os.environ | weave_server.client_environment()
        program = OFFICIAL.format(action=action)
        command = [sys.executable, "-c", program, f"demo/{project}"]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        answer: list[dict[str, Any]] = json.loads(done.stdout.rpartition("ANSWER")[2])
        return answer

    return run
