"""Which runs and writers a folder holds, and whether they live; what happens while files come and go."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import find_runs, iter_trajectories, summarise
from verl_trace.reader.places import list_files
from verl_trace.reader.segments import SegmentLines
from verl_trace.reader.trees import Reading
from verl_trace.schemas.errors import NotARun


def test_two_projects_in_one_folder_are_two_runs(spans: Any) -> None:
    """By their headers, in the order of their names; every file belongs to one."""
    for writer, project in enumerate(["b", "a", "b"], 1):
        spans.raw(spans.header(writer, project_name=project), spans.start(writer), writer=writer)
    runs = find_runs(spans.folder)

    assert [(run.project_name, len(run.writers)) for run in runs] == [("a", 1), ("b", 2)]
    assert [summarise(run).calls for run in runs] == [1, 2]


def test_a_folder_of_runs_a_run_and_a_file(spans: Any, tmp_path: Path) -> None:
    """All three are found; folders without span files, and other files, are passed over."""
    spans.raw(spans.header(1), writer=1)
    sealed = spans.sealed(spans.header(2) + spans.start(1), writer=2)
    (tmp_path / "other").mkdir()
    (tmp_path / "notes.txt").touch()
    (spans.folder / f"{sealed.name}.tmp").write_bytes(b"half")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")

    assert [len(run.writers) for run in find_runs(tmp_path)] == [2]
    assert [len(run.writers) for run in find_runs(spans.folder)] == [2]
    assert [summarise(run).calls for run in find_runs(sealed)] == [1]


def test_what_is_no_run_is_said_in_one_sentence(tmp_path: Path) -> None:
    """No such folder, a folder without span files, a file that is none, one that was renamed."""
    (tmp_path / "file").touch()
    (tmp_path / "renamed" / "exp1").mkdir(parents=True)
    (tmp_path / "renamed" / "exp1" / "step1.jsonl.zst").touch()
    for path, words in (
        ("no", "no such file or folder"),
        (".", "no span files"),
        ("file", "not a span file"),
        ("renamed", "no span files; exp1/step1.jsonl.zst is not named as a span file is"),
        ("renamed/exp1/step1.jsonl.zst", "step1.jsonl.zst: not named as a span file is"),
    ):
        with pytest.raises(NotARun, match=words) as caught:
            find_runs(tmp_path / path)
        assert caught.value.hint


def test_a_header_that_is_lost(spans: Any) -> None:
    """Its file goes with the folder's only run; among two runs nobody can tell. The damage is named once."""
    spans.raw(spans.header(1), spans.start(1), writer=1)
    headless = spans.raw(spans.start(2), spans.end(2), writer=2)
    spans.age()
    (run,) = find_runs(spans.folder)
    reading = Reading()
    assert len(list(iter_trajectories(run, reading))) == 2
    assert [(d.path, d.offset, d.length, d.kind) for d in reading.damages] == [(headless, 0, 0, "header")]

    spans.raw(spans.header(3, project_name="other"), writer=3)
    names = [(run.project_name, len(run.writers)) for run in find_runs(spans.folder)]
    assert names == [("me/proj", 1), ("other", 1), ("unknown", 1)]


def test_a_later_segment_tells_whose_a_headless_one_is(spans: Any) -> None:
    """Every segment has a header."""
    spans.raw(spans.start(1), segment=0)
    spans.raw(spans.header(1, 1), spans.end(1), segment=1)
    (run,) = find_runs(spans.folder)

    assert (run.project_name, summarise(run).calls, summarise(run).unfinished) == ("me/proj", 1, 0)


def test_a_newer_format_version_is_named_and_read(spans: Any) -> None:
    """The message names the file and the version; what is known is read."""
    path = spans.raw(spans.header(schema=2), spans.start(1), spans.end(1))
    trees, reading = spans.read()

    [damage] = reading.damages
    assert (len(trees), damage.path, damage.kind) == (1, path, "schema")
    assert "format version 2" in damage.reason
    assert "upgrade" in damage.reason


