"""A signal handler or a finaliser that traces, raises or forks in the middle of an append."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest


def interrupt(monkeypatch: pytest.MonkeyPatch, action: Any, *, parts: bool) -> None:
    """Let `action` run right after the first write, or between its two halves."""
    real, count = os.write, 0

    def write(fd: int, data: Any) -> int:
        nonlocal count
        count += 1
        if count > 1:
            return real(fd, data)
        written = real(fd, bytes(data)[: len(data) // 2] if parts else data)
        action()
        return written

    monkeypatch.setattr(os, "write", write)


@pytest.mark.parametrize("parts", [False, True])
def test_a_call_inside_an_append_is_recorded_beside_it(
    tmp_path: Path, new_writer: Any, calls: Any, found: Any, monkeypatch: pytest.MonkeyPatch, parts: bool
) -> None:
    """Also between the two halves of a line: neither is torn, both are there once, and nothing hangs."""
    writer = new_writer(tmp_path)
    assert writer.open()
    with monkeypatch.context() as patch:
        interrupt(patch, lambda: calls.both(writer), parts=parts)
        calls.both(writer)
    calls.both(writer)
    writer.close()
    seen = found(tmp_path)

    assert set(seen.calls) == calls.sent == calls.accepted
    assert set(seen.calls.values()) == {1}
    assert seen.damages == []


def test_a_call_inside_a_refused_append_is_counted(
    tmp_path: Path, new_writer: Any, calls: Any, found: Any, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    """`lost` tells of each record once, though two appends had losses to tell."""
    writer = new_writer(tmp_path)
    assert writer.open()
    with monkeypatch.context() as patch:

        def full(fd: int, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "write", full)
        calls.both(writer)
    with monkeypatch.context() as patch:
        interrupt(patch, lambda: calls.both(writer), parts=False)
        calls.both(writer)
    writer.close()
    seen = found(tmp_path)

    assert set(seen.calls) == calls.accepted
    assert seen.lost == {"ENOSPC": 2}


@pytest.mark.parametrize("parts", [False, True])
def test_a_handler_that_raises_goes_through_and_leaves_whole_lines(
    tmp_path: Path, new_writer: Any, calls: Any, found: Any, monkeypatch: pytest.MonkeyPatch, parts: bool
) -> None:
    """SystemExit of a trainer's handler: a line that was written stays and is counted, half a line is taken back."""

    def leave() -> None:
        raise SystemExit(3)

    writer = new_writer(tmp_path)
    assert writer.open()
    before = calls.both(writer)
    torn = calls.new()
    with monkeypatch.context() as patch:
        interrupt(patch, leave, parts=parts)
        with pytest.raises(SystemExit):
            writer.append(calls.line("start", torn))
    after = calls.both(writer)
    writer.close()
    seen = found(tmp_path)

    assert seen.damages == []
    assert seen.ids == ({before, after} if parts else {before, torn, after})
    assert seen.lost == ({"interrupted": 1} if parts else {})


def test_a_handler_that_forks_hurts_neither_process(
    tmp_path: Path, new_writer: Any, calls: Any, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child leaves the append with the lock of the parent in its hands, and records into a file of its own."""
    from verl_trace.recorder.counters import Counters
    from verl_trace.recorder.identity import Identity

    writer = new_writer(tmp_path)
    assert writer.open()
    pid = -1

    def fork() -> None:
        nonlocal pid
        pid = os.fork()
        if pid == 0:
            writer.after_fork(Identity("a" * 12), Counters())

    with monkeypatch.context() as patch:
        interrupt(patch, fork, parts=False)
        first = calls.both(writer)
    if pid == 0:
        code = 1
        try:
            calls.both(writer)
            writer.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    last = calls.both(writer)
    writer.close()
    seen = found(tmp_path)

    # the child's copy of `calls` makes the same id as the parent's next: two files, one record in each
    assert seen.ids == {first, last}
    assert seen.calls["start", first] == 1
    assert seen.states == ["closed", "closed"]
