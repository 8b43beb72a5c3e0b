"""Crashes before and after every system call of a recording's life, and every error from every one of them.

The boundaries are those that one clean run makes; no list of them is written down here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.recorder import sealing

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
Step = Callable[[], object]


def life(writer: Any, calls: Any) -> list[Step]:
    """Open, append, sync, check, rotate, seal, close: in the order of a real recording."""
    finished: list[Path | None] = []

    def seal_all() -> None:
        while finished:
            path = finished.pop()
            if path is not None:
                sealing.seal(path)

    def append() -> None:
        for _ in range(3):
            calls.both(writer)
        # a call that never ends
        calls.send(writer, "start", calls.new())

    def rotate() -> None:
        finished.append(writer.rotate())

    def close() -> None:
        finished.append(writer.close())

    middle = [append, writer.sync, writer.check_health, rotate, append, seal_all]
    return [writer.open, *middle, *middle, append, writer.check_health, close, seal_all]


def live(steps: list[Step]) -> None:
    """Take the steps as the background thread does: an error in one does not keep the next from being tried."""
    for step in steps:
        try:
            step()
        except OSError:
            continue


def close_files(folder: Path) -> None:
    """Close what a process that is gone would not hold any more."""
    for entry in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{entry}").startswith(str(folder)):
                os.close(int(entry))
        except OSError:
            continue


@pytest.fixture
def boundaries(tmp_path: Path, new_writer: Any, new_calls: Any, faults: Any, at_once: None) -> list[str]:
    """The names of the system calls of one clean run, in order."""
    # twice: the first run also reads the versions of packages
    for name in ("first", "clean"):
        with pytest.MonkeyPatch.context() as patch:
            layer = faults(patch)
            live(life(new_writer(tmp_path / name, min_free=1), new_calls()))
    log: list[str] = layer.log

    assert {"open", "write", "fsync", "rename", "unlink", "close", "statvfs", "makedirs"} <= set(log)
    return log


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_boundary_leaves_every_record_exactly_once(
    tmp_path: Path, boundaries: list[str], new_writer: Any, new_calls: Any, faults: Any, found: Any, when: str
) -> None:
    """What was accepted before the crash is found, and found once; nothing is damaged but a tail."""
    for number, name in enumerate(boundaries):
        folder, calls = tmp_path / f"{number}", new_calls()
        with pytest.MonkeyPatch.context() as patch:
            layer = faults(patch, (number, when))
            with pytest.raises(faults.crash):
                live(life(new_writer(folder, min_free=1), calls))
            assert layer.log[number] == name
        close_files(folder)
        seen = found(folder)

        assert calls.accepted <= set(seen.calls) <= calls.sent, (number, name)
        assert set(seen.calls.values()) <= {1}, (number, name)
        assert {damage.kind for damage in seen.damages} <= {"torn"}, (number, name)
    print(f"{len(boundaries)} boundaries, a crash {when} each: 0 records lost, 0 doubled")


def faults_of(name: str) -> list[Any]:
    """All that may happen instead of one call."""
    out: list[Any] = [*ERRORS, ("from", errno.ENOSPC)]
    return [*out, ("part", errno.ENOSPC)] if name == "write" else out


@pytest.mark.usefixtures("fresh_warnings")
def test_what_an_error_at_any_boundary_costs_is_counted_to_the_record(
    tmp_path: Path, boundaries: list[str], new_writer: Any, new_calls: Any, faults: Any, found: Any
) -> None:
    """Calls go on; accepted records are found once; the others are told by `lost` records, counters and no more."""
    tried = dropped = 0
    for number, name in enumerate(boundaries):
        for fault in faults_of(name):
            folder, calls = tmp_path / f"{tried}", new_calls()
            writer = new_writer(folder, min_free=1)
            with pytest.MonkeyPatch.context() as patch:
                layer = faults(patch, (number, fault))
                live(life(writer, calls))
                layer.heal()
                calls.both(writer)
                live([writer.check_health, writer.close, writer.leftovers])
            seen, tried = found(folder), tried + 1
            missing = calls.sent - calls.accepted
            dropped += len(missing)

            assert set(seen.calls) == calls.accepted, (number, name, fault)
            assert set(seen.calls.values()) == {1}, (number, name, fault)
            assert seen.lost == writer.counters.dropped, (number, name, fault)
            assert seen.lost.total() == len(missing), (number, name, fault)
            assert {damage.kind for damage in seen.damages} <= {"torn"}, (number, name, fault)
    assert dropped
    print(f"{len(boundaries)} boundaries, {tried} errors: {dropped} records dropped, all of them told")
