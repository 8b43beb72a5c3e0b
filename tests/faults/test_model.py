"""Writer and reader against a model: in whatever order one records, crashes, seals and reads, records are found once.

Hypothesis prints a failing order as a program; `--hypothesis-seed` repeats a run.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from verl_trace.reader import find_runs
from verl_trace.recorder import sealing
from verl_trace.schemas.lines import parse_line

Tools = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]


class Recording(RuleBasedStateMachine):
    """One run folder over several processes, at most one of which is alive."""

    def __init__(self, tools: Tools) -> None:
        super().__init__()
        self.new_writer, new_calls, self.found = tools
        self.home = tempfile.TemporaryDirectory()
        self.folder = Path(self.home.name)
        self.calls = new_calls()
        self.running: list[str] = []
        self.raw: list[Path] = []
        self.readers: list[tuple[Iterator[tuple[str, str]], set[tuple[str, str]], Counter[tuple[str, str]]]] = []
        self.tails = 0
        self.exits = 0
        self._begin()

    def _begin(self) -> None:
        self.writer = self.new_writer(self.folder)
        assert self.writer.open()

    @rule(size=st.integers(0, 3000))
    def start(self, size: int) -> None:
        """A call begins."""
        call = self.calls.new()
        assert self.calls.send(self.writer, "start", call, b'"%s"' % (b"x" * size))
        self.running.append(call)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """One of the running calls returns."""
        call = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        assert self.calls.send(self.writer, "end", call)

    @rule()
    def rotate(self) -> None:
        """The background thread begins a new segment."""
        finished = self.writer.rotate()
        assert finished is not None
        self.raw.append(finished)

    @precondition(lambda self: self.raw)
    @rule(data=st.data(), crash=st.booleans())
    def seal(self, data: st.DataObject, crash: bool) -> None:
        """A finished or left segment is compressed, or the process dies between rename and unlink."""
        raw = self.raw.pop(data.draw(st.integers(0, len(self.raw) - 1)))
        content = raw.read_bytes()
        sealing.seal(raw)
        if crash:
            raw.write_bytes(content)
            self.raw.append(raw)

    @rule(tear=st.integers(0, 200))
    def crash(self, tear: int) -> None:
        """The process is gone in the middle of a line of which `tear` bytes are on disk; a new one starts."""
        path = self.writer.path
        assert path is not None
        os.write(self.writer._segment.fd, self.calls.line("start", self.calls.new())[:tear])
        os.close(self.writer._segment.fd)
        self.tails += bool(tear)
        self.raw.append(path)
        self.running = []
        self._begin()

    @rule()
    def close(self) -> None:
        """The process ends as it should; another one starts."""
        finished = self.writer.close()
        assert finished is not None
        self.raw.append(finished)
        self.exits += 1
        self.running = []
        self._begin()

    @rule()
    def begin_to_read(self) -> None:
        """A reader lists the folder now and reads on while everything else happens."""
        self.readers.append((self._read(), set(self.calls.accepted), Counter()))
        self.read_on(1)

    def _read(self) -> Iterator[tuple[str, str]]:
        for run in find_runs(self.folder):
            for writer in run.writers:
                for segment in writer.segments:
                    for _, raw in segment.lines():
                        record = parse_line(raw)
                        if record.kind in ("start", "end"):
                            yield record.kind, record.head["id"]

    @precondition(lambda self: self.readers)
    @rule(count=st.integers(1, 50))
    def read_on(self, count: int) -> None:
        """The oldest reader goes on; at its end it has seen at least what was there when it began, each once."""
        records, before, seen = self.readers[0]
        for _ in range(count):
            record = next(records, None)
            if record is None:
                self.readers.pop(0)
                assert before <= set(seen) <= self.calls.sent
                assert set(seen.values()) <= {1}
                return
            seen[record] += 1

    def teardown(self) -> None:
        """In the end everything that was accepted is found once."""
        while self.readers:
            self.read_on(50)
        self.writer.close()
        seen = self.found(self.folder)
        self.home.cleanup()

        assert set(seen.calls) == self.calls.accepted == self.calls.sent
        assert set(seen.calls.values()) <= {1}
        assert [damage.kind for damage in seen.damages] == ["torn"] * self.tails
        assert [close["reason"] for close in seen.closes].count("exit") == self.exits + 1


def test_any_order_of_events(new_writer: Any, new_calls: Any, found: Any, monkeypatch: Any) -> None:
    """Start, end, rotate, seal, crash, tear, close, reopen, read while writing: nothing lost, nothing twice."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    options = settings(
        max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    machine: Any = lambda: Recording((new_writer, new_calls, found))  # noqa: E731
    run_state_machine_as_test(machine, settings=options)
