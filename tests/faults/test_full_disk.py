"""A disk that runs full and is freed again: really, where the machine lets us mount one, else by injected errors."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_trace import RolloutTraceConfig, rollout_trace_op
from verl_trace.recorder import appender, session
from verl_trace.recorder import limits as limits_module
from verl_trace.recorder import writer as writer_module


class MountedDisk:
    """A file system of 1 MiB."""

    kind = "a tmpfs of 1 MiB"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "checkpoint"

    def fill(self) -> None:
        """Write until not one byte more fits."""
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4096)

    def free(self) -> None:
        """Space again."""
        self._filler.unlink()


class InjectedDisk:
    """Where nothing may be mounted: every write says that the disk is full."""

    kind = "injected errors (nothing may be mounted here)"

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._full = False
        real = os.write

        def write(fd: int, data: Any) -> int:
            if self._full and fd > 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, data)

        monkeypatch.setattr(os, "write", write)

    def fill(self) -> None:
        """No write works."""
        self._full = True

    def free(self) -> None:
        """They work again."""
        self._full = False


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MountedDisk | InjectedDisk]:
    """A small disk; says which."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    with contextlib.suppress(OSError):
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            print(f"disk: {MountedDisk.kind}")
            yield MountedDisk(folder)
            subprocess.run(["umount", "-l", str(folder)], check=True)
            return
    print(f"disk: {InjectedDisk.kind}")
    yield InjectedDisk(folder, monkeypatch)


class Tool:
    """Records four kilobytes a call."""

    @rollout_trace_op
    def execute(self, number: int) -> str:
        return "x" * 4000 + str(number)


@pytest.fixture
def recording(disk: Any, monkeypatch: pytest.MonkeyPatch, fresh_warnings: None) -> Iterator[Any]:
    """A recording on the disk whose recovery is noticed quickly."""
    for module in (appender, writer_module):
        monkeypatch.setattr(module, "RETRY_AFTER", 0.05)
    monkeypatch.setenv("VERL_TRACE_DIR", str(disk.folder))
    monkeypatch.setenv("VERL_TRACE_MIN_FREE", "0")
    RolloutTraceConfig.reset()
    RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
    yield session.current()
    RolloutTraceConfig.reset()


def until(condition: Callable[[], bool], step: Callable[[], object]) -> None:
    """Take steps until it is so."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        step()


def test_a_full_disk_degrades_and_recovers(disk: Any, recording: Any, found: Any, capfd: Any) -> None:
    """Calls go on, one warning; when space returns recording resumes, and a record tells what was missed."""
    tool, numbers = Tool(), iter(range(1_000_000))
    done: list[str] = []

    def call() -> None:
        done.append(tool.execute(next(numbers)))

    counters = recording.counters
    call()
    disk.fill()
    until(lambda: counters.dropped.total() >= 50, call)
    written = counters.written
    disk.free()
    # resumes by itself: the `lost` record does not wait for a call
    until(lambda: not counters.pending, lambda: time.sleep(0.01))
    until(lambda: counters.written >= written + 10, call)
    RolloutTraceConfig.reset()
    seen = found(disk.folder)

    assert [text.removeprefix("x" * 4000) for text in done] == [str(n) for n in range(len(done))]
    assert seen.calls.total() + seen.lost.total() == 2 * len(done)
    assert set(seen.calls.values()) == {1}
    assert seen.lost == counters.dropped == {"ENOSPC": seen.lost.total()}
    assert seen.damages == []
    assert capfd.readouterr().err.count("No space left on device") == 1


def test_a_full_disk_at_start_is_left_behind(disk: Any, recording: Any, found: Any) -> None:
    """Not even a header fits: calls go on, and recording begins when it does."""
    RolloutTraceConfig.reset()
    disk.fill()
    RolloutTraceConfig.init("me/proj", "exp2", "jsonl")
    counters = session.current().counters  # type: ignore[union-attr]
    tool = Tool()
    assert tool.execute(1).endswith("1")
    assert counters.dropped == {"ENOSPC": 2}
    disk.free()
    until(lambda: not counters.pending, lambda: time.sleep(0.01))
    tool.execute(2)
    RolloutTraceConfig.reset()
    seen = found(disk.folder / "exp2")

    assert seen.calls.total() == 2
    assert seen.lost == {"ENOSPC": 2}


@pytest.mark.parametrize("retry_after", [0.05, 600.0])
def test_a_disk_that_stays_full_keeps_what_was_recorded(
    disk: Any, recording: Any, found: Any, capfd: Any, monkeypatch: pytest.MonkeyPatch, retry_after: float
) -> None:
    """Closing and sealing fail as well: every record that was written stays readable, and all of the loss is told, by a
    record where that still fits into the file's last page, else at the end."""
    # how long a refused write keeps the next one away: as long as the test, or so shortly that small records are tried
    for module in (appender, writer_module):
        monkeypatch.setattr(module, "RETRY_AFTER", retry_after)
    tool = Tool()
    for number in range(20):
        tool.execute(number)
    disk.fill()
    counters = recording.counters
    until(lambda: counters.dropped.total() >= 10, lambda: tool.execute(99))
    if retry_after < 1:
        # now a record of the loss may be tried, whatever else the machine does
        time.sleep(2 * retry_after)
    RolloutTraceConfig.reset()
    seen = found(disk.folder)
    dropped, said = counters.dropped.total(), capfd.readouterr().err

    assert seen.calls.total() == counters.written
    assert seen.damages == []
    assert (f"records lost: {dropped}" in said) is (seen.lost.total() < dropped)
    assert retry_after < 1 or seen.lost.total() == 0


def test_the_cap_of_a_run_counts_the_files_of_all_its_processes(
    tmp_path: Path, new_writer: Any, calls: Any, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VERL_TRACE_MAX_BYTES: recording pauses when the folder has grown to it, whoever wrote the files."""
    monkeypatch.setattr(limits_module, "CAP_INTERVAL", 0.0)
    first, second = new_writer(tmp_path, max_bytes=40_000), new_writer(tmp_path, max_bytes=40_000)
    assert first.open()
    assert second.open()
    calls.both(first, b'"%s"' % (b"x" * 25_000))
    second.check_health()
    assert not calls.send(second, "start", calls.new())
    first.close()
    (path,) = [p for p in tmp_path.iterdir() if p.stat().st_size > 40_000]
    path.unlink()
    second.check_health()
    calls.both(second)
    second.close()

    assert found(tmp_path).lost == {"MAX_BYTES": 1}
