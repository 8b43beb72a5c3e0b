"""What is pruned on the node is not thereby deleted from the archive; a note comes where something is missing there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from verl_trace.collector import Pace, Report, collect
from verl_trace.collector.items import items_of
from verl_trace.collector.transfer import Differs, transfer
from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.reader.pruned import pruned_notes
from verl_trace.reader.verify import verify
from verl_trace.recorder.sealing import seal
from verl_trace.uploader.prune_files import delete, plan_files, stamps_of

from .conftest import Node

Contents = Callable[[Path], dict[str, bytes]]


def traces(*places: Path) -> set[str]:
    """Of all that is in the files."""
    return {t.trace_id for place in places for run in find_runs(place) for t in iter_trajectories(run)}


def noted(folder: Path) -> list[str]:
    return [note["note"] for note in pruned_notes(folder / "exp1")]


def prune(runs: Path, gone: set[str], **options: Any) -> str:
    """Delete these trajectories as `prune` does once the server has them; the note's name."""
    (run,) = find_runs(runs)
    settings: dict[str, Any] = {"everything": False, "writing": set(), "damaged": set()} | options
    plan = plan_files(run, frozenset(gone), stamps_of(run), **settings)
    lines = [orjson.dumps({"trace_id": trace_id}) for trace_id in sorted(gone)]
    return delete(plan, {"trajectories": len(gone)}, lines, lambda: None).name


class Recorded:
    """Closed processes on a node, each of three steps with two trajectories; `steps[n]`: their trace ids."""

    def __init__(self, writer: Any, runs: Path, processes: int) -> None:
        self.runs, self.steps, self.paths = runs, [set[str](), set[str](), set[str]()], list[Path]()
        for pid in range(processes):
            recording = writer(runs, "me/proj", pid=4711 + pid)
            for step in range(3):
                for n in (0, 1):
                    called = recording.call("A.run", "x" * 3000, step=step, sample_index=pid, rollout_n=n)
                    self.steps[step].add(called["trace_id"])
            recording.close()
            seal(recording.path)
            self.paths.append(recording.path.with_name(f"{recording.path.name}.zst"))
        self.all = set().union(*self.steps)