def test_files_without_records(spans: Any) -> None:
    """A header alone is a run without calls; an empty file is damage once nobody writes it any more."""
    spans.raw(spans.header(1), writer=1)
    spans.sealed(spans.header(2), writer=2)
    empty = [spans.raw(writer=3), spans.folder / spans.raw(writer=4).with_suffix(".jsonl.zst").name]
    spans.raw(writer=4).rename(empty[1])
    trees, reading = spans.read()
    assert (trees, reading.damages) == ([], [])

    spans.age()
    _, reading = spans.read()
    assert [(d.path, d.kind, d.reason) for d in reading.damages] == [(path, "header", "empty") for path in empty]


def test_a_line_being_written_is_no_damage_of_a_live_writer(spans: Any) -> None:
    """Neither in the open segment nor in the one that it has just left; once the writer is dead, it is."""
    spans.raw(spans.header(1, 0), spans.start(1)[:-5], segment=0)
    spans.raw(spans.header(1, 1), spans.start(2), spans.end(2)[:-1], segment=1)
    spans.raw(spans.header(1, 2)[:-3], segment=2)
    run = spans.run()
    reading = Reading()
    list(iter_trajectories(run, reading))
    assert run.state == "live"
    assert [(d.kind, d.path.name[-7]) for d in reading.damages] == [("torn", "0")]

    spans.age()
    _, reading = spans.read()
    assert [d.kind for d in reading.damages] == ["torn", "torn", "header", "torn"]


def test_states(spans: Any) -> None:
    """Closed by its last record, live while it changes, torn else; of a run by its writers."""
    spans.raw(spans.header(1), spans.close(), writer=1)
    spans.sealed(spans.header(2) + spans.close(), writer=2)
    spans.age()
    assert spans.run().state == "closed"

    spans.sealed(spans.header(3) + spans.close("rotated"), writer=3)
    run = spans.run()
    assert [writer.state for writer in run.writers] == ["closed", "closed", "live"]
    assert run.state == "live"

    spans.age()
    assert [writer.state for writer in spans.run().writers] == ["closed", "closed", "torn"]
    assert spans.run().state == "torn"


def test_a_pass_over_the_records_leaves_the_same_states(spans: Any) -> None:
    """Whether state is asked before or after."""
    spans.sealed(spans.header(1) + spans.close(), writer=1)
    spans.sealed(spans.header(2) + spans.start(1), writer=2)
    spans.raw(spans.header(3), spans.close("rotated"), writer=3)
    spans.age()
    before, after = spans.run(), spans.run()
    list(iter_trajectories(after))

    expected = ["closed", "torn", "torn"]
    assert [writer.state for writer in before.writers] == [writer.state for writer in after.writers] == expected


def test_raw_and_sealed_form_count_once(spans: Any) -> None:
    """A seal in progress, or one that was cut short; a damaged sealed form does no harm while the raw one is there."""
    lines = [spans.header(), spans.start(1), spans.end(1)]
    raw = spans.raw(*lines)
    sealed = spans.sealed(*lines)
    sealed.write_bytes(sealed.read_bytes()[:-9])
    trees, reading = spans.read()
    assert (len(trees), reading.damages, reading.duplicates) == (1, [], 0)

    run = spans.run()
    assert run.stored_bytes == raw.stat().st_size
    raw.unlink()
    _, reading = spans.read()
    assert [d.path for d in reading.damages] == [sealed]


def test_a_raw_file_that_was_copied_too_early(spans: Any) -> None:
    """`rsync` of a live run, repeated after it was sealed, leaves the beginning of a raw file beside the sealed one."""
    lines = [spans.header(), spans.start(1), spans.end(1), spans.close()]
    spans.sealed(b"".join(lines))
    spans.raw(*lines[:2], lines[2][:-7])
    run = spans.run()
    trees, reading = spans.read()

    assert [call.status for tree in trees for call in tree.calls] == ["success"]
    assert (reading.damages, run.state) == ([], "closed")


def test_a_file_that_is_sealed_after_it_was_listed(spans: Any) -> None:
    """Between listing, first and second pass: the sealed form is read, and size and state are its."""
    lines = [spans.header(), spans.start(1), spans.end(1), spans.start(2), spans.end(2), spans.close()]
    for when in ("listed", "counted"):
        raw = spans.raw(*lines)
        run = spans.run()
        trees = iter_trajectories(run)
        found = [next(trees)] if when == "counted" else []
        sealed = spans.sealed(b"".join(lines))
        raw.unlink()
        found += trees

        assert [len(tree.calls) for tree in found] == [1, 1]
        assert (run.state, run.stored_bytes) == ("closed", sealed.stat().st_size)
        sealed.unlink()


