"""`collect` on places and files that no recorder would make, and what killed passes leave at the destination."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from verl_trace.collector import Pace, collect
from verl_trace.reader.verify import verify

Start = Callable[..., subprocess.Popen[str]]
Contents = Callable[..., dict[str, bytes]]


def test_a_folder_into_itself(recorded: Path, collector: Start, contents: Contents) -> None:
    """With --move it would be lost: the files that had arrived were those that are here. Told, and nothing removed."""
    before = contents(recorded)
    link = recorded.parent / "link"
    link.mkdir()
    (link / "exp1").symlink_to(recorded / "exp1")
    started = [
        collector(recorded, recorded / "." / "exp1" / "..", "--move"),
        collector(recorded, recorded, "--move", "--every", "1s"),
        collector(recorded / "exp1", recorded, "--move"),
        collector(link, recorded, "--move"),
    ]
    ended = [(process.communicate(timeout=60)[1], process.returncode) for process in started]

    assert [code for _, code in ended] == [2, 2, 1, 1]
    assert all("source and destination at once" in error for error, _ in ended[:2])
    assert all("exp1: is its own destination" in error for error, _ in ended[2:])
    assert contents(recorded) == before


def test_files_that_are_one(recorded: Path, tmp_path: Path, contents: Contents) -> None:
    """A destination of links to what is here holds nothing of its own."""
    before = contents(recorded)
    shared = tmp_path / "shared" / "exp1"
    shared.mkdir(parents=True)
    for path in (recorded / "exp1").iterdir():
        (shared / path.name).symlink_to(path)
    collect(recorded, tmp_path / "shared", move=True)

    here = contents(recorded)
    assert {name: here.get(name) for name in before if name.endswith((".zst", ".blobs"))} == {
        name: text for name, text in before.items() if name.endswith((".zst", ".blobs"))
    }


@pytest.mark.parametrize("inside", [False, True])
def test_a_run_by_a_name_with_dots(
    recorded: Path, tmp_path: Path, contents: Contents, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """`.` and `..` have the name of the folder that they are."""
    below = recorded / "exp1" / "below"
    below.mkdir()
    monkeypatch.chdir(below if inside else recorded / "exp1")
    collect(".." if inside else ".", tmp_path / "shared" / "runs")

    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["runs"]
    assert [path.name for path in (tmp_path / "shared" / "runs").iterdir()] == ["exp1"]
    assert contents(tmp_path / "shared" / "runs") == contents(recorded)


def test_one_that_is_in_the_way_keeps_no_other(recorded: Path, tmp_path: Path, contents: Contents) -> None:
    """Of runs and files that cannot be read or written each is named, and all others arrive."""
    shared, before = tmp_path / "shared", contents(recorded)
    shutil.copytree(recorded / "exp1", recorded / "exp0")
    shared.mkdir()
    (shared / "exp0").touch()
    (recorded / "exp1" / "loop.00000.jsonl").symlink_to("loop.00000.jsonl")
    os.mkfifo(recorded / "exp1" / "pipe.00000.jsonl")
    (recorded / "exp1" / "taken.00000.jsonl").write_text("a line\n")
    (shared / "exp1" / "taken.00000.jsonl").mkdir(parents=True)
    (shared / "exp1" / "pruned-1.jsonl").write_text('{"removed": 5, "rewritten": "all"}\n')
    report = collect(recorded, shared)
    shutil.rmtree(shared / "exp1" / "taken.00000.jsonl")
    (shared / "exp1" / "pruned-1.jsonl").unlink()

    assert sorted((os.path.basename(name), reason) for name, reason in report.failures) == [
        ("exp0", "File exists"),
        ("loop.00000.jsonl", "Too many levels of symbolic links"),
        ("pipe.00000.jsonl", "is no regular file"),
        ("taken.00000.jsonl", "Is a directory"),
    ]
    (shared / "exp0").unlink()
    assert contents(shared) == before


def test_names_that_are_no_text(recorded: Path, tmp_path: Path, collector: Start) -> None:
    """The report is JSON all the same."""
    name = b"\xff.00000.jsonl"
    with open(os.path.join(os.fsencode(recorded), b"exp1", name), "wb") as file:
        file.write(b"a line\n")
    os.makedirs(os.path.join(os.fsencode(tmp_path), b"shared", b"exp1", name))
    process = collector(recorded, tmp_path / "shared", "--json")
    out, error = process.communicate(timeout=60)

    assert (process.returncode, error) == (1, "")
    (failure,) = json.loads(out)["failures"]
    assert failure == {"file": f"{recorded}/exp1/\\udcff.00000.jsonl", "reason": "Is a directory"}


def test_what_lies_there_is_compared_before_it_is_removed_here(
    recorded: Path, tmp_path: Path, contents: Contents
) -> None:
    """A copy of the same size and time, damaged since or brought by others, is no reason to remove the original."""
    before = contents(recorded)
    collect(recorded, tmp_path / "shared")
    sealed, *_ = sorted((tmp_path / "shared" / "exp1").glob("*.jsonl.zst"))
    status = sealed.stat()
    sealed.write_bytes(bytes(status.st_size))
    os.utime(sealed, ns=(status.st_mtime_ns, status.st_mtime_ns))
    report = collect(recorded, tmp_path / "shared", move=True)

    assert (report.copied, report.failures) == (1, [])
    assert contents(tmp_path / "shared") == before
    assert contents(recorded) == {}


def test_what_did_not_arrive_is_not_removed(recorded: Path, tmp_path: Path, contents: Contents) -> None:
    """A file of the same size is there, of another time; the one from here gets no turn: it stays here."""
    collect(recorded, tmp_path / "shared")
    before = contents(recorded)
    for sealed in (tmp_path / "shared" / "exp1").glob("*.jsonl.zst"):
        sealed.write_bytes(bytes(sealed.stat().st_size))
        os.utime(sealed, (1, 1))
    report = collect(recorded, tmp_path / "shared", move=True, pace=Pace(None, time.monotonic()))

    assert report.left >= 3
    assert report.removed == 0
    assert contents(recorded) == before


@pytest.mark.parametrize("same", [True, False])
def test_both_forms_after_a_kill(recorded: Path, tmp_path: Path, same: bool) -> None:
    """The copy of the open segment goes when the sealed one, which is there, begins with it; else it is told."""
    collect(recorded, tmp_path / "shared")
    sealed, *_ = sorted((tmp_path / "shared" / "exp1").glob("*.jsonl.zst"))
    content = zstandard.ZstdDecompressor().stream_reader(sealed.read_bytes(), read_across_frames=True).read()
    raw = sealed.with_suffix("")
    raw.write_bytes(content[: content.index(b"\n") + 1] if same else content[:-2] + b"?\n")
    collect(recorded, tmp_path / "shared", move=True)

    assert raw.exists() is not same
    assert [one.state for one in verify(tmp_path / "shared")] == ["torn" if same else "damaged"]


def test_a_signal_ends_the_wait_for_a_low_limit(recorded: Path, tmp_path: Path, collector: Start) -> None:
    """At ten kilobytes a second a piece waits for minutes: SIGTERM ends that, and the last pass has no limit."""
    process = collector(recorded, tmp_path / "shared", "--every", "600s", "--bwlimit", "10KB")
    while not list((tmp_path / "shared").rglob("*.blobs")):
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(1.0)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)

    assert process.returncode == 0
    # a whole pass, on a machine that may be busy; the wait alone would be more than a minute
    assert time.monotonic() - began < 30
