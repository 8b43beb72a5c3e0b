"""Segments that arrive one by one, and copies that are older than others: what is stored is stored whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.demo.server_env import Server
from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.schemas.files import segment_file_name
from verl_trace.uploader import upload
from verl_trace.uploader.result import STORED_OTHERWISE, WAITS_FOR_SEGMENT

Stored = Callable[[str], dict[str, Any]]


class Segments:
    """One writer's recording in three segments, with a trajectory from each into the next."""

    def __init__(self, writer: Any, folder: Path, project: str) -> None:
        self.writer = writer(folder, project)
        self.folder = self.writer.folder
        self.paths = [self.writer.path]
        inside = [self.pair()]
        first = self.begin()
        self.next()
        self.writer.end(self.writer.start("B.run", parent=first), 2)
        self.writer.end(first, 1)
        inside.append(self.pair())
        second = self.begin()
        self.next()
        self.writer.end(second, 1)
        inside.append(self.pair())
        self.writer.close()
        self.inside = inside

    def pair(self) -> str:
        """A trajectory within one segment."""
        root = self.begin()
        self.writer.end(root, 1)
        return str(root["id"])

    def begin(self) -> dict[str, Any]:
        """A root with one finished child."""
        root: dict[str, Any] = self.writer.start("A.run", inputs={"n": 1})
        self.writer.call("B.run", parent=root)
        return root

    def next(self) -> None:
        """Go on in the next segment."""
        writer = self.writer
        index = len(self.paths)
        header = writer.path.read_bytes().split(b"\n", 1)[0]
        header = header.replace(b'"segment":%d,' % (index - 1), b'"segment":%d,' % index)
        opened = header.partition(b'"opened_at":"')[2].partition(b'"')[0]
        writer.write({"kind": "close", "closed_at": writer.tick(), "reason": "rotated", "records": writer.records,
                      "counters": {"written": writer.records, "skipped": 0, "dropped": 0}})  # fmt: skip
        writer.path = self.folder / segment_file_name(writer.name, index)
        self.paths.append(writer.path)
        writer.append(header.replace(opened, writer.tick().encode()))
        writer.records = 0


@pytest.fixture
def segments(writer: Any, project: str, tmp_path: Path) -> Segments:
    """The recording."""
    return Segments(writer, tmp_path / "runs", project)


def whole(folder: Path) -> dict[str, tuple[Any, ...]]:
    """What the server must hold of a whole recording."""
    (run,) = find_runs(folder)
    calls = [call for trajectory in iter_trajectories(run) for call in trajectory.calls]
    return {call.id: (call.parent_id, call.ended_at, call.inputs != b"{}") for call in calls}