def test_a_state_asked_after_the_raw_file_was_sealed(spans: Any) -> None:
    """Without a pass over the records."""
    raw = spans.raw(spans.header(), spans.close())
    run = spans.run()
    spans.sealed(spans.header() + spans.close())
    raw.unlink()

    assert run.state == "closed"


def test_a_run_that_vanishes(spans: Any) -> None:
    """Removed after it was listed: one damage a file, no call, no exception."""
    for writer in (1, 2):
        spans.raw(spans.header(writer), spans.start(writer), writer=writer)
    run = spans.run()
    shutil.rmtree(spans.folder)
    summary = summarise(run)

    assert (summary.calls, run.stored_bytes) == (0, 0)
    assert [d.kind for d in summary.damages] == ["unreadable", "unreadable"]


def test_a_folder_that_vanishes_among_others(spans: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that may not be read: the others are listed; when there is no other, the error names it."""
    spans.raw(spans.header())
    (tmp_path / "closed").mkdir()

    def refuse(path: Path) -> tuple[list[str], list[str]]:
        if path.name in refused:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return list_files(path)

    refused = {"closed"}
    monkeypatch.setattr("verl_trace.reader.runs.list_files", refuse)
    assert len(find_runs(tmp_path)) == 1

    refused = {"closed", "exp1"}
    with pytest.raises(NotARun, match="Permission denied"):
        find_runs(tmp_path)


@pytest.mark.parametrize("after", [0, 1])
def test_a_disk_that_fails(spans: Any, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Unreadable at once or in the middle: named, what came before is read, other files too."""
    path = spans.raw(spans.header(1), spans.start(1), spans.end(1), writer=1)
    spans.raw(spans.header(2), spans.start(2), spans.end(2), writer=2)
    run = spans.run()
    iterate: Callable[[Any], Any] = SegmentLines.__iter__

    def failing(self: SegmentLines) -> Any:
        for number, line in enumerate(iterate(self)):
            if self.path == path and number >= 3 * after:
                break
            yield line
        if self.path == path:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(SegmentLines, "__iter__", failing)
    summary = summarise(run)

    assert summary.calls == 1 + after
    [damage] = [d for d in summary.damages if d.kind == "unreadable"]
    assert (damage.path, damage.reason) == (path, "Input/output error")


def test_a_thousand_segments(spans: Any) -> None:
    """Of ten writers, in order, with one call over the edge of every two."""
    for writer in range(10):
        for segment in range(100):
            number = 1 + writer * 1000 + segment
            before = [spans.end(number - 1)] if segment else []
            spans.raw(spans.header(writer, segment), *before, spans.start(number), writer=writer, segment=segment)
    begun = time.monotonic()
    summary = summarise(spans.run())

    assert (summary.calls, summary.unfinished, summary.damages) == (1000, 10, [])
    assert time.monotonic() - begun < 20


def test_attempts_in_the_order_of_their_starts(spans: Any) -> None:
    """Of several writers each, and one whose headers are lost."""
    for writer, (attempt, start) in enumerate([("b", 5), ("a", 9), ("b", 12), ("c", 1)]):
        spans.raw(spans.header(writer, attempt=attempt, started_at=spans.time(start)), writer=writer)

    assert spans.run().attempts == ["c", "b", "a"]


def test_bytes_of_side_files(spans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the run's own processes; the folder is listed once for all of them, and not by each of a thousand."""
    for writer in range(50):
        path = spans.raw(spans.header(writer), writer=writer)
        path.with_suffix(".blobs").write_bytes(b"x" * 100)
    other = spans.raw(spans.header(99, project_name="other/proj"), writer=99)
    other.with_suffix(".blobs").write_bytes(b"y" * 7)
    run = next(run for run in find_runs(spans.folder) if run.project_name == "me/proj")
    listed: list[Any] = []
    listdir = os.listdir

    def counted(path: Any) -> Any:
        listed.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", counted)

    assert run.content_bytes == 5000
    assert len(listed) == 1
