"""`prune --uploaded` beside processes that write, damaged neighbours, other prunes and notes that are not true."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from verl_trace.reader import find_runs
from verl_trace.reader.filters import Filters, Numbers
from verl_trace.reader.pruned import pruned_notes, unfinished_prunings
from verl_trace.reader.repair import repair
from verl_trace.recorder.identity import boot_id, pid_namespace, process_stat
from verl_trace.schemas.errors import BadTarget
from verl_trace.uploader import upload
from verl_trace.uploader.choose import Choosing
from verl_trace.uploader.client import Client
from verl_trace.uploader.prune import OTHERWISE, WRITING, Pruning
from verl_trace.uploader.target import resolve

from ..conftest import line, new_id
from .test_prune import groups, ids, planned

__all__ = ["planned"]

SCRIPT = Path(sys.executable).with_name("verl-trace")


def tell_score(recording: Any, trace_id: str) -> None:
    """A reward worker tells a reward."""
    head = {
        "step": 0, "sample_index": 0, "rollout_n": 0, "validate": False, "experiment_name": "exp1",
        "source": "reward_worker", "status": "scored", "id": new_id(), "trace_id": trace_id, "uid": None,
        "session": None, "row": None, "response": None, "group_size": None, "recorded_at": recording.tick(),
        "exception": None,
    }  # fmt: skip
    recording.append(line("score", head, "scores", {"reward": 1.0}))


def lives_here(path: Path) -> None:
    """Let the file be that of this process."""
    first, _, rest = path.read_bytes().partition(b"\n")
    stat = process_stat(os.getpid())
    assert stat is not None
    here = {"pid": os.getpid(), "pid_start": stat.start, "boot_id": boot_id(), "pid_ns": pid_namespace()}
    path.write_bytes(orjson.dumps({**orjson.loads(first), **here}) + b"\n" + rest)


def in_two_segments(recording: Any, at: int, *, sealed: bool = False) -> Path:
    """Spread a closed recording over two segments, the first with so many lines; the second's path."""
    header, *lines = recording.path.read_bytes().splitlines(keepends=True)
    close = {**orjson.loads(lines[-1]), "reason": "rotated", "records": at}
    recording.path.write_bytes(b"".join([header, *lines[:at], orjson.dumps(close), b"\n"]))
    data = b"".join([header.replace(b'"segment":0', b'"segment":1'), *lines[at:]])
    name = recording.path.name.replace(".00000.", ".00001.") + (".zst" if sealed else "")
    path = Path(recording.path.with_name(name))
    path.write_bytes(zstandard.compress(data) if sealed else data)
    return path


def test_a_score_in_the_file_of_a_live_process(
    writer: Any, project: str, tmp_path: Path, planned: Callable[..., Pruning]
) -> None:
    """What a live process writes is not touched, be there only a score: what it writes next would be lost."""
    recording, traces = groups(writer, tmp_path / "runs", project, steps=1)
    live = writer(tmp_path / "runs", project, pid=4712)
    for trace_id in traces.values():
        tell_score(live, trace_id)
    lives_here(live.path)
    upload(tmp_path / "runs", settle=0)
    before = live.path.read_bytes()
    plan = planned(recording.folder)
    plan.delete()

    assert (plan.trajectories, dict(plan.kept)) == (0, {WRITING: 4})
    assert live.path.read_bytes() == before


def test_a_segment_that_cannot_be_read_is_not_removed(
    writer: Any, project: str, tmp_path: Path, planned: Callable[..., Pruning]
) -> None:
    """Nobody can say what is in it; what lies whole in the segment beside it goes."""
    recording, _ = groups(writer, tmp_path / "runs", project, steps=2)
    second = in_two_segments(recording, 16, sealed=True)
    upload(tmp_path / "runs")
    data = bytearray(second.read_bytes())
    data[10] ^= 255
    second.write_bytes(data)
    plan = planned(recording.folder)
    plan.delete()

    assert (plan.trajectories, plan.files and plan.files.removed) == (4, [])
    assert second.read_bytes() == data


def test_what_is_added_after_the_answer_was_read(
    writer: Any, project: str, tmp_path: Path, planned: Callable[..., Pruning]
) -> None:
    """A process that was taken for dead writes on while somebody thinks about the question: nothing is deleted."""
    recording, _ = groups(writer, tmp_path / "runs", project, steps=1)
    kept = recording.call("A.run", step=5)
    upload(tmp_path / "runs")
    # once with the file to be removed, once to be written anew
    for more in (False, True):
        if more:
            unsent = recording.call("A.run", step=6)
        plan = planned(recording.folder)
        before = ids(recording.folder)
        added = recording.call("A.run", step=7)
        with pytest.raises(BadTarget, match="changed since it was read"):
            plan.delete()
        assert ids(recording.folder) == before | {added["id"]}
        assert pruned_notes(recording.folder) == []
    assert {kept["id"], unsent["id"]} <= before


