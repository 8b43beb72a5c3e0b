"""`collect` where something is wrong: a destination that is full, a source that vanishes, others at the same work."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from verl_trace.collector import Pace, collect
from verl_trace.collector import transfer as transfers
from verl_trace.collector.items import Item
from verl_trace.reader.verify import verify

# the name of the module is that of the function, too
pass_module: Any = sys.modules["verl_trace.collector.collect"]
Start = Callable[..., subprocess.Popen[str]]
Contents = Callable[..., dict[str, bytes]]


@pytest.fixture
def full(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, Callable[[], object]]]:
    """A destination with room for the side files and half of the segments, and how to make room.

    Really, where we may mount a disk.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    sides = sum(path.stat().st_size for path in recorded.glob("exp1/*.blobs"))
    size = (sides + sum(path.stat().st_size for path in recorded.glob("exp1/*.jsonl*")) // 2) >> 10
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(folder)]
    with contextlib.suppress(OSError):
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            print(f"a tmpfs of {size} KiB")
            yield folder, lambda: subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
            subprocess.run(["umount", "-l", str(folder)], check=True)
            return
    print("injected errors (nothing may be mounted here)")
    room, real = size << 10, transfers._write

    def write(target: int, data: bytes, at: int | None) -> None:
        nonlocal room
        part = data[: max(0, room)]
        room -= len(part)
        real(target, part, at)
        if len(part) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def make_room() -> None:
        nonlocal room
        room += 64 << 20

    monkeypatch.setattr(transfers, "_write", write)
    yield folder, make_room


@pytest.mark.parametrize("move", [False, True])
def test_a_destination_that_is_full(
    recorded: Path, full: tuple[Path, Callable[[], object]], contents: Contents, move: bool
) -> None:
    """What does not fit is named and stays here, nothing half of it is published; with room the next pass ends it."""
    shared, make_room = full
    before = contents(recorded)
    report = collect(recorded, shared, move=move)
    arrived, kept = contents(shared), contents(recorded)

    assert report.failures != []
    assert {reason for _, reason in report.failures} == {"No space left on device"}
    assert report.left == len(report.failures)
    assert all(before[name].startswith(text) for name, text in arrived.items())
    assert all(text in (arrived.get(name), kept.get(name)) for name, text in before.items())
    assert not list((shared / "exp1").glob("*.tmp"))

    make_room()
    report = collect(recorded, shared, move=move)
    assert (report.failures, report.left) == ([], 0)
    assert contents(shared) == before
    assert contents(recorded) == ({} if move else before)
    assert [one.state for one in verify(shared)] == ["torn"]


def test_a_source_that_vanishes_while_it_is_copied(recorded: Path, tmp_path: Path, contents: Contents) -> None:
    """The node's folder is wiped under a pass: no error but in words, and what has arrived is whole."""
    before, shared = contents(recorded), tmp_path / "shared"
    moved = 0

    def sleep(_: float) -> None:
        nonlocal moved
        moved += 1
        if moved == 3:
            shutil.rmtree(recorded)

    report = collect(recorded, shared, pace=Pace(1 << 20, sleep=sleep))

    arrived = contents(shared)
    assert moved >= 3
    assert 0 < len(arrived) < len(before)
    assert all(text == before[name] for name, text in arrived.items())
    assert all(os.path.basename(name) for name, _ in report.failures)
    assert not list((shared / "exp1").glob("*.tmp"))


def test_files_that_vanish_one_by_one(recorded: Path, tmp_path: Path, contents: Contents) -> None:
    """Another collector moves them meanwhile: no failure, since each is at the destination."""
    before, shared = contents(recorded), tmp_path / "shared"
    errors: list[BaseException] = []

    def move() -> None:
        try:
            for _ in range(4):
                assert collect(recorded, shared, move=True).failures == []
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=move) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert contents(shared) == before
    assert contents(recorded) == {}


