"""`verl-trace compare` and `verl-trace stats`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import ATTEMPTS, of_attempt, trajectory

Cli = Callable[..., Any]


def test_figures_and_turns_side_by_side(cli: Cli, rollouts: Path) -> None:
    """What is equal is told once, what differs is marked, figures have their difference."""
    done = cli("compare", rollouts, "1:0:0", "2:0:1")
    table = {
        line.split()[0]: line.split()[1:] for line in done.out.splitlines() if line.startswith(("reward", "errors"))
    }

    assert (done.code, done.err) == (0, "")
    assert table["reward"] == ["1.0", "1.0"] or table["reward"][:2] == ["1", "1"]
    assert table["errors"] == ["0", "1", "(+1)"]
    assert "user: the same in both" in done.out
    assert "{+ZeroDivisionError" in done.out
    assert "[-10-]" in done.out
    assert "{+21+}" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_more_than_two_and_other_runs(cli: Cli, rollouts: Path, writer: Callable[..., Any], tmp_path: Path) -> None:
    """Each further one is held against the first; RUN=SELECTOR is of another run."""
    made = writer(tmp_path / "runs", "me/proj", "other")
    trajectory(made, 9, 0, 0)
    made.close()
    done = json.loads(cli("compare", rollouts, "1:0:0", "1:0:1", f"{made.folder}=9:0:0", "--json").out)

    assert [fact["step"] for fact in done["trajectories"]] == [1, 1, 9]
    assert len(done["comparisons"]) == 2
    turns = done["comparisons"][0]["turns"]
    assert [(turn["role"], turn["same"]) for turn in turns] == [
        ("system", True), ("user", True), ("assistant", True), ("tool", False), ("assistant", False),
    ]  # fmt: skip
    for turn in turns:
        for side, marks in (("left", "=-"), ("right", "=+")):
            parts = [part["text"] for part in turn["differences"] if part["mark"] in marks]
            assert turn["same"] or "".join(parts) == turn[side]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_name_that_only_one_of_the_runs_has(
    cli: Cli, rollouts: Path, writer: Callable[..., Any], tmp_path: Path, swapped: bool
) -> None:
    """It is no mistyped one, whichever comes first; one that none of them has is."""
    made = writer(tmp_path / "runs", "me/proj", "other")
    made.call("A.run", step=9, sample_index=0, rollout_n=0, temperature=0.7)
    made.close()
    runs = ["1:0:0", f"{made.folder}=9:0:0"]
    done = cli("compare", rollouts, *(runs[::-1] if swapped else runs), "--where", "temperature != 1")
    mistyped = cli("compare", rollouts, *runs, "--where", "temprature != 1")

    assert (done.code, done.err) == (0, "")
    assert (mistyped.code, mistyped.out) == (2, "")
    assert "no trajectory has 'temprature'" in mistyped.err
    assert "did you mean temperature?" in mistyped.err


def test_one_alone_cannot_be_compared(cli: Cli, rollouts: Path) -> None:
    """A clear line, exit code 2."""
    done = cli("compare", rollouts, "1:0:0")

    assert (done.code, done.out) == (2, "")
    assert "two trajectories" in done.err


def test_counts_by_step_and_op(cli: Cli, rollouts: Path) -> None:
    """Against what the fixture wrote."""
    (stats,) = json.loads(cli("stats", rollouts, "--json").out)
    ops = {row["op"]: row for row in stats["ops"]}

    assert [(row["step"], row["trajectories"], row["calls"], row["tool_failures"]) for row in stats["steps"]] == [
        (1, 4, 20, 2), (2, 4, 20, 2),
    ]  # fmt: skip
    assert [(row["reward_min"], row["reward_max"], row["reward_mean"]) for row in stats["steps"]] == [
        (0.0, 1.25, 0.625), (1.0, 2.25, 1.625),
    ]  # fmt: skip
    assert (ops["CalculatorTool.execute"]["errors"], ops["LLMServerClient.generate"]["tokens"]) == (4, 8 * 6)
    assert ops["LLMServerClient.generate"]["duration_p50"] == pytest.approx(0.01)
    # 12 ticks of 10 ms: both turns of the model and the tool take one each
    assert stats["time"]["model"] == pytest.approx(8 * 0.02)
    assert stats["time"]["tools"] == pytest.approx(8 * 0.01)
    assert sum(stats["time"].values()) == pytest.approx(sum(8 * [0.09]))
    assert len(stats["slowest"]) == len(stats["longest"]) == 5


def test_attempts_are_apart_and_added_up(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """A restart hides nothing of what came before."""
    for number, attempt in enumerate(ATTEMPTS, 1):
        made = writer(tmp_path / "runs", "p", pid=number)
        for step in range(number):
            trajectory(made, step, 0, 0)
        made.close()
        of_attempt(made, attempt)
    (stats,) = json.loads(cli("stats", tmp_path / "runs", "--json").out)
    text = cli("stats", tmp_path / "runs").out
    steps = cli("ls", tmp_path / "runs" / "exp1").out

    assert [total["trajectories"] for total in stats["attempts"]] == [1, 2, 3]
    assert "attempt 3 of 3" in text
    assert "all attempts: 6 trajectories, 30 calls, 0 errors" in text
    assert steps.count("attempt ") == 3


def test_an_empty_run(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """No command trips over a run without a call."""
    writer(tmp_path / "runs", "p").close()
    run = tmp_path / "runs" / "exp1"

    assert "no trajectories" in cli("stats", run).out
    assert "no calls recorded" in cli("ls", run).out
    assert "no trajectory is meant" in cli("ls", run, "-t").out
    assert cli("show", run).code == 2
    assert cli("grep", "x", run).code == 1
    assert cli("cat", run).code == 0
