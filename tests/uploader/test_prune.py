"""`prune --uploaded`: nothing goes that the server does not hold as it is recorded, and what stays is whole."""

from __future__ import annotations

import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest

from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.reader.filters import Filters, Numbers
from verl_trace.reader.verify import verify
from verl_trace.schemas.errors import BadTarget, NotARun
from verl_trace.uploader import prune_files, upload
from verl_trace.uploader.choose import Choosing
from verl_trace.uploader.prune import DAMAGED, GROUP, OTHERWISE, WRITING, Pruning, plan_pruning
from verl_trace.uploader.target import resolve

SCHEMAS = Path(__file__).parents[2] / "docs" / "outputs.schema.json"
SCRIPT = Path(sys.executable).with_name("verl-trace")


def ids(folder: Path) -> set[str]:
    """Of all calls in the files."""
    return {call.id for run in find_runs(folder) for t in iter_trajectories(run) for call in t.calls}


@pytest.fixture
def planned(wandb_login: Any, project: str) -> Callable[..., Pruning]:
    """`planned(folder)`: what would go."""

    def plan(folder: Path, filters: Filters | None = None, settle: float = 0.0) -> Pruning:
        (run,) = find_runs(folder)
        return plan_pruning(run, resolve(run.project_name), filters=filters or Filters(), settle=settle)

    return plan


def groups(writer: Any, runs: Path, project: str, steps: int = 3) -> tuple[Any, dict[tuple[int, int, int], str]]:
    """A closed recording of so many steps, two samples of two rollouts each; (step, sample, rollout) -> trace id."""
    recording = writer(runs, project)
    traces = {}
    for step in range(steps):
        for sample in (0, 1):
            for n in (0, 1):
                root = recording.start("A.run", step=step, sample_index=sample, rollout_n=n)
                recording.call("B.generate", parent=root, inputs={"prompt_ids": [1, 2, 3]})
                recording.end(root, {"text": "x" * 100})
                traces[step, sample, n] = root["trace_id"]
    recording.close()
    return recording, traces


def test_all_of_it(
    writer: Any, project: str, tmp_path: Path, planned: Callable[..., Pruning], stored: Callable[[str], Any]
) -> None:
    """Files go, a note with a line for every trajectory stays, and every command knows what became of the run."""
    recording, traces = groups(writer, tmp_path / "runs", project)
    upload(tmp_path / "runs")
    plan = planned(recording.folder)
    plan.delete()

    assert (plan.trajectories, plan.calls, dict(plan.kept)) == (12, 24, {})
    (note,) = recording.folder.iterdir()
    head, *lines, done = [orjson.loads(line) for line in note.read_bytes().splitlines()]
    assert (head["kind"], head["trajectories"], head["project_id"]) == ("pruned", 12, f"demo/{project}")
    assert done == {"kind": "done"}
    assert {line["trace_id"] for line in lines} == set(traces.values())
    assert {"step", "sample_index", "rollout_n", "status", "calls"} <= lines[0].keys()
    assert len(stored(project)) == 24
    with pytest.raises(NotARun, match="nothing is left") as error:
        find_runs(tmp_path / "runs")
    assert "12 trajectories" in error.value.details[0]


def test_what_is_left_is_whole(
    writer: Any, project: str, tmp_path: Path, planned: Callable[..., Pruning], stored: Callable[[str], Any]
) -> None:
    """Some steps are uploaded: those go, the others stay to the byte, and are uploaded later like any."""
    recording, traces = groups(writer, tmp_path / "runs", project)
    before = ids(recording.folder)
    upload(tmp_path / "runs", choosing=Choosing(filters=Filters(steps=Numbers("0:1", "--step"))))
    plan = planned(recording.folder)
    plan.delete()

    assert (plan.trajectories, dict(plan.kept)) == (8, {OTHERWISE: 4})
    (run,) = find_runs(recording.folder)
    left = {t.trace_id for t in iter_trajectories(run)}
    assert left == {trace for (step, _, _), trace in traces.items() if step == 2}
    assert verify(recording.folder)[0].state == "whole"
    assert upload(tmp_path / "runs").sent == 8
    assert set(stored(project)) == before
    again = planned(recording.folder)
    again.delete()
    assert again.trajectories == 4
    assert len(list(recording.folder.glob("pruned-*.jsonl"))) == len(list(recording.folder.iterdir())) == 2


def test_a_group_stays_together(
    writer: Any, project: str, tmp_path: Path, planned: Callable[..., Pruning], fault: Any, proxy: Any
) -> None:
    """One rollout that the server does not have keeps the others of its group, and no other group."""
    recording, traces = groups(writer, tmp_path / "runs", project)
    missing = traces[1, 0, 1].encode()
    # the server takes all but the calls of one trajectory
    proxy.decide = lambda path, body: fault(422) if path.endswith("/complete") and missing in body else None
    upload(tmp_path / "runs")
    proxy.decide = lambda path, body: None
    plan = planned(recording.folder)

    assert (plan.trajectories, dict(plan.kept)) == (10, {OTHERWISE: 1, GROUP: 1})


