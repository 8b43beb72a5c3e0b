"""Races and mistaken identities when a folder is looked through: seals during a listing, reused pids, other files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import zstandard

from verl_trace.reader import find_runs, summarise
from verl_trace.reader.places import list_files


def seal(path: Path) -> Path:
    """The sealed form in place of a raw file."""
    sealed = path.with_name(path.name + ".zst")
    sealed.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(path.read_bytes()))
    path.unlink()
    return sealed


def test_a_seal_during_a_listing_loses_nothing(
    tmp_path: Path, writer: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing that saw neither the old name nor the new one: the second sees the new one."""
    made = writer(tmp_path, "p")
    made.call("a")
    made.close()
    listings = []

    def blind_once(path: Path) -> tuple[list[str], list[str]]:
        names, others = list_files(path)
        if path == made.folder:
            listings.append(path)
            if len(listings) == 1:
                seal(made.path)
                return [name for name in names if not name.endswith(".jsonl")], others
        return names, others

    monkeypatch.setattr("verl_trace.reader.runs.list_files", blind_once)
    (run,) = find_runs(made.folder)

    assert len(listings) > 1
    assert summarise(run).calls == 1


def own_header(made: Any, pid: int, ticks: int) -> None:
    """Let a file say that process `pid` of this very host wrote it."""
    data: bytes = made.path.read_bytes()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for old, new in (
        ('"pid":4711', f'"pid":{pid}'),
        ('"pid_start":1', f'"pid_start":{ticks}'),
        ('"pid_ns":1', f'"pid_ns":{os.stat("/proc/self/ns/pid").st_ino}'),
        ('"boot_id":"none"', f'"boot_id":"{boot}"'),
    ):
        assert data.count(old.encode()) == 1
        data = data.replace(old.encode(), new.encode())
    made.path.write_bytes(data)


def own_ticks() -> int:
    """When this process began."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def test_on_the_same_host_the_process_tells_whether_a_writer_lives(tmp_path: Path, writer: type[Any]) -> None:
    """It runs: live. Its pid is another process's by now: torn, however young the file is."""
    for ticks, state in ((own_ticks(), "live"), (own_ticks() - 1, "torn")):
        made = writer(tmp_path / state, "p")
        made.start("a")
        own_header(made, os.getpid(), ticks)
        (run,) = find_runs(tmp_path / state)

        assert run.state == state


def test_other_files_and_unfinished_seals_are_not_read(tmp_path: Path, writer: type[Any]) -> None:
    """Temporary files, markers and strangers in the folder are left alone."""
    made = writer(tmp_path, "p")
    made.call("a")
    made.close()
    (made.folder / (made.path.name + ".zst.tmp")).write_bytes(b"half a seal")
    (made.folder / ".attempt-5c1d0a77be02").touch()
    (made.folder / "notes.jsonl").write_text('{"kind":"start"}\n')
    (run,) = find_runs(tmp_path)
    found = summarise(run)

    assert (found.calls, found.damages) == (1, [])
