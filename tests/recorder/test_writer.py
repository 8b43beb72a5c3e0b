"""The writer and the sealer: segments, rotation, trouble with the disk."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from verl_trace.recorder import appender, sealing
from verl_trace.recorder.counters import Counters
from verl_trace.recorder.identity import Identity
from verl_trace.recorder.limits import Limits
from verl_trace.recorder.settings import Settings
from verl_trace.recorder.writer import SegmentWriter

ABOUT = {"project_name": "p", "experiment_name": "exp1"}


def make(folder: Path, **settings: Any) -> SegmentWriter:
    writer = SegmentWriter(
        folder, Identity("a" * 12), ABOUT, Settings(folder=folder, min_free=0, **settings), Counters()
    )
    assert writer.open()
    return writer


def records(folder: Path) -> list[dict[str, Any]]:
    out = []
    for path in sorted(folder.glob("*.jsonl*")):
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().decompress(data)
        assert data.endswith(b"\n")
        out += [orjson.loads(line) for line in data.splitlines()]
    return out


def line(number: int) -> bytes:
    return b'{"kind":"test","n":%d}\n' % number


def numbers(folder: Path) -> list[int]:
    return [r["n"] for r in records(folder) if r["kind"] == "test"]


def test_a_rotation_keeps_every_line_once(tmp_path: Path) -> None:
    """Appending threads and a rotating, sealing one: all lines, none twice, each file begins with a header."""
    writer = make(tmp_path)
    done = threading.Event()

    def append(start: int) -> None:
        for number in range(start, start + 2000):
            assert writer.append(line(number))

    threads = [threading.Thread(target=append, args=(k * 2000,)) for k in range(4)]
    for thread in threads:
        thread.start()

    def rotate() -> None:
        while not done.is_set():
            finished = writer.rotate()
            assert finished is not None
            sealing.seal(finished)

    rotator = threading.Thread(target=rotate)
    rotator.start()
    for thread in threads:
        thread.join()
    done.set()
    rotator.join()
    last = writer.close()
    assert last is not None
    sealing.seal(last)

    assert sorted(numbers(tmp_path)) == list(range(8000))
    assert all(path.name.endswith(".jsonl.zst") for path in tmp_path.iterdir())
    kinds = [r["kind"] for r in records(tmp_path)]
    assert kinds.count("header") == kinds.count("close") == len(list(tmp_path.iterdir()))


def test_sealed_files_are_standard_zstd(tmp_path: Path) -> None:
    """One frame with a checksum and the content's size, and the raw file is gone."""
    writer = make(tmp_path)
    writer.append(line(1))
    raw = writer.close()
    assert raw is not None
    content = raw.read_bytes()

    sealed = sealing.seal(raw)

    assert not raw.exists()
    parameters = zstandard.get_frame_parameters(sealed.read_bytes())
    assert parameters.has_checksum
    assert parameters.content_size == len(content)
    assert zstandard.ZstdDecompressor().decompress(sealed.read_bytes()) == content


def test_a_full_disk_is_counted_and_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """ENOSPC, with half a line written: the half is removed, losses are counted, one warning; later lines arrive."""
    writer = make(tmp_path)
    writer.append(line(1))
    real = os.write
    monkeypatch.setattr(appender, "RETRY_AFTER", 0.0)

    def full(fd: int, data: Any) -> int:
        if len(data) > 10:
            return real(fd, bytes(data[:10]))
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    calls = iter([full, refuse, refuse, refuse])
    monkeypatch.setattr(os, "write", lambda fd, data: next(calls, real)(fd, data))
    assert not writer.append(line(2))
    assert not writer.append(line(3))
    assert not writer.append(line(4))
    assert writer.append(line(5))
    writer.close()

    assert numbers(tmp_path) == [1, 5]
    (lost,) = [r for r in records(tmp_path) if r["kind"] == "lost"]
    assert lost["counts"] == {"ENOSPC": 3}
    assert lost["since"] <= lost["until"]
    assert records(tmp_path)[-1]["counters"]["dropped"] == 3
    assert capfd.readouterr().err.count("No space left") <= 1


def test_while_blocked_no_system_call_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a refusal the next second's calls cost nothing."""
    writer = make(tmp_path)
    tries = []

    def refuse(fd: int, data: Any) -> int:
        tries.append(1)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "write", refuse)
    for number in range(100):
        assert not writer.append(line(number))
    assert len(tries) == 1
    assert writer.counters.dropped == {"EIO": 100}


