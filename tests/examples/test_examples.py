"""The examples that need neither verl nor an engine run as they are and leave the trees that they speak of.

`examples/verl_vllm` and `examples/vllm_direct.py` are run by tests/e2e/vllm; what README says of the first one here is
tested in tests/test_readme.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from verl_trace.reader.calls import Call, Trajectory
from verl_trace.reader.runs import find_runs
from verl_trace.reader.trees import iter_trajectories

ROOT = Path(__file__).parents[2]
TURN: list[tuple[str, list[object]]] = [("Model.generate", []), ("Search.execute", [])]


def recorded(folder: Path, name: str) -> list[Trajectory]:
    """Run an example in an empty folder; its trajectories."""
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = find_runs(folder / "runs")
    return list(iter_trajectories(run))


def tree(trajectory: Trajectory, parent: Call | None = None) -> list[Any]:
    """Operations below a call, in the order in which they began, each with what is below it."""
    wanted = parent.id if parent else None
    below = sorted((call for call in trajectory.calls if call.parent_id == wanted), key=lambda call: call.started_at)
    return [(call.op, tree(trajectory, call)) for call in below]


def test_rollout_loop(tmp_path: Path) -> None:
    """Two steps of three samples with two rollouts: each is one tree of two turns, in its place."""
    found = recorded(tmp_path, "rollout_loop.py")
    places = {tuple(one.root.head[name] for name in ("step", "sample_index", "rollout_n")) for one in found if one.root}

    assert places == {(step, sample, rollout) for step in (1, 2) for sample in range(3) for rollout in range(2)}
    assert [tree(one) for one in found] == [[("Agent.run", TURN * 2)]] * 12


def test_threads_and_streams(tmp_path: Path) -> None:
    """Stream, tool object, executor and pool: all of a sample's calls are below its rollout."""
    found = recorded(tmp_path, "threads_and_streams.py")
    leaves = ["stream", "Search.__call__", "Search.tokenize", "length_reward", "length_reward"]

    assert [tree(one) for one in found] == [[("rollout", [(op, []) for op in leaves])]] * 2
