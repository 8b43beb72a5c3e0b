"""`verl-trace ls RUN` and `--trajectories`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import trajectory

Cli = Callable[..., Any]


def test_steps_of_a_run(cli: Cli, rollouts: Path) -> None:
    """Counts, rewards, tokens, times and tools of each; the same in JSON."""
    text = cli("ls", rollouts).out
    rows = json.loads(cli("ls", rollouts, "--json").out)[0]["by_step"]
    head, first, second = text.splitlines()[-3:]

    assert head.split()[:8] == ["step", "traj", "calls", "err", "reward", "min", "max", "turns"]
    assert first.split()[:8] == ["1", "4", "20", "2", "0.625", "0", "1.25", "8"]
    assert second.split()[:8] == ["2", "4", "20", "2", "1.625", "1", "2.25", "8"]
    assert [(row["tokens"], row["tool_calls"], row["tool_failures"]) for row in rows] == [(24, 4, 2)] * 2
    assert rows[0]["duration_p50"] == pytest.approx(0.09)


def test_trajectories_by_reward(cli: Cli, rollouts: Path) -> None:
    """Highest first with a minus; what has none comes last in either order."""
    listed = json.loads(cli("ls", rollouts, "--sort=-reward", "--json").out)
    rising = cli("ls", rollouts, "-t", "--sort", "reward", "--step", "1").out.splitlines()[1:]

    assert [fact["reward"] for fact in listed] == sorted((fact["reward"] for fact in listed), reverse=True)
    assert [row.split()[3] for row in rising] == ["0", "0.25", "1", "1.25"]
    wrong = cli("ls", rollouts, "--sort", "rewrd")
    assert (wrong.code, "reward" in wrong.err) == (2, True)


def test_an_id_from_the_list_is_a_name(cli: Cli, rollouts: Path) -> None:
    """As short as it is printed."""
    for row in cli("ls", rollouts, "-t").out.splitlines()[1:]:
        assert cli("show", rollouts, row.split()[0]).code == 0


def test_filters_count_what_they_leave(cli: Cli, rollouts: Path) -> None:
    """Steps, rollouts, status and expressions; one that says nothing is told."""

    def counted(*words: str) -> int:
        return int(json.loads(cli("ls", rollouts, "--json", *words).out)[0]["trajectories"])

    assert counted("--step", "2") == 4
    assert counted("--status", "error") == 4
    assert counted("--where", "reward > 1 and not errors") == 3
    assert counted("--op", "Calculator*", "--rollout-n", "0", "--sample-index", "1") == 2
    assert counted("--validate") == 0
    assert "no trajectory is meant" in cli("ls", rollouts, "--validate").out
    assert "no calls" not in cli("ls", rollouts, "--validate").out
    for words in (["--step", "a:b"], ["--where", "reward >"], ["--attempt", "9"], ["--status", "odd"]):
        done = cli("ls", rollouts, *words)
        assert (done.code, done.out) == (2, ""), words


def test_a_run_by_the_beginning_of_its_name(
    cli: Cli, writer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the folder of runs; several are listed, and a path comes first."""
    for name in ("grpo-small", "grpo-large"):
        made = writer(tmp_path / "runs", "p", name)
        trajectory(made, 1, 0, 0, answer=name)
        made.close()
    monkeypatch.chdir(tmp_path)

    assert "It is grpo-large." in cli("show", "grpo-l", "1:0:0").out
    several = cli("stats", "grpo")
    assert (several.code, "grpo-small" in several.err, "grpo-large" in several.err) == (2, True, True)
    assert "no such file or folder" in cli("stats", "grpo-x").err
    assert len(json.loads(cli("ls", "runs", "--json").out)) == 2


def test_steps_of_any_type_have_an_order(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """Numbers as numbers, then words, then nothing."""
    made = writer(tmp_path / "runs", "p")
    for step in (10, 9, "b", None, "a", 2.5):
        made.call("op", 1, step=step)
    made.close()
    rows = json.loads(cli("ls", tmp_path / "runs" / "exp1", "--json").out)[0]["by_step"]

    assert [row["step"] for row in rows] == [2.5, 9, 10, "a", "b", None]


def test_scores_are_facts(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """What is told of a trajectory after its end is listed, filtered by and shown."""
    made = writer(tmp_path / "runs", "me/proj")
    for rollout in (0, 1):
        root = trajectory(made, 1, 0, rollout)
        told = {"reward": rollout + 0.5, "reward_extra_info": {"acc": rollout == 1}, "num_turns": 4}
        scores = json.dumps(told, separators=(",", ":"))
        head = {"step": 1, "source": "agent_loop", "status": "scored", "id": root["id"], "trace_id": root["trace_id"]}
        made.append(f'{{"kind":"score","bytes":{len(scores)},{json.dumps(head)[1:-1]},"scores":{scores}}}'.encode())
    made.close()
    listed = json.loads(cli("ls", made.folder, "-t", "--json", "--where", "reward_extra_acc and num_turns == 4").out)

    assert [(fact["rollout_n"], fact["reward"]) for fact in listed] == [(1, 1.5)]
    assert json.loads(cli("ls", made.folder, "--json").out)[0]["by_step"][0]["reward_mean"] == 1.0
    assert "reward 1.5" in cli("show", made.folder, "1:0:1").out
    assert "reward_extra_acc true" in cli("show", made.folder, "1:0:1").out