def test_a_missing_folder_is_made_and_a_refusing_one_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file where the folder should be: calls go on; when it is out of the way, recording begins."""
    monkeypatch.setattr(appender, "RETRY_AFTER", 0.0)
    obstacle = tmp_path / "exp1"
    obstacle.write_text("in the way")
    writer = SegmentWriter(obstacle, Identity("a" * 12), ABOUT, Settings(folder=tmp_path, min_free=0), Counters())

    assert not writer.append(line(1))
    obstacle.unlink()
    assert writer.append(line(2))
    writer.close()

    assert numbers(obstacle) == [2]
    assert [r["records"] for r in records(obstacle) if r["kind"] == "lost"] == [1]


def test_a_removed_folder_is_noticed(tmp_path: Path) -> None:
    """Removed mid-run: what was in it counts as lost, recording goes on in a new file."""
    folder = tmp_path / "exp1"
    writer = make(folder)
    writer.append(line(1))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    writer.check_health()
    writer.append(line(2))
    writer.close()

    assert numbers(folder) == [2]
    (lost,) = [r for r in records(folder) if r["kind"] == "lost"]
    assert lost["counts"] == {"file removed": 1}


def test_the_reserve_of_the_disk_is_kept(tmp_path: Path) -> None:
    """Below VERL_TRACE_MIN_FREE recording pauses, and goes on when space returns."""
    writer = make(tmp_path)
    writer._limits = Limits(tmp_path, Settings(folder=tmp_path, min_free=1 << 62))
    writer.check_health()
    assert not writer.append(line(1))
    writer._limits = Limits(tmp_path, Settings(folder=tmp_path, min_free=0))
    writer.check_health()
    assert writer.append(line(2))
    writer.close()

    assert numbers(tmp_path) == [2]
    assert [r["counts"] for r in records(tmp_path) if r["kind"] == "lost"] == [{"MIN_FREE": 1}]


def test_a_stalled_disk_costs_one_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one slow write the next ones wait in a queue that is drained in order when the disk answers."""
    monkeypatch.setattr(appender, "STALL_SECONDS", 0.05)
    writer = make(tmp_path)
    real = os.write
    slow = threading.Event()

    def stall_once(fd: int, data: Any) -> int:
        if not slow.is_set():
            slow.set()
            threading.Event().wait(0.1)
        return real(fd, data)

    monkeypatch.setattr(os, "write", stall_once)
    for number in range(5):
        assert writer.append(line(number))
    assert numbers(tmp_path) == [0]
    writer.drain()
    assert writer.append(line(5))
    writer.close()

    assert numbers(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_the_queue_of_a_stalled_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is counted."""
    monkeypatch.setattr(appender, "QUEUE_BYTES", 60)
    writer = make(tmp_path)
    writer._stall()
    results = [writer.append(line(number)) for number in range(5)]

    assert results == [True, True, False, False, False]
    assert writer.counters.dropped["queue full"] == 3
    writer.close()
    assert numbers(tmp_path) == [0, 1]


def test_rotation_is_due_by_size_or_by_age_with_substance(tmp_path: Path) -> None:
    """A large segment at once; an old one only when it is not tiny."""
    writer = make(tmp_path, segment_bytes=4096, seal_age=0.0)
    assert not writer.rotation_due(min_seal_bytes=100)
    while writer.size < 100:
        writer.append(line(1))
    assert writer.rotation_due(min_seal_bytes=100)
    assert not writer.rotation_due(min_seal_bytes=1 << 20)
    while writer.size < 4096:
        writer.append(line(1))
    assert writer.rotation_due(min_seal_bytes=1 << 20)
    writer.close()


def test_an_environment_that_is_not_text_is_recorded_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are no UTF-8 in a variable, half a surrogate pair in a name: the header is written, and is JSON."""
    monkeypatch.setenv("SLURM_CLUSTER_NAME", os.fsdecode(b"caf\xe9"))
    about = {"project_name": "p", "experiment_name": "half \ud83d"}
    writer = SegmentWriter(tmp_path, Identity(), about, Settings(folder=tmp_path, min_free=0), Counters())
    assert writer.open()
    assert writer.append(line(1))
    writer.close()

    assert numbers(tmp_path) == [1]
    assert "cluster_name" in records(tmp_path)[0]["slurm"]