def test_a_folder_that_goes_between_listing_and_reading(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was removed here meanwhile is none of a pass's business."""
    real = pass_module.iter_raw

    def wiped(folder: Path) -> Any:
        shutil.rmtree(folder)
        return real(folder)

    monkeypatch.setattr(pass_module, "iter_raw", wiped)
    report = collect(recorded, tmp_path / "shared")

    assert (report.failures, report.copied) == ([], 0)


def test_no_hole_where_the_sealed_form_came_first(recorded: Path, tmp_path: Path, contents: Contents) -> None:
    """A pass that is about to append, while another puts the sealed form in place and removes what it appends to."""
    collect(recorded, tmp_path / "shared")
    before, (run,) = contents(tmp_path / "shared"), (tmp_path / "shared").glob("exp1")
    name = next(path.name for path in sorted(run.glob("*.jsonl.zst"))).removesuffix(".zst")
    source = tmp_path / name
    source.write_bytes(before[name])
    sealed = run / f"{name}.zst"
    begun = Item(source, run / name, "grows", len(before[name]), modified_ns=0, is_lines=True, sealed=sealed)
    with pytest.raises(FileNotFoundError):
        transfers.transfer(replace(begun, done=1000), Pace(), "token")
    assert not (run / name).exists()
    # one that began with nothing there writes all of it, and takes it away again
    transfers.transfer(begun, Pace(), "token")
    assert not (run / name).exists()


def test_what_was_appended_is_compared(
    cluster_node: Any, tmp_path: Path, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage that keeps other bytes of an open segment: taken back, named, and written anew by the next pass."""
    cluster_node.record(600)
    while len(cluster_node.told()) < 20:
        time.sleep(0.05)
    real = transfers._write
    monkeypatch.setattr(transfers, "_write", lambda target, data, at: real(target, b"?" + data[1:], at))
    report = collect(cluster_node.folder, tmp_path / "shared")
    assert all("not what was sent" in reason for _, reason in report.failures)
    assert len(report.failures) >= 2
    assert set(contents(tmp_path / "shared").values()) <= {b""}

    monkeypatch.setattr(transfers, "_write", real)
    cluster_node.stop()
    assert collect(cluster_node.folder, tmp_path / "shared").failures == []
    assert contents(tmp_path / "shared") == contents(cluster_node.folder)


def test_the_order_in_which_a_deadline_is_used(writer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What grows first, since it holds the newest records; then the newest, and of one second the smallest."""
    now = time.time()
    files = {"old": (9000, 500), "large": (100, 5000), "small": (100, 500), "raw": (5000, 100)}
    for name, (age, size) in files.items():
        made = writer(tmp_path / "node", "p", host=name)
        made.call("op", "x" * size)
        made.close()
        if name != "raw":
            made.path = made.path.rename(made.path.with_name(f"{made.path.name}.zst"))
        os.utime(made.path, (now - age,) * 2)
    order: list[str] = []

    def transfer(item: Any, pace: Pace, token: str) -> int:
        if len(order) == 3:
            pace.stop()
            raise transfers.OutOfTime
        order.append(item.source.name.split("-")[1])
        return transfers.transfer(item, pace, token)

    monkeypatch.setattr(pass_module, "transfer", transfer)
    report = collect(tmp_path / "node", tmp_path / "shared", pace=Pace(deadline=time.monotonic() + 60))

    assert order == ["raw", "small", "large"]
    assert (report.copied, report.extended, report.left) == (2, 1, 1)
    assert report.left_size == next(path.stat().st_size for path in made.folder.iterdir() if "-old-" in path.name)


def test_the_training_goes_first(recorded: Path, tmp_path: Path, collector: Start) -> None:
    """The lowest priority for the processor, and for the disk the class that gets what nobody else wants."""
    process = collector(recorded, tmp_path / "shared", "--every", "60s")
    until = time.monotonic() + 60
    while not list(tmp_path.glob("shared/exp1/*.zst")) and time.monotonic() < until:
        time.sleep(0.05)
    nice = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[16])
    # what `ionice -p` asks
    ioprio_get = {"x86_64": 252, "aarch64": 31}[platform.machine()]
    io_class = ctypes.CDLL(None).syscall(ioprio_get, 1, process.pid) >> 13
    process.terminate()
    out, _ = process.communicate(timeout=60)

    assert (nice, io_class) == (19, 3)
    assert process.returncode == 0
    assert out.startswith(f"{os.uname().nodename}: ")


def test_a_report_by_the_name_of_the_node(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm calls it: a host may have several."""
    monkeypatch.setenv("SLURMD_NODENAME", "n2")

    assert collect(recorded, tmp_path / "shared").host == "n2"


def test_what_was_pruned_there_is_not_brought_again(recorded: Path, tmp_path: Path) -> None:
    """`prune` deleted files at the destination and wrote others anew: they stay as they are there."""
    collect(recorded, tmp_path / "shared")
    shared = tmp_path / "shared" / "exp1"
    removed, rewritten, *_ = sorted(shared.glob("*.jsonl.zst"))
    side = next(shared.glob("*.blobs"))
    removed.unlink()
    side.unlink()
    rewritten.write_bytes(rewritten.read_bytes()[:100])
    note = {"kind": "pruned", "removed": [removed.name, side.name], "rewritten": [rewritten.name]}
    (shared / "pruned-20261130T000000-0123abcd.jsonl").write_text(json.dumps(note) + '\n{"trace_id":"1"}\n')
    report = collect(recorded, tmp_path / "shared")

    assert (report.copied, report.extended, report.failures) == (0, 0, [])
    assert not removed.exists()
    assert not side.exists()
    assert rewritten.stat().st_size == 100
    # a note that was written here goes along
    (recorded / "exp1" / "pruned-20261130T000001-0123abcd.jsonl").write_text(json.dumps(note) + "\n")
    assert collect(recorded, tmp_path / "shared").copied == 1
