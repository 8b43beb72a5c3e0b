"""`verl-trace collect` killed at random points, on recordings that are over and on one that goes on."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.collector import collect
from verl_trace.demo.server_env import Server
from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.reader.verify import verify
from verl_trace.uploader import upload

Start = Callable[..., subprocess.Popen[str]]
Contents = Callable[..., dict[str, bytes]]
# A pass over what is recorded here takes some two seconds at this pace.
PACE = ("--bwlimit", "1MB")
LAST = 1.6


def seeded() -> random.Random:
    """A seed of one's own, told where the test fails."""
    seed = int(os.environ.get("VERL_TRACE_SEED") or random.SystemRandom().randrange(1 << 30))
    print(f"VERL_TRACE_SEED={seed}")
    return random.Random(seed)


def kill_at_work(one: subprocess.Popen[str], chance: random.Random) -> None:
    """Kill a pass some time after it has begun: how long Python takes to start is the machine's business."""
    while one.poll() is None and os.getpriority(os.PRIO_PROCESS, one.pid) < 19:
        # the first thing that it does is to step back
        time.sleep(0.01)
    time.sleep(chance.uniform(0.0, LAST))
    one.kill()
    one.communicate()


def kill_over_and_over(source: Path, shared: Path, collector: Start, contents: Contents, kills: int) -> None:
    """Kill passes, by turns one and two at once. What has arrived is never damaged and never more than was recorded."""
    chance, recorded, fresh = seeded(), contents(source), 0
    for number in range(kills):
        passes = [collector(source, shared, *PACE) for _ in range(1 + number % 2)]
        for one in passes:
            kill_at_work(one, chance)
        arrived = contents(shared) if shared.exists() else {}
        assert all(recorded[name].startswith(text) for name, text in arrived.items()), f"kill {number}"
        if arrived == recorded:
            fresh += 1
        if arrived == recorded or number % 5 == 4:
            # begin anew, or there is nothing left to be killed at; a pass may have been killed before it made anything
            shutil.rmtree(shared, ignore_errors=True)
    report = collect(source, shared)

    print(f"{kills} kills, {fresh} times all was there, {report.copied} files copied by the last pass")
    assert (report.failures, report.left) == ([], 0)
    assert contents(shared) == recorded
    assert [one.state for one in verify(shared)] == ["torn"]


def test_ten_kills(recorded: Path, tmp_path: Path, collector: Start, contents: Contents) -> None:
    """Record for record what was recorded, side files too."""
    kill_over_and_over(recorded, tmp_path / "shared", collector, contents, 10)


@pytest.mark.soak
def test_a_hundred_kills(recorded: Path, tmp_path: Path, collector: Start, contents: Contents) -> None:
    """The same, a hundred times."""
    kill_over_and_over(recorded, tmp_path / "shared", collector, contents, 100)


def returned(*places: Path) -> set[str]:
    """Calls with their output, as the recording processes tell them: pid and number."""
    found = set()
    # a pass that was killed at its beginning has made the folder and nothing in it
    for run in (run for place in places if any(place.rglob("*.jsonl*")) for run in find_runs(place)):
        for tree in iter_trajectories(run):
            found |= {f"{c.writer.pid}-{tree.attributes['sample_index']}" for c in tree.calls if not c.unfinished}
    return found


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.soak)])
def test_killed_while_a_run_is_moved(
    cluster_node: Any, tmp_path: Path, collector: Start, contents: Contents, kills: int
) -> None:
    """With --move from under running processes: what has returned is here or there at any time, in the end there."""
    shared, chance = tmp_path / "shared", seeded()
    cluster_node.record(600)
    while not list(cluster_node.folder.glob("exp1/*.00002.jsonl")):
        time.sleep(0.1)
    for number in range(kills):
        told = cluster_node.told()
        one = collector(cluster_node.folder, shared, "--move", "--bwlimit", "2MB")
        kill_at_work(one, chance)
        if number % 8 == 0:
            # what is here must be looked at first: it goes from here to there
            here = returned(cluster_node.folder)
            assert told <= here | returned(shared)
    cluster_node.stop()
    told = cluster_node.told()
    report = collect(cluster_node.folder, shared, move=True)

    assert report.failures == []
    assert told <= returned(shared)
    assert contents(cluster_node.folder) == {}
    assert [one.state for one in verify(shared)] == ["torn"]


def test_unfinished_copies_of_killed_passes_go(recorded: Path, tmp_path: Path) -> None:
    """Of a pass of this node that runs no more, once they are some seconds old; of others after a day."""
    collect(recorded, tmp_path / "shared")
    shared = tmp_path / "shared" / "exp1"
    node = re.sub(r"[^A-Za-z0-9_-]", "-", os.uname().nodename)
    gone = subprocess.Popen(["true"])
    gone.wait()
    ages = {
        f"a.00000.jsonl.zst.{node}-{gone.pid}-0123abcd.tmp": 60,
        f"b.00000.jsonl.zst.{node}-{os.getpid()}-0123abcd.tmp": 60,
        f"c.00000.jsonl.zst.{node}x-{gone.pid}-0123abcd.tmp": 60,
        f"d.00000.jsonl.zst.{node}x-{gone.pid}-0123abcd.tmp": 100_000,
        f"e.00000.jsonl.zst.{node}-{gone.pid}-0123abcd.tmp": 0,
        "f.tmp": 100_000,
    }
    for name, age in ages.items():
        (shared / name).touch()
        os.utime(shared / name, (time.time() - age,) * 2)
    collect(recorded, tmp_path / "shared")

    assert sorted(path.name[0] for path in shared.glob("*.tmp")) == ["b", "c", "e", "f"]


def test_uploaded_from_there_it_is_what_was_recorded_here(
    recorded: Path, tmp_path: Path, collector: Start, wandb_login: Server
) -> None:
    """After kills: uploaded from shared storage, and read back, the server has what the node's own files say."""
    chance, shared = seeded(), tmp_path / "shared"
    for _ in range(3):
        one = collector(recorded, shared, *PACE)
        kill_at_work(one, chance)
    collect(recorded, shared)
    (sent,) = upload(shared).runs
    # nothing is sent any more: what is stored is read back and held against the node's own files
    (held,) = upload(recorded, check="deep").runs

    assert (sent.sent, sent.failed, sent.missing_contents) == (sent.recorded, 0, 0)
    assert (held.sent, held.stored, held.failed) == (0, sent.recorded, 0)
    assert (held.checked, held.differences, held.more) == (sent.recorded, [], 0)
