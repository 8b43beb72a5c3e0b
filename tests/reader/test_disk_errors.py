"""A disk that refuses a read and gives it later, as a network file system does: nothing wrong is told, or kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import Run, find_runs, iter_trajectories
from verl_trace.reader.outline_cache import cache_folder
from verl_trace.reader.outlines import iter_outlines
from verl_trace.reader.trees import Reading
from verl_trace.recorder.sealing import seal

Disk = Callable[[int], None]


@pytest.fixture(params=[True, False], ids=["sealed", "raw"])
def run(
    request: pytest.FixtureRequest, writer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Trajectories that are told of all over the file, by records of some kilobytes, each with a score at the end."""
    monkeypatch.setenv("VERL_TRACE_CACHE", str(tmp_path / "cache"))
    made, chance = writer(tmp_path / "runs", "p"), random.Random(1)
    heads = [made.start("A.run", step=number) for number in range(20)]
    for head in heads * 4:
        made.call("B.generate", {"token_ids": chance.choices(range(150_000), k=4000)}, parent=head)
    for head in heads:
        made.end(head)
    for number, head in enumerate(heads):
        told = {"id": f"s{number}", "trace_id": head["trace_id"], "step": number}
        made.write({"kind": "score", **told, "padding": "x" * 20_000, "scores": {"reward": float(number)}})
    made.close()
    made.age(3600)
    if request.param:
        seal(made.path)
    (found,) = find_runs(tmp_path / "runs")
    return found


def told(run: Run, reading: Reading | None = None) -> list[Any]:
    return [(tree.trace_id, len(tree.calls), tree.reward) for tree in iter_trajectories(run, reading)]


def test_what_was_not_counted_is_not_read(run: Run, disk: Disk) -> None:
    """No trajectory is given twice, or without its score as if it had none; that something is missing is told."""
    whole = told(run)
    partial = 0
    for number in range(1, 60):
        reading = Reading()
        disk(number)
        found = told(run, reading)
        assert len({trace_id for trace_id, *_ in found}) == len(found)
        if found != whole:
            partial += 1
            assert [damage.reason for damage in reading.damages if damage.kind == "unreadable"] == [
                "Input/output error"
            ]
            assert {damage.kind for damage in reading.damages} <= {"unreadable", "torn"}

    assert len(whole) == 20
    assert partial >= 5


def test_no_outline_is_kept_of_it(run: Run, disk: Disk) -> None:
    """The next look is at all of it."""
    whole = [outline.figures for outline in iter_outlines(run)]
    sealed = run.writers[0].segments[0].path.suffix == ".zst"
    kept = list(cache_folder().glob("*"))
    assert len(kept) == sealed
    data = [path.read_bytes() for path in kept]
    refused = 0
    for number in range(1, 30):
        for path in cache_folder().glob("*"):
            path.unlink()
        reading = Reading()
        disk(number)
        list(iter_outlines(run, reading))
        if any(damage.kind == "unreadable" for damage in reading.damages):
            refused += 1
            assert not list(cache_folder().glob("*"))
        disk(0)
        assert [outline.figures for outline in iter_outlines(run)] == whole
        assert [path.read_bytes() for path in kept] == data

    assert refused >= 3