@pytest.fixture
def made(writer: Any, tmp_path: Path) -> Recorded:
    """The files of two processes."""
    return Recorded(writer, tmp_path / "node", 2)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The archive."""
    return tmp_path / "shared"


def test_the_archive_keeps_what_it_has(made: Recorded, shared: Path, contents: Contents) -> None:
    """Steps go one after the other on the node, the last with its files: the archive is as it was, without a note."""
    collect(made.runs, shared)
    before = contents(shared)
    for step, kept in ((1, 2), (0, 2), (2, 0)):
        prune(made.runs, made.steps[step])
        for _ in range(2):
            assert collect(made.runs, shared) == Report(kept=kept)

    assert not made.paths[0].exists()
    assert contents(shared) == before
    assert traces(shared) == made.all
    assert noted(shared) == []


def test_what_the_archive_never_had(made: Recorded, shared: Path) -> None:
    """The note comes, and again when it grows; that of a second prune, of what has arrived meanwhile, does not."""
    first = prune(made.runs, made.steps[1])
    assert collect(made.runs, shared).copied == 3
    assert (noted(shared), traces(shared)) == ([first], made.steps[0] | made.steps[2])
    prune(made.runs, made.steps[0])
    with (made.runs / "exp1" / first).open("ab") as file:
        file.write(b'{"kind":"more"}\n')
    report = collect(made.runs, shared)

    assert (report.copied, report.kept, report.failures) == (1, 2, [])
    assert (noted(shared), traces(shared)) == ([first], made.steps[0] | made.steps[2])
    assert (shared / "exp1" / first).read_bytes().endswith(b'{"kind":"more"}\n')
    assert collect(made.runs, shared) == Report(kept=2)


def test_one_of_two_files_is_there(made: Recorded, shared: Path) -> None:
    """The note that names both is brought; what is there stays whole. Also when the files went as a whole."""
    collect(made.runs, shared)
    (shared / "exp1" / made.paths[0].name).unlink()
    notes = [prune(made.runs, made.steps[1])]
    assert collect(made.runs, shared).copied == 2
    assert noted(shared) == notes
    (shared / "exp1" / made.paths[1].name).unlink()
    notes.append(prune(made.runs, made.steps[0] | made.steps[2]))
    assert collect(made.runs, shared).copied == 1
    assert noted(shared) == sorted(notes)


@pytest.mark.parametrize("arrived", ["the note", "the segments"])
def test_a_pass_that_was_killed_between(made: Recorded, shared: Path, arrived: str) -> None:
    """Of note and segments that the archive never had one has come: the next pass brings the other. Two notes, in
    whatever order their names are."""
    notes = [prune(made.runs, made.steps[step]) for step in (0, 1)]
    collect(made.runs, shared)
    for name in [path.name for path in made.paths] if arrived == "the note" else notes:
        (shared / "exp1" / name).unlink()
    assert collect(made.runs, shared).copied == 2

    assert noted(shared) == sorted(notes)
    assert traces(shared) == made.steps[2]


def test_move(made: Recorded, shared: Path) -> None:
    """What is left of a pruned segment goes once all of it was found there; else both stay, and it is said."""
    collect(made.runs, shared)
    prune(made.runs, made.steps[1])
    there = shared / "exp1" / made.paths[0].name
    whole = there.read_bytes()
    there.write_bytes(whole[: len(whole) // 2])
    report = collect(made.runs, shared, move=True)

    ((name, reason),) = report.failures
    assert (name, report.removed) == (str(made.paths[0]), 1)
    assert "lacks some of what is left in it" in reason
    assert made.paths[0].exists()
    there.write_bytes(whole)
    assert collect(made.runs, shared, move=True).removed == 1
    assert traces(shared) == made.all
    assert noted(shared) == []


def test_move_what_the_archive_never_had(made: Recorded, shared: Path) -> None:
    """A pruned segment arrives and is removed here, at once or by the next pass; the note alone stays."""
    prune(made.runs, made.steps[1])
    collect(made.runs, shared)
    assert collect(made.runs, shared, move=True).removed == 2
    assert traces(shared) == made.steps[0] | made.steps[2]
    assert collect(made.runs, shared, move=True) == Report()


def test_a_copy_of_an_open_segment(writer: Any, tmp_path: Path, shared: Path) -> None:
    """Where all that is left is in it, it stays; else the sealed form comes, with the note."""
    recording = writer(tmp_path / "node", "proj")
    gone, kept = (recording.call("A.run", step=step)["trace_id"] for step in (0, 1))
    # as at the end of a job, when there is no time to compress
    collect(tmp_path / "node", shared, pace=Pace(deadline=time.monotonic() + 600))
    note = prune(tmp_path / "node", {gone})
    report = collect(tmp_path / "node", shared)
    assert (report.kept, report.failures, traces(shared)) == (1, [], {gone, kept})
    copy = shared / "exp1" / recording.path.name
    copy.write_bytes(b"".join(copy.read_bytes().splitlines(keepends=True)[:3]))
    report = collect(tmp_path / "node", shared)

    assert (report.copied, report.kept, report.failures) == (1, 0, [])
    assert (traces(shared), noted(shared)) == ({kept}, [note])


def test_pruned_between_listing_and_copying(made: Recorded, shared: Path, contents: Contents) -> None:
    """A file that was to be brought again and is another by then: what is there stays."""
    collect(made.runs, shared)
    there = shared / "exp1" / made.paths[0].name
    there.write_bytes(there.read_bytes() + b"more")
    before = contents(shared)
    (item,) = items_of(made.runs / "exp1", shared / "exp1", [], [])
    prune(made.runs, made.steps[1])

    with pytest.raises(Differs, match="written anew"):
        transfer(item, Pace(), "token")
    assert contents(shared) == before
    assert len(list((shared / "exp1").iterdir())) == 2


def test_a_note_that_cannot_be_read_keeps_no_other(made: Recorded, shared: Path) -> None:
    """It is named; segments say themselves that they were pruned."""
    collect(made.runs, shared)
    note = made.runs / "exp1" / prune(made.runs, made.steps[1])
    note.unlink()
    note.symlink_to(note.name)
    report = collect(made.runs, shared)

    assert [(name, report.kept) for name, _ in report.failures] == [(str(note), 2)]
    assert traces(shared) == made.all


def test_beside_a_recorder_and_other_passes(writer: Any, cluster_node: Node, shared: Path) -> None:
    """Steps are pruned while a process records and two collect, again and again: nothing of what was there goes."""
    made = Recorded(writer, cluster_node.folder, 12)
    process = cluster_node.record(4)
    collect(made.runs, shared)
    ended, failures = threading.Event(), []

    def passes() -> None:
        while not ended.is_set():
            failures.extend(collect(made.runs, shared).failures)

    threads = [threading.Thread(target=passes) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        mine = {path.name.partition(".")[0] for path in made.paths}
        for step in (1, 0, 2):
            (run,) = find_runs(made.runs)
            prune(made.runs, made.steps[step], writing={w.id for w in run.writers} - mine)
            time.sleep(0.3)
        assert process.wait(120) == 0
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    collect(made.runs, shared)

    assert failures == []
    assert not any(path.exists() for path in made.paths)
    assert noted(shared) == []
    assert made.all <= traces(shared)
    assert len(traces(shared) - made.all) >= len(cluster_node.told()) > 10
    assert {report.state for report in verify(shared)} <= {"whole"}
