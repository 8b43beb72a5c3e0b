"""Span files made by hand, from docs/format.md alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from verl_trace.reader import Run, Trajectory, find_runs, iter_trajectories
from verl_trace.reader.trees import Reading

from .faulty_runs import Run as FaultyRun
from .faulty_runs import healthy_run

WRITER = "20260301T120000-node3-4711-{:012x}"


class Spans:
    """Lines and files of a run in `folder`. Ids are small numbers here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def id(number: int) -> str:
        return f"019ca950-0000-7000-8000-{number:012x}"

    @staticmethod
    def time(number: int) -> str:
        return f"2026-03-01T12:{number // 60 % 60:02d}:{number % 60:02d}.000000Z"

    def header(self, writer: int = 1, segment: int = 0, **changed: Any) -> bytes:
        fields = {
            "kind": "header", "schema": 1, "writer": WRITER.format(writer), "segment": segment,
            "project_name": "me/proj", "experiment_name": "exp1", "attempt": "a1", "host": "node3", "pid": 4711,
            "pid_start": 1, "pid_ns": 1, "boot_id": "none", "started_at": self.time(writer), "versions": {},
        }  # fmt: skip
        return json.dumps({**fields, **changed}).encode() + b"\n"

    def start(self, number: int, parent: int | None = None, trace: int | None = None, **fields: Any) -> bytes:
        head = {"step": 1, "attributes": {"step": 1}, **self.ids(number, parent, trace), **fields}
        return self.line("start", head, "inputs", {"n": number})

    def end(self, number: int, parent: int | None = None, trace: int | None = None, **fields: Any) -> bytes:
        head = {"step": 1, **self.ids(number, parent, trace), "ended_at": self.time(number + 1), "duration": 1.0}
        outcome = {"text": False, "status": "success", "exception": None, "attributes": {"step": 1}}
        output = fields.pop("output", [number])
        return self.line("end", {**head, **outcome, **fields}, "output", output)

    def text(self, number: int, parent: int | None = None, trace: int | None = None) -> bytes:
        return self.line("text", self.ids(number, parent, trace, begun=False), "output", {"prompt_text": "Hi"})

    def ids(self, number: int, parent: int | None, trace: int | None, begun: bool = True) -> dict[str, Any]:
        root = number if parent is None and trace is None else parent if trace is None else trace
        assert root is not None
        ids = {"op": f"op{number}", "id": self.id(number), "trace_id": self.id(root)}
        ids["parent_id"] = None if parent is None else self.id(parent)  # type: ignore[assignment]
        return {**ids, "started_at": self.time(number)} if begun else ids

    @staticmethod
    def line(kind: str, head: dict[str, Any], key: str, payload: Any) -> bytes:
        body = json.dumps(payload, separators=(",", ":"))
        whole = {"kind": kind, "bytes": len(body), **head}
        return (json.dumps(whole, separators=(",", ":"))[:-1] + f',"{key}":{body}}}\n').encode()

    @staticmethod
    def close(reason: str = "exit") -> bytes:
        return json.dumps({"kind": "close", "reason": reason, "records": 0, "counters": {}}).encode() + b"\n"

    def raw(self, *lines: bytes, writer: int = 1, segment: int = 0) -> Path:
        path = self.folder / f"{WRITER.format(writer)}.{segment:05d}.jsonl"
        path.write_bytes(b"".join(lines))
        return path

    def sealed(self, *frames: bytes, writer: int = 1, segment: int = 0) -> Path:
        path = self.folder / f"{WRITER.format(writer)}.{segment:05d}.jsonl.zst"
        path.write_bytes(b"".join(self.frame(frame) for frame in frames))
        return path

    @staticmethod
    def frame(data: bytes, *, checksum: bool = True) -> bytes:
        return zstandard.ZstdCompressor(level=3, write_checksum=checksum).compress(data)

    def age(self) -> None:
        """Let every file look old: nobody writes it any more."""
        for path in self.folder.iterdir():
            os.utime(path, (0, 0))

    def run(self) -> Run:
        (run,) = find_runs(self.folder)
        return run

    def read(self) -> tuple[list[Trajectory], Reading]:
        reading = Reading()
        return list(iter_trajectories(self.run(), reading)), reading

    def numbers(self) -> list[int]:
        """The calls that a reader finds, by number; an id that damage has changed is none."""
        ids = [call.id[-12:] for tree in self.read()[0] for call in tree.calls]
        return sorted(int(digits, 16) for digits in ids if re.fullmatch("[0-9a-f]{12}", digits))


@pytest.fixture
def spans(tmp_path: Path) -> Spans:
    return Spans(tmp_path / "exp1")


@pytest.fixture(scope="session")
def spans_at() -> type[Spans]:
    """`spans_at(folder)`."""
    return Spans


@pytest.fixture(scope="session")
def shape() -> Callable[[Sequence[Trajectory]], dict[int, list[tuple[int, int | None, str]]]]:
    """Trajectories as `{trace: [(call, parent, status)]}` with the small numbers of the test."""

    def number(call_id: str | None) -> int | None:
        return None if call_id is None else int(call_id[-12:], 16)

    def of(trees: Sequence[Trajectory]) -> dict[int, list[tuple[int, int | None, str]]]:
        assert len({tree.trace_id for tree in trees}) == len(trees), "a trace was yielded twice"
        return {
            number(tree.trace_id) or 0: sorted((number(c.id) or 0, number(c.parent_id), c.status) for c in tree.calls)
            for tree in trees
        }

    return of


@pytest.fixture(scope="module")
def healthy() -> FaultyRun:
    """The run that the tests of faults damage."""
    return healthy_run()
