"""Rewards on every version: what verl's batch or queue got is in the files, for the right trajectory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import Trajectory, find_runs, iter_trajectories

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the tiny model, which both generations of transformers read."""
    folder = tmp_path_factory.mktemp("model")
    program = Path(__file__).parents[1] / "tiny_model.py"
    subprocess.run([sys.executable, str(program), str(folder)], check=True, timeout=300)
    return str(folder)


def kinds(version: str) -> list[str]:
    """The workers that a version has."""
    return ["v0", "tq"] if version >= "0.8" else ["v0"]


@pytest.mark.parametrize("extra", ["1", "0"])
def test_scores_are_verls(
    version: str, small_model: str, program: Callable[..., Any], tmp_path: Path, extra: str
) -> None:
    """With each kind of worker; the scoring call is in the tree from 0.7 on, unless VERL_TRACE_EXTRA leaves it out."""
    for kind in kinds(version):
        folder = tmp_path / kind
        folder.mkdir()
        rows = program(version, folder, "score", small_model, kind, VERL_TRACE_EXTRA=extra)["rows"]
        (run,) = find_runs(folder / "runs")
        # without VERL_TRACE_EXTRA calls of undecorated agent loops are trees of their own
        trees = {t.calls[0].head["sample_index"]: t for t in iter_trajectories(run) if t.score_status is not None}
        assert len(rows) > 5
        assert sorted(trees) == [100 + row for row in range(len(rows))]
        for position, row in enumerate(rows):
            check(trees[100 + position], row)
        scoring = [call for tree in trees.values() for call in tree.calls if call.op.endswith("_compute_score")]
        assert len(scoring) == (len(rows) if extra == "1" and version >= "0.7" else 0)
        assert all(call.parent_id == call.trace_id and call.status == "success" for call in scoring)
        assert all((call.duration or 0) >= 0.01 for call in scoring)


def check(trajectory: Trajectory, row: dict[str, Any]) -> None:
    """Reward and turns are the row's; the odd extra costs itself alone."""
    assert trajectory.reward == pytest.approx(row["reward"])
    assert trajectory.scored
    assert trajectory.scores["num_turns"] == row["num_turns"]
    assert trajectory.reward is not None
    assert trajectory.scores["reward_extra_info"]["acc"] == trajectory.reward * 8
    assert "print" in str(trajectory.scores["reward_extra_info"]["odd"])
