"""The cache stays small: what was not used for long goes, then the oldest; and nobody is kept waiting for that."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verl_trace.reader import cache_trimming, find_runs
from verl_trace.reader.kept_files import load, store
from verl_trace.reader.outline_cache import cache_folder
from verl_trace.reader.outlines import iter_outlines
from verl_trace.recorder.sealing import seal

DAY = 86_400.0


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`kept(3, days=61)`: a file of the cache of that number, last used so long ago, of so many bytes."""
    monkeypatch.setattr(cache_trimming, "_asked", {})
    monkeypatch.setattr(cache_trimming, "_stored", {})

    def make(number: int, *, days: float = 0.0, size: int = 10, suffix: str = "") -> Path:
        path = tmp_path / "outlines" / f"{number:040x}{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (time.time() - days * DAY,) * 2)
        return path

    return make


def test_what_was_not_used_for_long(kept: Callable[..., Path]) -> None:
    """Goes, and what a killed process left; what is not ours stays, whatever its age."""
    old, young = kept(1, days=61), kept(2, days=59)
    left, being_written = kept(3, days=0.1, suffix=".77.tmp"), kept(4, suffix=".78.tmp")
    foreign = young.with_name("notes.txt")
    foreign.touch()
    os.utime(foreign, (0, 0))
    store(kept(5), b"new")

    assert {path.exists() for path in (young, being_written, foreign)} == {True}
    assert {path.exists() for path in (old, left)} == {False}


def test_the_oldest_where_it_is_too_much(kept: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Until what is left fits."""
    monkeypatch.setattr(cache_trimming, "MOST_BYTES", 35)
    files = [kept(number, days=number) for number in range(1, 8)]
    store(kept(8), b"new")

    assert [path.exists() for path in files] == [True] * 3 + [False] * 4


def test_reading_is_using(kept: Callable[..., Path]) -> None:
    """What was read today is not old."""
    read, unread = kept(1, days=61), kept(2, days=61)
    assert load(read) == b"x" * 10
    store(kept(3), b"new")

    assert (read.exists(), unread.exists()) == (True, False)


def test_once_a_day(kept: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all processes together."""
    store(kept(1), b"new")
    old = kept(2, days=61)
    monkeypatch.setattr(cache_trimming, "_asked", {})
    store(kept(3), b"new")
    assert old.exists()

    marker = old.parent.with_name("outlines.trimmed")
    os.utime(marker, (time.time() - 2 * DAY,) * 2)
    store(kept(3), b"new")
    assert old.exists(), "this process has asked today"
    monkeypatch.setattr(cache_trimming, "_asked", {})
    store(kept(3), b"new")
    assert not old.exists()


def test_no_time_for_all(kept: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends when its time is over, and the rest is for another day."""
    monkeypatch.setattr(cache_trimming, "_PATIENCE", -1.0)
    old = kept(1, days=61)
    store(kept(2), b"new")

    assert old.exists()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk on which it takes 100 ms to look at a file, by a clock of its own; there is time for some five of them."""
    clock = 1000.0
    monkeypatch.setattr(
        "verl_trace.reader.cache_trimming.time", SimpleNamespace(time=time.time, monotonic=lambda: clock)
    )
    monkeypatch.setattr("verl_trace.reader.cache_trimming.random", random.Random(1))
    listed = os.scandir

    class Slow:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name, self.path, self._entry = entry.name, entry.path, entry

        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
            nonlocal clock
            clock += 0.1
            return self._entry.stat(follow_symlinks=follow_symlinks)

    @contextlib.contextmanager
    def scandir(path: Path) -> Iterator[Iterator[Slow]]:
        with listed(path) as entries:
            yield map(Slow, entries)

    monkeypatch.setattr("verl_trace.reader.cache_trimming.os.scandir", scandir)


@pytest.mark.usefixtures("slow")
def test_a_disk_on_which_looking_takes_long(kept: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """There is time left to remove what was looked at; what is left over is looked at within the hour."""
    files = [kept(number, days=61) for number in range(20)]
    marker = files[0].parent.with_name("outlines.trimmed")
    left = len(files)
    for _ in range(30):
        monkeypatch.setattr(cache_trimming, "_asked", {})
        store(kept(99), b"new")
        before, left = left, sum(path.exists() for path in files)
        assert left <= before
        if not left:
            break
        assert abs(time.time() - marker.stat().st_mtime - DAY + 3600) < 60
        os.utime(marker, (marker.stat().st_mtime - 3601,) * 2)
    assert not left


@pytest.mark.usefixtures("slow")
def test_too_much_where_not_all_is_looked_at(kept: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look cuts a part back to its share, however little that part is by itself; the older half of it goes."""
    monkeypatch.setattr(cache_trimming, "MOST_BYTES", 20_000)
    files = [kept(number, days=number, size=1000) for number in range(40)]
    for _ in range(60):
        monkeypatch.setattr(cache_trimming, "_asked", {})
        files[0].parent.with_name("outlines.trimmed").unlink(missing_ok=True)
        store(kept(99), b"new")
        if sum(path.exists() for path in files) <= 22:
            break
    left = [number for number, path in enumerate(files) if path.exists()]

    assert 15 <= len(left) <= 22
    assert sum(left) / len(left) < 17, "those that were used lately"


def test_a_process_that_keeps_much(kept: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for the next day: the bound holds also while a hundred runs are read for the first time."""
    monkeypatch.setattr(cache_trimming, "MOST_BYTES", 64_000)
    folder = kept(0).parent
    most = 0
    for number in range(1, 200):
        store(folder / f"{number:040x}", b"x" * 500)
        most = max(most, sum(path.stat().st_size for path in folder.iterdir()))

    assert 60_000 < most <= 64_000 + 1_000


def test_a_folder_that_is_not_ours(kept: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What may not be listed, or removed, is no trouble."""
    old = kept(1, days=61)

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in ("remove", "scandir"):
        monkeypatch.setattr(cache_trimming, "_asked", {})
        marker = old.parent.with_name("outlines.trimmed")
        marker.unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr(f"verl_trace.reader.cache_trimming.os.{name}", refuse)
            store(old.with_name(f"{2:040x}"), b"new")
        assert old.exists()
        assert marker.exists(), "it was tried"
        assert load(old.with_name(f"{2:040x}")) == b"new"


def test_removed_while_a_run_is_read(writer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes between the look for it and its use is made anew."""
    monkeypatch.setenv("VERL_TRACE_CACHE", str(tmp_path / "cache"))
    for pid in (1, 2):
        made = writer(tmp_path / "runs", "p", pid=pid)
        made.call("A.run")
        made.close()
        seal(made.path)
    (run,) = find_runs(tmp_path / "runs")
    first = {outline.trace_id for outline in iter_outlines(run)}
    kept_outlines = list(cache_folder().iterdir())
    monkeypatch.setattr("verl_trace.reader.outlines.is_kept", lambda segment: True)
    for path in kept_outlines:
        path.unlink()

    assert len(kept_outlines) == 2
    assert {outline.trace_id for outline in iter_outlines(run)} == first
