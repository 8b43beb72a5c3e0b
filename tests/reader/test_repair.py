"""Where `repair` writes and where it refuses to; faults are in test_fault_*.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from verl_trace.reader.repair import repair
from verl_trace.reader.verify import verify
from verl_trace.schemas.errors import BadTarget


@pytest.fixture
def runs(tmp_path: Path, writer: Any) -> Path:
    """Two runs in a folder; the second was killed in a call."""
    folder = tmp_path / "runs"
    one, two = writer(folder, "proj", "exp1"), writer(folder, "proj", "exp2")
    one.call("Loop.run", {"a": 1})
    one.close()
    two.call("Loop.run")
    two.start("Loop.run")
    two.age(1000)
    (one.folder / ".attempt-5c1d0a77be02").touch()
    return folder


def test_folder_of_runs_is_copied_as_it_is_laid_out(runs: Path, tmp_path: Path) -> None:
    """Same folders and names, markers of attempts too; calls that never ended stay so."""
    result = repair(runs, tmp_path / "copy")
    stems = sorted(path.relative_to(runs).with_suffix("") for path in runs.rglob("*.jsonl"))
    copied = sorted(path.relative_to(tmp_path / "copy") for path in (tmp_path / "copy").rglob("*.zst"))

    assert copied == [stem.with_name(stem.name + ".jsonl.zst") for stem in stems]
    assert (tmp_path / "copy" / "exp1" / ".attempt-5c1d0a77be02").exists()
    assert result.complete
    assert [(report.state, report.unfinished) for report in verify(tmp_path / "copy")] == [("whole", 0), ("whole", 1)]


def test_report_lies_in_the_copy(runs: Path, tmp_path: Path) -> None:
    """Who gets the copy reads in it what was left out."""
    with next((runs / "exp1").glob("*.jsonl")).open("ab") as file:
        file.write(b"garbage\n")
    result = repair(runs, tmp_path / "copy")
    report = orjson.loads((tmp_path / "copy" / "repair.json").read_bytes())

    assert report == result.as_json()
    assert not report["complete"]
    assert [place["kind"] for place in report["left_out"]] == ["line", "torn"]


def test_copy_of_a_copy_is_the_same(runs: Path, tmp_path: Path) -> None:
    """Nothing is added to what was repaired before."""
    repair(runs, tmp_path / "copy")
    result = repair(tmp_path / "copy", tmp_path / "again")

    assert (result.complete, result.made_anew) == (True, [])
    for path in (tmp_path / "copy").rglob("*.zst"):
        assert (tmp_path / "again" / path.relative_to(tmp_path / "copy")).read_bytes() == path.read_bytes()


def test_single_file_can_be_repaired(runs: Path, tmp_path: Path) -> None:
    """RUN may be one file."""
    path = next((runs / "exp1").glob("*.jsonl"))
    result = repair(path, tmp_path / "copy")

    assert (result.files, result.copy) == (1, "whole")
    assert [file.name for file in (tmp_path / "copy").glob("*.zst")] == [path.name + ".zst"]


@pytest.mark.parametrize("out", ["", "exp1", "new", "exp1/new/deep", "../runs", "../full", "../file"])
def test_original_is_never_written_into(runs: Path, out: str) -> None:
    """Not into RUN, not below it, not over anything that is there; and nothing is left behind."""
    (runs.parent / "full").mkdir()
    (runs.parent / "full" / "file").touch()
    (runs.parent / "file").touch()
    before = sorted(runs.parent.rglob("*"))

    with pytest.raises(BadTarget):
        repair(runs, runs / out)
    assert sorted(runs.parent.rglob("*")) == before


def test_link_into_the_original_is_seen(runs: Path, tmp_path: Path) -> None:
    """A symbolic link does not make it another folder."""
    (tmp_path / "link").symlink_to(runs)

    with pytest.raises(BadTarget):
        repair(runs, tmp_path / "link" / "new")


def test_full_disk_is_a_message(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No half-written segment gets a name that a reader takes."""

    def full(fd: int) -> None:
        raise OSError(28, os.strerror(28), "disk")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadTarget, match="No space left") as caught:
        repair(runs, tmp_path / "copy")
    assert "original was not touched" in caught.value.hint
    assert [path for path in (tmp_path / "copy").rglob("*") if path.is_file() and "jsonl" in path.name] == []