def test_one_prune_at_a_time(writer: Any, project: str, tmp_path: Path, planned: Callable[..., Pruning]) -> None:
    """While one deletes, another one does not begin; what the first has left, the second's old plan does not touch."""
    recording, _ = groups(writer, tmp_path / "runs", project, steps=2)
    upload(tmp_path / "runs")
    unsent = recording.call("A.run", step=5)
    first, second = planned(recording.folder), planned(recording.folder)
    folder = os.open(recording.folder, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(BadTarget, match="another prune"):
            first.delete()
    finally:
        os.close(folder)
    first.delete()
    with pytest.raises(BadTarget, match="changed since it was read"):
        second.delete()

    assert ids(recording.folder) == {unsent["id"]}
    assert len(pruned_notes(recording.folder)) == 1


def test_a_note_is_no_proof(writer: Any, project: str, tmp_path: Path, planned: Callable[..., Pruning]) -> None:
    """The note of an interrupted deletion says that the project holds a trajectory: the server is asked nevertheless;
    a finished deletion's says nothing of what is found here again."""
    recording, traces = groups(writer, tmp_path / "runs", project, steps=1)
    target = resolve(project)
    head = {"kind": "pruned", "server": Client(target).url, "project_id": target.project_id}
    note = recording.folder / "pruned-20260101T000000-00000000.jsonl"
    note.write_bytes(b"\n".join(map(orjson.dumps, [head, *({"trace_id": i} for i in traces.values())])) + b"\n")
    assert unfinished_prunings(recording.folder, head["server"], target.project_id).trace_ids == set(traces.values())
    plan = planned(recording.folder)
    assert (plan.trajectories, dict(plan.kept)) == (0, {OTHERWISE: 4})

    note.unlink()
    before = {path.name: path.read_bytes() for path in recording.folder.iterdir()}
    upload(tmp_path / "runs", drop_fields="text")
    (recording.folder / note.name).write_bytes(orjson.dumps(head) + b"\n")
    upload(tmp_path / "runs")
    for name, data in before.items():
        (recording.folder / name).write_bytes(data)
    assert planned(recording.folder).trajectories == 0


def test_a_finished_note(writer: Any, project: str, tmp_path: Path, planned: Callable[..., Pruning]) -> None:
    """Its last line says so; lost records are counted in it; a repaired copy of what is left has it."""
    recording, _ = groups(writer, tmp_path / "runs", project, steps=1)
    recording.write({"kind": "lost", "since": "", "until": "", "counts": {"ENOSPC": 12}, "records": 12})
    upload(tmp_path / "runs")
    unsent = recording.call("A.run", step=5)
    plan = planned(recording.folder)
    plan.delete()

    (note,) = pruned_notes(recording.folder)
    assert note["lost_records"] == 12
    assert (recording.folder / note["note"]).read_bytes().endswith(b'{"kind":"done"}\n')
    assert not any(unfinished_prunings(recording.folder, note["server"], note["project_id"]))
    repair(recording.folder, tmp_path / "copy")
    assert pruned_notes(tmp_path / "copy") == [note]
    assert ids(tmp_path / "copy") == {unsent["id"]}


def test_one_file_of_a_run(writer: Any, project: str, tmp_path: Path, wandb_login: Any) -> None:
    """The side files of its process belong to the segments beside it, too."""
    recording, _ = groups(writer, tmp_path / "runs", project, steps=1)
    command = [str(SCRIPT), "prune", str(recording.path), "--uploaded", "--yes"]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 2
    assert "give its folder" in done.stderr


def test_what_a_segment_says_of_it(writer: Any, project: str, tmp_path: Path, planned: Callable[..., Pruning]) -> None:
    """Header and close name the note; after a second time the last one, and all lines that have gone. What somebody
    else has written there is no trouble."""
    recording, traces = groups(writer, tmp_path / "runs", project)
    data = recording.path.read_bytes()
    recording.path.write_bytes(data.replace(b'{"kind":"close"', b'{"kind":"close","pruned":5'))
    for step in (0, 1):
        upload(tmp_path / "runs", choosing=Choosing(filters=Filters(steps=Numbers(str(step), "--step"))))
        plan = planned(recording.folder)
        plan.delete()
        assert plan.note is not None
        (run,) = find_runs(recording.folder)
        lines = [orjson.loads(line) for _, line in run.writers[0].segments[0].lines()]
        assert lines[0]["pruned"] == {"note": plan.note.name}
        assert lines[-1]["pruned"] == {"note": plan.note.name, "left_out": 16 * (step + 1)}
        assert lines[-1]["records"] == len(lines) - 2 == 16 * (2 - step)
    assert len(traces) == 12
