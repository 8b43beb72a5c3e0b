"""Shared by the tests of several folders: a real Weave server, and runs written by hand."""

from __future__ import annotations

import errno
import io
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from verl_trace.demo.server_env import Server, start_server
from verl_trace.reader import places
from verl_trace.schemas.files import run_folder_name, segment_file_name, writer_id

FIELDS = ("step", "sample_index", "rollout_n", "validate", "experiment_name")
BEGIN = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def same_priority() -> Iterator[None]:
    """No test may slow down those after it: a priority that was given up is not to be had back."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.fixture(scope="session")
def weave_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """W&B's own trace server, one for the session: tests keep apart by project names."""
    with start_server(tmp_path_factory.mktemp("weave") / "weave.db", forbid=["other-team"]) as server:
        yield server


@pytest.fixture
def wandb_login(weave_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    """The environment of a user who is logged in to the server, and nothing else of W&B's settings."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "WEAVE_", "WF_"))]:
        monkeypatch.delenv(name)
    for name, value in weave_server.client_environment().items():
        monkeypatch.setenv(name, value)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    return weave_server


@pytest.fixture
def project() -> str:
    """A project name that no other test has."""
    return f"proj-{secrets.token_hex(4)}"


class Writer:
    """One process's span file, as `docs/format.md` has it, with everything chosen by the test."""

    def __init__(self, runs: Path, project: str, experiment: str = "exp1", *, host: str = "node3", pid: int = 4711):
        self.project, self.experiment = project, experiment
        self.name = writer_id("20260301T120000", host, pid, secrets.token_hex(6))
        self.folder = runs / run_folder_name(experiment)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / segment_file_name(self.name, 0)
        self.records = 0
        self._clock = 0
        self.write(
            {
                "kind": "header", "schema": 1, "writer": self.name, "segment": 0, "project_name": project,
                "experiment_name": experiment, "attempt": "5c1d0a77be02", "backend": "jsonl", "token2text": False,
                "max_samples_per_step_per_worker": None, "host": host, "pid": pid, "pid_start": 1, "pid_ns": 1,
                "boot_id": "none", "started_at": self.tick(), "opened_at": self.tick(), "slurm": {}, "ray": {},
                "rank": {}, "versions": {"verl_trace": "0.1.0", "python": "3.11.7"}, "wandb": {},
            }
        )  # fmt: skip
        self.records = 0

    def tick(self) -> str:
        """The next moment of this writer's clock, as text."""
        self._clock += 1
        return (BEGIN + timedelta(milliseconds=10 * self._clock)).isoformat().replace("+00:00", "Z")

    def write(self, record: dict[str, Any]) -> None:
        """Append a record as it is."""
        self.append(orjson.dumps(record))

    def append(self, line: bytes) -> None:
        """Append a line as it is."""
        with self.path.open("ab") as file:
            file.write(line + b"\n")
        self.records += 1

    def start(
        self, op: str, *, parent: dict[str, Any] | None = None, inputs: Any = None, on_disk: bool = True, **fields: Any
    ) -> dict[str, Any]:
        """A call begins. The head it returns is what `end` and the starts of children take."""
        call_id = new_id()
        attributes = {**(parent["attributes"] if parent else {"experiment_name": self.experiment}), **fields}
        head = {name: attributes.get(name) for name in FIELDS} | {
            "op": op, "id": call_id, "trace_id": parent["trace_id"] if parent else call_id,
            "parent_id": parent["id"] if parent else None, "started_at": self.tick(), "attributes": attributes,
        }  # fmt: skip
        if on_disk:
            self.append(line("start", head, "inputs", {} if inputs is None else inputs))
        return head

    def end(
        self,
        head: dict[str, Any],
        output: Any = None,
        *,
        exception: dict[str, Any] | None = None,
        text: dict[str, str] | None = None,
    ) -> str:
        """A call ends, with decoded text in a record of its own when `text` is given; returns its end time."""
        ended_at = self.tick()
        seconds = (moment(ended_at) - moment(head["started_at"])).total_seconds()
        first = {key: head[key] for key in head if key not in ("attributes", "started_at")}
        tail = {
            "started_at": head["started_at"], "ended_at": ended_at, "duration": seconds, "text": text is not None,
            "status": "success" if exception is None else "error", "exception": exception,
            "attributes": head["attributes"],
        }  # fmt: skip
        self.append(line("end", first | tail, "output", output))
        if text is not None:
            self.append(line("text", first, "output", text))
        return ended_at

    def call(self, op: str, output: Any = None, **fields: Any) -> dict[str, Any]:
        """A call that begins and ends."""
        head = self.start(op, **fields)
        self.end(head, output)
        return head

    def close(self) -> None:
        """The process says that it is done."""
        counters = {"written": self.records, "skipped": 0, "dropped": 0}
        self.write(
            {"kind": "close", "closed_at": self.tick(), "reason": "exit", "records": self.records, "counters": counters}
        )

    def age(self, seconds: float) -> None:
        """Let the file look unchanged for that long: a writer on another host that nobody hears of."""
        then = time.time() - seconds
        os.utime(self.path, (then, then))


def moment(text: str) -> datetime:
    """A recorded time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def line(kind: str, head: dict[str, Any], key: str, payload: Any) -> bytes:
    """A line in the fast form: `bytes` in the head, the payload last. Bytes as payload are taken as they are."""
    body = payload if isinstance(payload, bytes) else orjson.dumps(payload)
    front = orjson.dumps({"kind": kind, "bytes": len(body), **head})
    return front[:-1] + b',"' + key.encode() + b'":' + body + b"}"


def new_id() -> str:
    """A UUIDv7 of a fixed moment."""
    low = secrets.token_hex(10)
    return f"0193e1a2-b3c4-7{low[:3]}-8{low[3:6]}-{low[6:18]}"


@pytest.fixture
def writer(tmp_path: Path) -> type[Writer]:
    """`writer(runs_folder, project, …)` begins a span file."""
    return Writer


@pytest.fixture
def contents() -> Callable[..., dict[str, bytes]]:
    """`contents(*folders)`: what every span file and side file below them holds, by name, whichever form it has.

    Of a span file its whole lines: the end of a torn one is nobody's record. Where both forms are there, the longer.
    """

    def read(*folders: Path) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for path in (path for folder in folders for path in sorted(folder.rglob("*.*"))):
            if path.name.endswith((".jsonl", ".jsonl.zst")):
                text = path.read_bytes()
                if path.name.endswith(".zst"):
                    text = zstandard.ZstdDecompressor().decompressobj().decompress(text)
                name, text = path.name.removesuffix(".zst"), text[: text.rfind(b"\n") + 1]
                found[name] = max(found.get(name, b""), text, key=len)
            elif path.name.endswith(".blobs"):
                found[path.name] = path.read_bytes()
        return found

    return read


@pytest.fixture
def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Refusing(io.RawIOBase):
    """A file of which one read is refused, when that is due."""

    def __init__(self, file: io.RawIOBase, due: Callable[[], bool]) -> None:
        self._file, self._due = file, due

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes | None:
        if self._due():
            raise OSError(errno.EIO, "Input/output error")
        return self._file.read(size)

    def close(self) -> None:
        self._file.close()
        super().close()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`disk(3)`: of all reads of records from now on, the third one is refused."""
    left = 0

    def due() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    def refuse(number: int) -> None:
        nonlocal left
        left = number

    monkeypatch.setattr("verl_trace.reader.segments.open_file", lambda path: Refusing(places.open_file(path), due))
    return refuse
