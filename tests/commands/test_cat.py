"""`verl-trace cat`: the records as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import in_time

from .conftest import trajectory

Cli = Callable[..., Any]
SCRIPT = Path(sys.executable).with_name("verl-trace")


def test_records_of_all_processes_in_time_order(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """Byte for byte, merged by the times that they tell."""
    made = [writer(tmp_path / "runs", "p", pid=number) for number in (1, 2, 3)]
    for step in range(3):
        for one in made:
            trajectory(one, step, 0, 0)
    for one in made:
        one.close()
    done = cli("cat", tmp_path / "runs")
    records = [json.loads(line) for line in done.out.splitlines()]
    times = [record["ended_at"] if "ended_at" in record else record.get("started_at") for record in records]
    known = [time for time in times if time is not None]

    assert (done.code, done.err) == (0, "")
    assert sorted(done.out.splitlines()) == sorted(line for one in made for line in one.path.read_text().splitlines())
    assert known == sorted(known)


def test_filters_choose_whole_trajectories(cli: Cli, rollouts: Path) -> None:
    """And leave out what is of none."""
    records = [
        json.loads(line) for line in cli("cat", rollouts, "--step", "2", "--where", "reward > 2").out.splitlines()
    ]

    assert {(record["step"], record["sample_index"], record["rollout_n"]) for record in records} == {(2, 1, 0)}
    assert {record["kind"] for record in records} == {"start", "end", "text"}


def test_damage_is_passed_over_and_told(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """On stderr; stdout has whole records only."""
    made = writer(tmp_path / "runs", "p")
    made.call("a", step=1)
    made.append(b"garbage")
    made.call("b", step=1)
    with made.path.open("ab") as file:
        file.write(b'{"kind":"start","by')
    made.age(3600)
    done = cli("cat", tmp_path / "runs")

    assert [json.loads(line)["kind"] for line in done.out.splitlines()] == ["header", "start", "end", "start", "end"]
    assert "not JSON" in done.err
    assert "no end" in done.err


def test_head_ends_it_quietly(rollouts: Path) -> None:
    """`verl-trace cat RUN | head -1` complains about nothing and is no failure, nor are grep and ls."""
    with next(rollouts.iterdir()).open("ab") as file:
        # more than a pipe holds
        file.write(b'{"kind":"stall","records":1}\n' * 20_000)
    os.utime(next(rollouts.iterdir()), (0, 0))
    for command in (f"cat {rollouts}", f"grep -v nothing {rollouts}", f"ls -t {rollouts}"):
        line = f"set -o pipefail; '{SCRIPT}' {command} | head -1"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1), command


@pytest.mark.parametrize("most", [2, 3, 7])
def test_more_files_than_may_be_open(
    cli: Cli, writer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The same lines in the same order as with all of them open."""
    made = [writer(tmp_path / "runs", "p", pid=number) for number in range(20)]
    for step in range(4):
        for number, one in enumerate(made):
            # some have ended before others begin, as far as their records tell
            if number % 3 != step % 3:
                trajectory(one, step, number, 0)
    for one in made:
        one.close()
    expected = cli("cat", tmp_path / "runs").out
    monkeypatch.setattr(in_time, "MOST_OPEN", most)
    done = cli("cat", tmp_path / "runs")

    assert (done.out, done.err) == (expected, "")
    assert len(expected.splitlines()) == sum(one.path.read_text().count("\n") for one in made)
