"""Login nodes sit behind proxies and private certificate authorities: a real proxy, and TLS in front of the server."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from verl_trace.demo.server_env import Server
from verl_trace.schemas.errors import CannotStart
from verl_trace.uploader import upload

# Resolves nowhere: who reaches it went by the proxy.
FAR = "weave.test"
# What a user, or this machine, may have set.
VARIABLES = (
    "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)  # fmt: skip


class Tunnel(socketserver.ThreadingTCPServer):
    """A proxy that knows CONNECT and takes every name for this machine. `asked`: where to."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), TunnelHandler)
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class TunnelHandler(socketserver.StreamRequestHandler):
    """One connection through the proxy."""

    server: Tunnel

    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split()
        while self.rfile.readline().strip():
            pass
        assert method == "CONNECT"
        host, _, port = target.partition(":")
        self.server.asked.append(host)
        with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as far:
            self.connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            self.pump(far)

    def pump(self, far: socket.socket) -> None:
        """Both ways, until one side is done."""
        other = {self.connection: far, far: self.connection}
        with contextlib.suppress(OSError):
            while True:
                for ready in select.select(list(other), [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    other[ready].sendall(data)


class Site(NamedTuple):
    """A Weave server behind TLS, the file of its certificate authority, and a proxy on the way."""

    port: int
    authority: Path
    tunnel: Tunnel


@pytest.fixture
def site(proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The server's certificate is for FAR and localhost, from an authority that nobody knows."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    authority = trustme.CA()
    secure = type(proxy)(proxy.upstream)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(FAR, "localhost").configure_cert(context)
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    tunnel = Tunnel()
    servers: list[socketserver.BaseServer] = [secure, tunnel]
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    use_host(monkeypatch, FAR, secure.server_port)
    yield Site(secure.server_port, path, tunnel)
    for server in servers:
        server.shutdown()
        server.server_close()


def use_host(monkeypatch: pytest.MonkeyPatch, host: str, port: int) -> None:
    """The W&B API and the trace server are both there."""
    monkeypatch.setenv("WANDB_BASE_URL", f"https://{host}:{port}")
    monkeypatch.setenv("WF_TRACE_SERVER_URL", f"https://{host}:{port}")


@pytest.fixture
def recording(wandb_login: Server, writer: Any, project: str, tmp_path: Path) -> Any:
    """A run of one call."""
    recording = writer(tmp_path / "runs", project)
    recording.call("A.run")
    recording.close()
    return recording


@pytest.mark.parametrize("bundle", ["REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE"])
def test_proxy_and_authority(site: Site, recording: Any, monkeypatch: pytest.MonkeyPatch, bundle: str) -> None:
    """HTTPS_PROXY and each of the variables for an authority serve the W&B API and the trace server alike."""
    monkeypatch.setenv("HTTPS_PROXY", site.tunnel.url)
    monkeypatch.setenv(bundle, str(site.authority))
    before = dict(os.environ)

    result = upload(recording.folder)

    assert (result.sent, result.failed) == (1, 0)
    assert set(site.tunnel.asked) == {FAR}
    assert {name: os.environ[name] for name in before} == before


@pytest.mark.parametrize("where", ["variable", "file"])
def test_proxy_of_wandb_settings(site: Site, recording: Any, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """W&B's own https_proxy, as a variable and in its settings file."""
    monkeypatch.setenv("SSL_CERT_FILE", str(site.authority))
    if where == "variable":
        monkeypatch.setenv("WANDB_HTTPS_PROXY", site.tunnel.url)
    else:
        folder = Path.home() / ".config" / "wandb"
        folder.mkdir(parents=True)
        (folder / "settings").write_text(f"[default]\nhttps_proxy = {site.tunnel.url}\n")

    assert upload(recording.folder).sent == 1
    assert set(site.tunnel.asked) == {FAR}


def test_no_proxy(site: Site, recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host in NO_PROXY is asked without the proxy."""
    use_host(monkeypatch, "localhost", site.port)
    monkeypatch.setenv("HTTPS_PROXY", site.tunnel.url)
    monkeypatch.setenv("NO_PROXY", "other.test,localhost")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(site.authority))

    assert upload(recording.folder).sent == 1
    assert site.tunnel.asked == []


def test_unknown_authority(site: Site, recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate of an authority that is not trusted: nothing is sent, and the reason is told."""
    monkeypatch.setenv("HTTPS_PROXY", site.tunnel.url)

    with pytest.raises(CannotStart, match=r"(?i)certificate"):
        upload(recording.folder)


@pytest.mark.parametrize("name", ["WEAVE_INSECURE_DISABLE_SSL", "WANDB_INSECURE_DISABLE_SSL"])
def test_verification_turned_off(site: Site, recording: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The variables with which weave and wandb turn verification off do it for both sides."""
    monkeypatch.setenv("HTTPS_PROXY", site.tunnel.url)
    monkeypatch.setenv(name, "true")

    assert upload(recording.folder).sent == 1


def test_proxy_down(site: Site, recording: Any, monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    """A proxy that nobody answers for: exit at once, not after minutes."""
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port}")

    with pytest.raises(CannotStart, match="cannot reach"):
        upload(recording.folder)
