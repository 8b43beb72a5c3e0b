"""A trace server that stores nothing: it notes which calls came, and answers. What is left is the client's own time.

    python null_server.py [--latency-ms 50]     # prints http://127.0.0.1:PORT

It speaks as much of Weave's protocol as an upload and W&B's client need. Of a body of calls it looks at the
beginning of each only, so that a large one costs it little more than receiving it. `GET /counts` tells what came:
calls, how many of them twice, requests with calls, bytes of these.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import re
import signal
from collections import Counter

__all__ = ["Counts"]

_HEAD_BYTES = 1500
_ID, _TRACE = re.compile(rb'"id":"([^"]+)"'), re.compile(rb'"trace_id":"([^"]+)"')
_VIEWER = {
    "viewer": {
        "id": "1", "username": "bench", "entity": "bench", "flags": "{}", "defaultEntity": {"name": "bench"},
        "teams": {"edges": []},
    }
}  # fmt: skip


class Counts:
    """What came."""

    def __init__(self) -> None:
        self.ids: set[bytes] = set()
        self.by_trace: Counter[bytes] = Counter()
        self.twice = self.requests = self.bytes = 0

    def take(self, body: bytearray) -> None:
        """A batch of calls."""
        self.requests += 1
        self.bytes += len(body)
        at = body.find(b'{"project_id":"')
        while at >= 0:
            head = body[at : at + _HEAD_BYTES]
            found, trace = _ID.search(head), _TRACE.search(head)
            if found is not None and trace is not None:
                self.twice += found[1] in self.ids
                self.ids.add(bytes(found[1]))
                self.by_trace[bytes(trace[1])] += 1
            # the next call, by what only its beginning can look like: quotes in texts are escaped
            at = body.find(b'},{"project_id":"', at + 1)
            at = at + 2 if at >= 0 else at

    def as_json(self) -> dict[str, int]:
        """Plain numbers."""
        return {"calls": len(self.ids), "twice": self.twice, "requests": self.requests, "bytes": self.bytes}


class Connection(asyncio.Protocol):
    """One client; requests come one after the other."""

    def __init__(self, counts: Counts, latency: float) -> None:
        self.counts, self.latency = counts, latency
        self.head: bytes | None = None
        self.body = bytearray()
        self.length = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.body += data
        if self.head is None:
            head, found, rest = self.body.partition(b"\r\n\r\n")
            if not found:
                return
            self.head, self.body = bytes(head), rest
            length = re.search(rb"\r\ncontent-length: *(\d+)", self.head, re.IGNORECASE)
            self.length = int(length[1]) if length else 0
            if b"100-continue" in self.head:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if len(self.body) >= self.length:
            path = self.head.split(b" ", 2)[1].decode()
            body, self.head, self.body = self.body, None, bytearray()
            answer = self.answer(path, body)
            asyncio.get_running_loop().call_later(self.latency, self.write, answer)

    def write(self, answer: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)
        self.transport.write(head + answer)

    def answer(self, path: str, body: bytearray) -> bytes:
        """What Weave's server would say, as far as anybody looks at it."""
        if path.endswith(("/calls/complete", "/call/upsert_batch")):
            self.counts.take(body)
            return b'{"res":[]}'
        if path.endswith("/calls/stream_query"):
            wanted = json.loads(body)["filter"]["call_ids"]
            known = [key for key in wanted if key.encode() in self.counts.ids]
            return b"".join(b'{"id":"%b","ended_at":"now"}\n' % key.encode() for key in known)
        if path.endswith("/calls/query_stats"):
            traces = (json.loads(body).get("filter") or {}).get("trace_ids") or ()
            return json.dumps({"count": sum(self.counts.by_trace[key.encode()] for key in traces)}).encode()
        if path == "/counts":
            return json.dumps(self.counts.as_json()).encode()
        return json.dumps(_small(path, bytes(body))).encode()


def _small(path: str, body: bytes) -> object:
    """Answers of the routes that an upload or W&B's client asks once."""
    digest = hashlib.sha256(body).hexdigest()[:43]
    if path == "/graphql":
        query = body.decode()
        name = (json.loads(body).get("variables") or {}).get("name")
        project = {"name": name, "entity": {"name": "bench"}}
        if "upsertModel" in query:
            return {"data": {"upsertModel": {"model": {**project, "id": "1"}, "project": project}}}
        return {"data": {"project": project} if "project(" in query else _VIEWER}
    if path == "/server_info":
        return {"min_required_weave_python_version": "0.50.0", "trace_server_version": "0.1.0"}
    return {"digest": digest, "ids": [], "result": []}


async def serve(latency: float) -> None:
    """Until it is ended by a signal."""
    counts = Counts()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(counts, latency), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency-ms", type=float, default=0.0)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(parser.parse_args().latency_ms / 1000))
