"""Bringing span files to shared storage while they are written, in time, and after accidents."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from verl_trace.collector import Pace, collect, items
from verl_trace.collector import transfer as transfers
from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.reader.verify import verify
from verl_trace.recorder.sealing import seal

RECORD = """
import sys, time
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
class Loop:
    @rollout_trace_op
    def run(self, n): return "x" * 3000
RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
n = 0
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    with rollout_trace_attr(sample_index=n, step=n // 100, rollout_n=0):
        Loop().run(n)
    n += 1
    time.sleep(0.002)
print(n)
"""
COMMAND = [sys.executable, "-c", "from verl_trace.cli import main; main()", "collect"]


def recording(node: Path, seconds: float) -> subprocess.Popen[str]:
    environment = os.environ | {"VERL_TRACE_DIR": str(node), "VERL_TRACE_SEGMENT_BYTES": "256K"}
    return subprocess.Popen(
        [sys.executable, "-c", RECORD, str(seconds)], env=environment, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished recording of several segments, and the one of a killed process: to be copied."""
    folder = tmp_path_factory.mktemp("made") / "node"
    finished, killed = recording(folder, 1.5), recording(folder, 600)
    out, _ = finished.communicate(timeout=120)
    assert int(out) > 0
    killed.kill()
    killed.communicate()
    return folder


@pytest.fixture
def node(made: Path, tmp_path: Path) -> Path:
    """A node's folder with the same, of this test alone."""
    return Path(shutil.copytree(made, tmp_path / "node"))


def calls(*places: Path) -> set[str]:
    return {call.id for place in places for run in find_runs(place) for t in iter_trajectories(run) for call in t.calls}


def ended(place: Path) -> set[str]:
    """Calls with all that was recorded of them."""
    found = (call for run in find_runs(place) for t in iter_trajectories(run) for call in t.calls)
    return {call.id for call in found if not call.unfinished and call.inputs is not None}


def states(place: Path) -> list[str]:
    return [report.state for report in verify(place)]


def test_everything_arrives_once(node: Path, tmp_path: Path) -> None:
    """All records, compressed, under the same names; the second pass moves nothing; the source stays."""
    before = calls(node)
    first = collect(node, tmp_path / "shared")
    second = collect(node, tmp_path / "shared")

    assert (first.failures, first.left) == ([], 0)
    # a busy machine may leave the files of the finished one raw, too
    assert first.sealed >= 1
    assert first.copied >= 3
    assert (second.size, second.copied, second.extended) == (0, 0, 0)
    assert calls(tmp_path / "shared") == calls(node) == before
    assert states(tmp_path / "shared") == ["torn"]
    assert not list((tmp_path / "shared" / "exp1").glob("*.jsonl"))


def test_one_run_given_itself(node: Path, tmp_path: Path) -> None:
    """SRC may be the run's folder: it keeps its name."""
    collect(node / "exp1", tmp_path / "shared")
    assert calls(tmp_path / "shared" / "exp1") == calls(node)


@pytest.mark.parametrize("move", [False, True])
def test_a_run_is_not_brought_to_where_it_is(node: Path, tmp_path: Path, move: bool) -> None:
    """SRC as its own DEST, by another path too, is refused, and every file is still there: they are the only ones."""
    (tmp_path / "link").symlink_to(node)
    before = sorted(path.name for path in node.rglob("*"))

    for target in (node, tmp_path / "link"):
        with pytest.raises(OSError, match="source and destination at once"):
            collect(node, target, move=move)
    ((_, reason),) = collect(node / "exp1", node, move=move).failures
    assert "its own destination" in reason

    assert before == sorted(path.name for path in node.rglob("*"))


def test_a_run_given_as_the_current_folder_keeps_its_name(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`collect . DEST` in a run's folder makes DEST/exp1, as from anywhere else."""
    monkeypatch.chdir(node / "exp1")

    collect(".", tmp_path / "shared")

    assert os.listdir(tmp_path / "shared") == ["exp1"]


def test_move_removes_what_arrived(node: Path, tmp_path: Path) -> None:
    """With move nothing but markers is left here, and all is there; a copy that an earlier pass made counts, too."""
    before = calls(node)
    collect(node, tmp_path / "shared")
    moved = collect(node, tmp_path / "shared", move=True)

    assert moved.removed >= 3
    assert [path.name for path in (node / "exp1").iterdir() if not path.name.startswith(".")] == []
    assert calls(tmp_path / "shared") == before


def test_a_live_run_is_followed(tmp_path: Path) -> None:
    """Passes while it is written, under rotation: a readable copy after each, that only grows; at last all of it."""
    node, shared = tmp_path / "node", tmp_path / "shared"
    process = recording(node, 8)
    seen: set[str] = set()
    while not (node / "exp1").is_dir():
        time.sleep(0.05)
    while process.poll() is None:
        report = collect(node, shared)
        assert report.failures == []
        if not any((shared / "exp1").glob("*.jsonl*")):
            continue
        now = ended(shared)
        assert seen <= now
        assert "damaged" not in states(shared)
        seen = now
        time.sleep(0.3)
    process.communicate()
    collect(node, shared)

    assert len(seen) > 100
    assert calls(shared) == calls(node)
    assert states(shared) == ["whole"]


@pytest.mark.parametrize("step", range(4))
def test_a_segment_that_is_sealed_meanwhile_arrives(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """At whatever step of a pass: with a later one of its process there, a reader would say that it is lost."""
    raw = max((node / "exp1").glob("*.jsonl"))
    steps = itertools.count()
    for name in ("_stat_all", "pruned_files"):
        real = getattr(items, name)

        def meanwhile(*of: Any, real: Any = real) -> Any:
            if next(steps) == step:
                seal(raw)
            return real(*of)

        monkeypatch.setattr(items, name, meanwhile)
    # with a deadline nothing is sealed here first
    report = collect(node, tmp_path / "shared", pace=Pace(deadline=time.monotonic() + 600))

    assert not raw.exists()
    assert report.failures == []
    assert calls(tmp_path / "shared") == calls(node)


def test_a_lost_node_costs_what_came_after_the_last_pass(tmp_path: Path) -> None:
    """The node is gone: the copy has every call that had ended when the pass began."""
    node, shared = tmp_path / "node", tmp_path / "shared"
    process = recording(node, 600)
    try:
        while not list(node.glob("exp1/*.00001.jsonl")):
            time.sleep(0.05)
        before = ended(node)
        collect(node, shared)
    finally:
        process.kill()
        process.communicate()
    shutil.rmtree(node)
    assert before <= ended(shared)


def test_two_at_once_and_killed_ones(node: Path, tmp_path: Path) -> None:
    """Two collectors into one folder, killed at random moments, again and again: in the end all of it, and whole."""
    shared, chance = tmp_path / "shared", random.Random(5)
    for _ in range(6):
        pair = [subprocess.Popen([*COMMAND, str(node), str(shared)], stdout=subprocess.DEVNULL) for _ in range(2)]
        time.sleep(chance.uniform(0.1, 0.9))
        for process in pair:
            process.kill()
            process.communicate()
    collect(node, shared)

    assert calls(shared) == calls(node)
    assert states(shared) == ["torn"]


def test_what_arrives_damaged_is_not_published(node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that returns other bytes: the file is named, nothing is renamed, with move the source stays."""
    original = transfers.digest_of
    monkeypatch.setattr(transfers, "digest_of", lambda path: bytes(byte ^ 1 for byte in original(path)))
    report = collect(node, tmp_path / "shared", move=True)

    assert report.removed == 0
    assert "not what was sent" in report.failures[0][1]
    assert report.left == len(report.failures)
    assert not list((tmp_path / "shared" / "exp1").glob("*.zst*"))


def test_a_deadline_takes_the_newest_and_smallest_first(node: Path, tmp_path: Path) -> None:
    """Out of time: nothing half done is left, what is left is said, raw files went first, and a later pass ends it."""
    now = 0.0

    def clock() -> float:
        return now

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    sizes = sorted(path.stat().st_size for path in (node / "exp1").glob("*.zst"))
    raw = sum(path.stat().st_size for path in (node / "exp1").glob("*.jsonl"))
    pace = Pace(1000, (raw + sizes[0] + 1) / 1000, clock=clock, sleep=sleep)
    report = collect(node, tmp_path / "shared", pace=pace)

    arrived = list((tmp_path / "shared" / "exp1").glob("*.jsonl*"))
    assert report.sealed == 0
    assert report.left >= 1
    assert any(path.suffix == ".jsonl" for path in arrived)
    assert not list((tmp_path / "shared" / "exp1").glob("*.tmp"))
    assert report.left_size > 0
    assert collect(node, tmp_path / "shared").left == 0
    assert calls(tmp_path / "shared") == calls(node)


def test_bandwidth(node: Path, tmp_path: Path) -> None:
    """The limit holds over the pass: what is waited for is what the bytes before the last piece take."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    report = collect(node, tmp_path / "shared", pace=Pace(1000, clock=lambda: now, sleep=sleep))
    largest = max(path.stat().st_size for path in (tmp_path / "shared" / "exp1").iterdir())

    assert (report.size - largest) / 1000 - 0.01 <= now <= report.size / 1000 + 0.01, (report, largest)


def test_a_destination_that_cannot_be_written(node: Path, tmp_path: Path) -> None:
    """An error in words, exit code 2; the source is whole."""
    (tmp_path / "file").touch()
    done = subprocess.run([*COMMAND, str(node), str(tmp_path / "file")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert str(tmp_path / "file") in done.stderr


def test_storage_that_goes_away_for_a_while(node: Path, tmp_path: Path) -> None:
    """A pass that fails as a whole is told, and the sidecar goes on; at its start that is exit 2."""
    shared, one, other, file = (tmp_path / name for name in ("shared", "one", "other", "file"))
    one.mkdir()
    other.mkdir()
    file.touch()
    shared.symlink_to(one)

    def turn_to(place: Path) -> None:
        # in one step, between which no pass can fall
        (tmp_path / "new").symlink_to(place)
        (tmp_path / "new").rename(shared)

    sidecar = subprocess.Popen(
        [*COMMAND, str(node), str(shared), "--every", "0.2s", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert sidecar.stdout is not None
    first = json.loads(sidecar.stdout.readline())
    turn_to(file)
    failed = json.loads(sidecar.stdout.readline())
    at_the_start = subprocess.run([*COMMAND, str(node), str(shared), "--every", "1s"], timeout=60, check=False)
    turn_to(other)
    again = next(report for line in sidecar.stdout if not (report := json.loads(line))["failures"])
    sidecar.send_signal(signal.SIGTERM)
    sidecar.communicate(timeout=60)

    assert (first["failures"], failed["failures"] != []) == ([], True)
    assert again["copied"] > 0
    assert (sidecar.returncode, at_the_start.returncode) == (0, 2)
    assert calls(shared) == calls(node)


def test_no_interval(tmp_path: Path) -> None:
    """Passes without a rest would take a core from the training: exit 2, one line."""
    done = subprocess.run(
        [*COMMAND, str(tmp_path), str(tmp_path / "shared"), "--every", "0s"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert "--every '0s' leaves no time" in done.stderr


def test_sidecar_until_sigterm(tmp_path: Path) -> None:
    """Passes every second while a run is written; at SIGTERM a last one; nothing is lost."""
    node, shared = tmp_path / "node", tmp_path / "shared"
    sidecar = subprocess.Popen(
        [*COMMAND, str(node), str(shared), "--every", "1s", "--deadline", "20s", "--bwlimit", "1GB", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    process = recording(node, 6)
    process.communicate(timeout=120)
    sidecar.send_signal(signal.SIGTERM)
    out, _ = sidecar.communicate(timeout=60)

    reports: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert sidecar.returncode == 0, reports
    assert len(reports) > 1
    assert ended(shared) == ended(node)
    assert {report["host"] for report in reports} == {os.uname().nodename}


def test_notes_come_along(writer: Any, tmp_path: Path) -> None:
    """What was announced, which W&B run it was, what was pruned: and again when a note has grown."""
    recording = writer(tmp_path / "node", "proj")
    recording.close()
    names = (".attempt-5c1d0a77be02", ".wandb-5c1d0a77be02-x.json", "pruned-20260101T000000-00000000.jsonl")
    for size in (1, 2):
        for name in names:
            (recording.folder / name).write_bytes(b"\n" * size)
        collect(tmp_path / "node", tmp_path / "shared")
        assert [(tmp_path / "shared" / "exp1" / name).stat().st_size for name in names] == [size] * 3