def held(rows: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The same of what it holds."""
    return {key: (row["parent_id"], row["ended_at"], row["inputs"] != {}) for key, row in rows.items()}


def test_three_one_two(wandb_login: Server, segments: Segments, project: str, tmp_path: Path, stored: Stored) -> None:
    """Files arrive in the order 3, 1, 2, and each time there is an upload: what lies partly in a file to come waits for
    it, the rest is sent; in the end the server holds the whole recording, without a mark of damage."""
    arrived = tmp_path / "copy" / "exp1"
    arrived.mkdir(parents=True)
    results = []
    for index in (2, 0, 1):
        shutil.copy2(segments.paths[index], arrived)
        results.append(upload(arrived))

    rows = stored(project)
    assert held(rows) == whole(segments.folder)
    assert len(rows) == 11
    assert all(set(row["attributes"]["verl_trace"]) <= {"attempt", "host", "pid", "version"} for row in rows.values())
    assert rows[segments.inside[0]]["summary"]["status_counts"] == {"success": 2, "error": 0}
    assert [result.waiting > 0 for result in results] == [True, True, False]
    assert [result.sent > 0 for result in results] == [True, True, True]
    assert results[0].skipped[WAITS_FOR_SEGMENT] > 0
    assert segments.paths[1].name in " ".join(results[1].runs[0].notes)


def test_single_files_then_the_folder(
    wandb_login: Server, segments: Segments, project: str, tmp_path: Path, stored: Stored
) -> None:
    """The three files uploaded one by one, each alone: never half a trajectory; the folder brings the rest."""
    for index in (2, 0, 1):
        upload(segments.paths[index])
    between = stored(project)

    result = upload(segments.folder)

    assert {row["id"] for row in between.values() if row["parent_id"] is None} == set(segments.inside)
    assert (result.waiting, result.failed) == (0, 0)
    assert held(stored(project)) == whole(segments.folder)


def test_a_segment_that_is_gone(wandb_login: Server, segments: Segments, project: str, stored: Stored) -> None:
    """`partial` sends what there is, marked: the user knows that nothing more will come."""
    segments.paths[1].unlink()

    waiting = upload(segments.folder)
    rest = upload(segments.folder, partial=True)

    assert waiting.skipped[WAITS_FOR_SEGMENT] == 3
    assert (rest.sent, rest.waiting) == (3, 0)
    assert any(row["attributes"]["verl_trace"].get("inputs_lost") for row in stored(project).values())


def test_older_copy_changes_nothing(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Stored
) -> None:
    """A truncated copy, uploaded after the whole recording, does not turn finished calls into unfinished ones."""
    recording = writer(tmp_path / "runs", project)
    root = recording.start("A.run", inputs={"n": 1})
    recording.call("B.run", parent=root)
    older = tmp_path / "older" / "exp1"
    shutil.copytree(recording.folder, older)
    recording.end(root, {"done": True})
    recording.close()
    upload(recording.folder)
    before = stored(project)

    result = upload(older, settle=0)

    assert stored(project) == before
    assert (result.sent, result.failed) == (0, 0)
    assert result.skipped[STORED_OTHERWISE] == 1
    assert "stored with another end or other attributes" in result.runs[0].notes[0]
    assert upload(older, settle=0).skipped[STORED_OTHERWISE] == 1


def test_other_attributes_are_reported(wandb_login: Server, segments: Segments, project: str, stored: Stored) -> None:
    """Sent with `partial`, a call carries a mark. When the missing segment has come after all, what is stored stays as
    it is, and the report counts what would be sent otherwise, each time."""
    first = segments.paths[0].rename(segments.folder.parent / "elsewhere")
    upload(segments.folder, partial=True)
    before = stored(project)
    first.rename(segments.paths[0])

    results = [upload(segments.folder) for _ in range(2)]

    after = stored(project)
    assert {key: after[key] for key in before} == before
    assert set(after) == set(whole(segments.folder))
    # the root that began in the first segment had no inputs
    assert [result.skipped[STORED_OTHERWISE] for result in results] == [1, 1]
    assert [result.failed for result in results] == [0, 0]


def test_better_copy_is_reported(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Stored
) -> None:
    """The other way round: what the older copy stored as interrupted stays, new calls arrive, the report says so."""
    recording = writer(tmp_path / "runs", project)
    root = recording.start("A.run", inputs={"n": 1})
    upload(recording.folder, settle=0)
    late = recording.call("B.run", parent=root)
    recording.end(root, {"done": True})
    recording.close()

    result = upload(recording.folder)

    rows = stored(project)
    assert set(rows) == {root["id"], late["id"]}
    assert "Interrupted" in rows[root["id"]]["exception"]
    assert (result.sent, result.skipped[STORED_OTHERWISE], result.failed) == (1, 1, 0)


def test_a_score_that_was_announced_may_lie_in_a_missing_segment(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Stored
) -> None:
    """The trainer's: what is scored is sent, the other one waits for that file, and has its reward then."""
    worker, trainer = (writer(tmp_path / "runs", project, pid=pid) for pid in (4711, 4712))
    heads = []
    for sample in range(2):
        heads.append(worker.call("Loop.run", step=1, sample_index=sample))
        told = {"step": 1, "sample_index": sample, "uid": str(sample), "session": 0, "source": "agent_loop"}
        partial = {"status": "partial", "trace_id": heads[-1]["trace_id"], "scores": {"num_turns": 2}}
        worker.write({"kind": "score", **told, **partial})
    worker.close()
    first = trainer.path.read_bytes()
    scores = []
    for sample in range(2):
        told = {"step": 1, "sample_index": sample, "uid": str(sample), "session": 0, "source": "trainer"}
        trainer.write({"kind": "score", **told, "status": "scored", "trace_id": None, "scores": {"reward": 1.0}})
        scores.append(trainer.path.read_bytes().splitlines(keepends=True)[-1])
    trainer.close()
    end = trainer.path.read_bytes().splitlines(keepends=True)[-1]
    trainer.path.unlink()
    second = trainer.folder / segment_file_name(trainer.name, 1)
    second.write_bytes(first.replace(b'"segment":0', b'"segment":1') + scores[1] + end)

    early = upload(trainer.folder, settle=0.0)
    trainer.path.write_bytes(first + scores[0] + end.replace(b'"exit"', b'"rotated"'))
    late = upload(trainer.folder, settle=0.0)

    assert (early.sent, early.skipped[WAITS_FOR_SEGMENT]) == (1, 1)
    assert trainer.path.name in " ".join(early.runs[0].notes)
    assert (late.sent, late.waiting) == (1, 0)
    assert [row["attributes"]["reward"] for row in stored(project).values()] == [1.0, 1.0]
