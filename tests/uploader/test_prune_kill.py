"""`prune --uploaded` killed between any two of its steps: nothing is lost, and the next one finishes it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import find_runs
from verl_trace.reader.filters import Filters, Numbers
from verl_trace.reader.verify import verify
from verl_trace.uploader import upload
from verl_trace.uploader.choose import Choosing
from verl_trace.uploader.prune import Pruning

from .test_prune import groups, ids, planned
from .test_prune_safety import in_two_segments, tell_score

__all__ = ["planned"]

STEPS_OF_A_DELETION = ("open", "rename", "unlink", "utime", "fsync", "listdir")


def killed_at(plan: Pruning, moment: int) -> bool:
    """Delete in a process that dies before its system call of this number; whether there were so many."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    calls = 0

    def dying(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == moment:
                os._exit(9)
            return real(*args, **options)

        return call

    try:
        for name in STEPS_OF_A_DELETION:
            setattr(os, name, dying(getattr(os, name)))
        plan.delete()
    finally:
        os._exit(0)


@pytest.fixture
def recorded(writer: Any, project: str, tmp_path: Path, wandb_login: Any) -> tuple[Path, set[str], set[str]]:
    """A run's folder, ids of all its calls, and of those that are not uploaded.

    One process's trajectories lie across two segments, one raw and one sealed, and it has a side file; another one's
    segment is written anew; a third has told scores alone.
    """
    first, traces = groups(writer, tmp_path / "runs", project, steps=2)
    in_two_segments(first, 7, sealed=True)
    (first.folder / f"{first.name}.00000.blobs").write_bytes(b'{"kind":"header"}\n{"kind":"close","blobs":0}\n')
    second = writer(tmp_path / "runs", project, pid=4712)
    shared = second.start("A.run", step=0, sample_index=7, rollout_n=0)
    second.end(shared)
    unsent = second.call("A.run", step=5)
    second.close()
    third = writer(tmp_path / "runs", project, pid=4713)
    third.call("C.child", parent=shared)
    third.close()
    trainer = writer(tmp_path / "runs", project, pid=4714)
    for trace_id in traces.values():
        tell_score(trainer, trace_id)
    trainer.close()
    upload(tmp_path / "runs", choosing=Choosing(filters=Filters(steps=Numbers("0:1", "--step"))))
    return first.folder, ids(first.folder), {unsent["id"]}


def _kill_and_go_on(
    recorded: tuple[Path, set[str], set[str]], planned: Callable[..., Pruning], copy: Path, moment: int
) -> bool:
    folder, every, unsent = recorded
    shutil.copytree(folder, copy)
    killed = killed_at(planned(copy), moment)
    # whatever is not deleted yet is readable, and what the server lacks is here
    assert unsent <= ids(copy) <= every
    assert upload(copy, choosing=Choosing(filters=Filters(steps=Numbers("0:1", "--step")))).sent == 0
    planned(copy).delete()
    (run,) = find_runs(copy)
    assert ids(copy) == unsent
    assert verify(copy)[0].state == "whole"
    assert len(run.writers) == 1
    left = {path.name for path in copy.iterdir() if not path.name.startswith("pruned-")}
    assert left == {segment.path.name for segment in run.writers[0].segments}
    return killed


def test_killed_at_some_moments(
    recorded: tuple[Path, set[str], set[str]], planned: Callable[..., Pruning], tmp_path: Path
) -> None:
    """The same at every seventh."""
    assert _kill_and_go_on(recorded, planned, tmp_path / "copy", 1)
    moments = 1
    while _kill_and_go_on(recorded, planned, tmp_path / f"copy{moments}", moments := moments + 7):
        pass
    assert moments > 20


@pytest.mark.soak
def test_killed_at_every_moment(
    recorded: tuple[Path, set[str], set[str]], planned: Callable[..., Pruning], tmp_path: Path
) -> None:
    """Before each system call that changes something, one after the other."""
    moment = 1
    while _kill_and_go_on(recorded, planned, tmp_path / f"copy{moment}", moment):
        moment += 1
    assert moment > 20
    print(f"killed at {moment - 1} moments")
