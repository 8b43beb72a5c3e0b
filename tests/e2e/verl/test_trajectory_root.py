"""VERL_TRACE_TREE=trajectory on real verl: one root around run and scoring, wherever verl scores."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from verl_trace.reader import find_runs, iter_trajectories, summarise

pytestmark = pytest.mark.e2e

SIZES = {"workers": 2, "samples": 2, "n": 2, "steps": 2}
PLACE = ("step", "sample_index", "rollout_n", "validate")

RECORDING = timedelta(seconds=0.2)


def moment(text: str | None) -> datetime:
    """A recorded time; there is one."""
    assert text is not None
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


@pytest.mark.parametrize(("worker", "colocated"), [("v0", False), ("tq", False), ("v0", True)])
def test_one_root_spans_run_and_scoring(
    drive: Callable[..., Any], tmp_path: Path, worker: str, colocated: bool
) -> None:
    """Every trajectory has verl's reward at a root that began before the run and ended after the scoring."""
    scene = {"worker": worker, "backend": "jsonl", "experiment": "exp", "validate": True, "colocated": colocated}
    environment = {"VERL_TRACE_EXTRA": "1", "VERL_TRACE_TREE": "trajectory"}
    tool = "rollout_parts.CalculatorTool" if colocated else "actor_tool.ActorCalculator"
    report = drive(tmp_path, environment, "reward_driver.py", tool, scenes=[scene], variables={}, **SIZES)["exp"]

    (run,) = find_runs(tmp_path / "runs")
    found = {tuple(t.calls[0].head[name] for name in PLACE): t for t in iter_trajectories(run)}
    rows = {tuple(row[name] for name in PLACE): row for row in report["rows"]}
    assert report["raised"] == []
    assert found.keys() == rows.keys()
    for place, trajectory in found.items():
        root = trajectory.root
        assert root is not None
        below = trajectory.children()[root.id]
        names = {"ToolAgentLoop.run"} if colocated else {"ToolAgentLoop.run", "AgentLoopWorker._compute_score"}
        assert (root.op, {call.op for call in below}) == ("agent_loop", names)
        assert all(root.started_at <= call.started_at for call in below)
        # an end is the start and the duration, in which the time that recording the inputs took is not contained
        ended = moment(root.ended_at) + RECORDING
        assert all(moment(call.ended_at) <= ended for call in below)
        assert not any(call.orphan or call.unfinished for call in trajectory.calls)
        assert trajectory.reward == pytest.approx(rows[place]["reward"], abs=1e-6)
        if not colocated:
            assert orjson.loads(root.output() or b"")["reward"] == pytest.approx(trajectory.reward)
    summary = summarise(run)
    assert (summary.orphans, summary.unjoined_scores, summary.unscored, summary.damages) == (0, 0, 0, [])