def test_less_than_recorded_is_not_enough(
    writer: Any, project: str, tmp_path: Path, planned: Callable[..., Pruning]
) -> None:
    """Calls that were sent without a field stay: the files are the only whole copy."""
    recording, _ = groups(writer, tmp_path / "runs", project, steps=1)
    upload(tmp_path / "runs", drop_fields="prompt_ids")
    plan = planned(recording.folder)

    assert (plan.trajectories, plan.kept[OTHERWISE]) == (0, 4)
    assert len(plan.differing) == 4
    plan.delete()
    assert len(ids(recording.folder)) == 8


def test_what_is_damaged_or_still_written_stays(
    writer: Any, project: str, tmp_path: Path, planned: Callable[..., Pruning]
) -> None:
    """A damaged file is not touched; nor is one whose process, on another host, may go on."""
    recording, _ = groups(writer, tmp_path / "runs", project, steps=1)
    upload(tmp_path / "runs")
    data = recording.path.read_bytes()
    recording.path.write_bytes(data + b"\0\0\0 garbage\n")
    assert dict(planned(recording.folder).kept) == {DAMAGED: 4}
    recording.path.write_bytes(data[: data.rindex(b'{"kind":"close"')])
    assert dict(planned(recording.folder, settle=3600).kept) == {WRITING: 4}
    assert planned(recording.folder).trajectories == 4


def test_interrupted_and_done_again(
    writer: Any, project: str, tmp_path: Path, planned: Callable[..., Pruning], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trajectory that lies in two writers' files, of which only one was dealt with: the next time finishes it."""
    recording, _ = groups(writer, tmp_path / "runs", project, steps=2)
    second = writer(tmp_path / "runs", project, pid=4712)
    shared = second.start("A.run", step=0, sample_index=7, rollout_n=0)
    second.end(shared)
    kept = second.call("A.run", step=5, sample_index=0, rollout_n=0)
    second.close()
    third = writer(tmp_path / "runs", project, pid=4713)
    third.call("C.score", parent=shared)
    later = third.call("A.run", step=5, sample_index=1, rollout_n=0)
    third.close()
    upload(tmp_path / "runs", choosing=Choosing(filters=Filters(steps=Numbers("0:1", "--step"))))
    plan = planned(recording.folder)
    real = prune_files._rewrite
    done: list[None] = []

    def once(*args: Any, **options: Any) -> None:
        if done:
            raise OSError(5, "Input/output error")
        real(*args, **options)
        done.append(None)

    with monkeypatch.context() as patch:
        patch.setattr(prune_files, "_rewrite", once)
        with pytest.raises(BadTarget, match="not all of it"):
            plan.delete()
    again = planned(recording.folder)
    again.delete()

    assert ids(recording.folder) == {kept["id"], later["id"]}
    assert verify(recording.folder)[0].state == "whole"


def test_it_asks_first(wandb_login: Any, writer: Any, project: str, tmp_path: Path) -> None:
    """Without a terminal it needs --yes; on one the answer counts; without --uploaded it does nothing."""
    recording, _ = groups(writer, tmp_path / "runs", project, steps=1)
    upload(tmp_path / "runs")
    command = [str(SCRIPT), "prune", str(recording.folder)]

    def run(*more: str, answer: str | None = None) -> subprocess.CompletedProcess[str]:
        if answer is None:
            return subprocess.run([*command, *more], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        ours, theirs = pty.openpty()
        with open(ours, "w", encoding="utf-8") as terminal, open(theirs, encoding="utf-8") as stdin:
            terminal.write(answer)
            terminal.flush()
            return subprocess.run([*command, *more], stdin=stdin, capture_output=True, text=True)

    assert (refused := run()).returncode == 2
    assert "--uploaded" in refused.stderr
    assert (silent := run("--uploaded")).returncode == 2
    assert "--yes" in silent.stderr
    assert run("--uploaded", "--dry-run").returncode == 0
    elsewhere = run("--uploaded", "--yes", "--project", f"{project}-typo")
    assert (elsewhere.returncode, elsewhere.stdout) == (2, "")
    assert f"there is no project demo/{project}-typo" in elsewhere.stderr
    assert not resolve(f"{project}-typo", make=False).exists
    mistyped = run("--uploaded", "--yes", "--where", "not rewrad")
    assert (mistyped.returncode, mistyped.stdout) == (2, "")
    assert "no trajectory has 'rewrad'" in mistyped.stderr
    no = run("--uploaded", answer="n\n")
    assert (no.returncode, "Delete 4 trajectories here?" in no.stderr) == (1, True)
    assert len(ids(recording.folder)) == 8
    yes = run("--uploaded", "--json", answer="y\n")
    assert yes.returncode == 0, yes.stderr
    told = orjson.loads(yes.stdout)
    assert told["deleted"] is True
    jsonschema.validate(told, {**orjson.loads(SCHEMAS.read_bytes()), "$ref": "#/$defs/prune"})
    listed = subprocess.run([str(SCRIPT), "ls", str(tmp_path / "runs")], capture_output=True, text=True)
    assert listed.returncode == 2
    assert "4 trajectories" in listed.stderr
