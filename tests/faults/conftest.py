"""A writer for lines made by hand, a layer that injects faults into its system calls, and what the reader finds."""

from __future__ import annotations

import itertools
import os
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import find_runs
from verl_trace.recorder import appender
from verl_trace.recorder import writer as writer_module
from verl_trace.recorder.counters import Counters
from verl_trace.recorder.identity import Identity
from verl_trace.recorder.settings import Settings
from verl_trace.recorder.writer import SegmentWriter
from verl_trace.schemas.errors import NotARun
from verl_trace.schemas.lines import parse_line

ABOUT = {"project_name": "me/proj", "experiment_name": "exp1", "backend": "jsonl", "token2text": False}
# Every way in which the recorder asks the system to change something, or to say how full the disk is.
CALLS = (
    "open", "read", "write", "lseek", "ftruncate", "fsync", "rename", "unlink", "close", "dup", "stat", "fstat",
    "statvfs", "makedirs", "utime",
)  # fmt: skip


class Crash(BaseException):
    """The process is gone: from now on no system call of the layer does anything."""


class Found:
    """What lies in a folder: records by (kind, id), lost by reason, close records, damage."""

    def __init__(self, folder: Path) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.lost: Counter[str] = Counter()
        self.stalls: list[dict[str, Any]] = []
        self.closes: list[dict[str, Any]] = []
        self.damages: list[Any] = []
        self.states: list[str] = []
        try:
            runs = find_runs(folder)
        except NotARun:
            return
        for run in runs:
            for writer in run.writers:
                self.states.append(writer.state)
                for segment in writer.segments:
                    self._segment(segment)

    def _segment(self, segment: Any) -> None:
        lines = segment.lines()
        for count, (_, raw) in enumerate(lines, 1):
            record = parse_line(raw)
            if record.kind in ("start", "end"):
                self.calls[record.kind, record.head["id"]] += 1
            elif record.kind == "lost":
                self.lost.update(record.head["counts"])
            elif record.kind == "stall":
                self.stalls.append(record.head)
            elif record.kind == "close":
                self.closes.append(record.head)
                # header and close are not among them
                assert record.head["records"] == count - 2
        self.damages += lines.damages

    @property
    def ids(self) -> set[str]:
        """Ids of calls of which there is any record."""
        return {call for _, call in self.calls}


class Faults:
    """Stands in for functions of `os`: counts their calls and lets one of them fail.

    `plan` is None (count only) or (number of the call, what happens): "before" and "after" crash around it; an errno is
    the error it reports instead of doing anything; ("part", errno) lets half of a write through and refuses the rest;
    ("from", errno) refuses this call and all later ones of its name, until `heal`.
    """

    crash = Crash

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plan: tuple[int, Any] | None = None) -> None:
        self.plan = plan
        self.log: list[str] = []
        self.crashed = False
        self._refused: dict[str, int] = {}
        self._once = False
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def heal(self) -> None:
        """Nothing is refused any more."""
        self._refused = {}

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def done(*args: Any, **kwargs: Any) -> Any:
            # nothing here depends on a disk that is really synced
            return None if name == "fsync" else real(*args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.crashed:
                raise Crash(name)
            number = len(self.log)
            self.log.append(name)
            if self.plan is not None and number == self.plan[0]:
                return self._begin(name, done, args, kwargs)
            if name in self._refused:
                return self._refuse(name, done, args, kwargs)
            return done(*args, **kwargs)

        return call

    def _begin(self, name: str, done: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        assert self.plan is not None
        what = self.plan[1]
        if what in ("before", "after"):
            if what == "after":
                done(*args, **kwargs)
            self.crashed = True
            raise Crash(name)
        kind, number = what if isinstance(what, tuple) else ("once", what)
        self._refused, self._once = {name: number}, kind != "from"
        if kind == "part" and name == "write":
            return done(args[0], bytes(args[1])[: len(args[1]) // 2])
        return self._refuse(name, done, args, kwargs)

    def _refuse(self, name: str, done: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        number = self._refused[name]
        if self._once:
            self.heal()
        if name == "close":
            # the descriptor is gone even when close reports an error
            done(*args, **kwargs)
        raise OSError(number, os.strerror(number))


class Calls:
    """Makes start and end lines with ids of their own and knows which were accepted."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._salt = uuid.uuid4().hex[:12]
        self.sent: set[tuple[str, str]] = set()
        self.accepted: set[tuple[str, str]] = set()

    def line(self, kind: str, call: str, payload: bytes = b"{}") -> bytes:
        key = {"start": b"inputs", "end": b"output"}[kind]
        head = (
            f'{{"kind":"{kind}","bytes":{len(payload)},"step":1,"sample_index":0,"rollout_n":0,"validate":false,'
            f'"experiment_name":"exp1","op":"op","id":"{call}","trace_id":"{call}","parent_id":null,'
            f'"started_at":"2026-03-01T12:00:00.000000Z",'
        )
        if kind == "end":
            head += '"ended_at":"2026-03-01T12:00:01.000000Z","duration":1.0,"text":false,"status":"success",'
            head += '"exception":null,'
        return head.encode() + b'"attributes":{},"' + key + b'":' + payload + b"}\n"

    def new(self) -> str:
        number = next(self._numbers)
        return f"0193e1a2-{number >> 12:04x}-7{number & 0xFFF:03x}-8000-{self._salt}"

    def send(self, writer: SegmentWriter, kind: str, call: str, payload: bytes = b"{}") -> bool:
        self.sent.add((kind, call))
        accepted = writer.append(self.line(kind, call, payload))
        if accepted:
            self.accepted.add((kind, call))
        return accepted

    def both(self, writer: SegmentWriter, payload: bytes = b"{}") -> str:
        call = self.new()
        self.send(writer, "start", call, payload)
        self.send(writer, "end", call, payload)
        return call


def make_writer(folder: Path, **settings: Any) -> SegmentWriter:
    settings = {"min_free": 0, **settings}
    return SegmentWriter(folder, Identity("a" * 12), ABOUT, Settings(folder=folder, **settings), Counters())


@pytest.fixture
def calls() -> Calls:
    """A maker of lines."""
    return Calls()


@pytest.fixture
def new_calls() -> type[Calls]:
    """`new_calls()`: one more of them."""
    return Calls


@pytest.fixture
def new_writer() -> Callable[..., SegmentWriter]:
    """`new_writer(folder, **settings)`: not opened yet."""
    return make_writer


@pytest.fixture
def found() -> type[Found]:
    """`found(folder)`: what the reader finds there."""
    return Found


@pytest.fixture
def faults() -> type[Faults]:
    return Faults


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that refused is tried again by the next append."""
    monkeypatch.setattr(appender, "RETRY_AFTER", 0.0)
    monkeypatch.setattr(writer_module, "RETRY_AFTER", 0.0)


@pytest.fixture
def fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings are once per process: begin anew."""
    from verl_trace.recorder import counters

    monkeypatch.setattr(counters, "_warned", set())
