"""The ledger is only a cache: whatever becomes of it, every call is on the server once."""

from __future__ import annotations

import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.demo.server_env import Server
from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.uploader import upload
from verl_trace.uploader.ledger import Ledger, Place, known_places, state_folder
from verl_trace.uploader.result import ALREADY_STORED

Stored = Callable[[str], dict[str, Any]]
PLACE = Place("http://server", "me/p", "p", "exp1")
TRAJECTORIES = 150


@pytest.fixture
def folder(writer: Any, project: str, tmp_path: Path) -> Path:
    """A run of 150 trajectories of two calls."""
    recording = writer(tmp_path / "runs", project)
    for _ in range(TRAJECTORIES):
        root = recording.start("A.run")
        recording.call("B.run", parent=root)
        recording.end(root)
    recording.close()
    made: Path = recording.folder
    return made


def trajectories(folder: Path) -> list[Any]:
    """All of a run."""
    return list(iter_trajectories(find_runs(folder)[0]))


def remembered(ledger: Ledger, of: list[Any]) -> list[bool]:
    """Which of them a ledger knows."""
    return [ledger.remembers(ledger.mark(trajectory)) for trajectory in of]


def filled(state: Path, of: list[Any], place: Place = PLACE) -> Ledger:
    """A ledger that knows all of them."""
    ledger = Ledger(state, place)
    ledger.add(ledger.mark(trajectory) for trajectory in of)
    ledger.close()
    return ledger


def offsets(size: int, count: int, seed: int) -> list[int]:
    """Every page boundary, and `count` others."""
    print(f"VERL_TRACE_SEED={seed}")
    return sorted({*range(0, size, 4096), *random.Random(seed).choices(range(size), k=count)})


def chosen_seed() -> int:
    """A new one each time, or the one that is asked for."""
    return int(os.environ.get("VERL_TRACE_SEED") or random.SystemRandom().randrange(1 << 30))


def test_remembers_across_processes(folder: Path, tmp_path: Path) -> None:
    """What was added is known to the next who opens it, and nothing else is."""
    known, unknown = trajectories(folder)[:100], trajectories(folder)[100:]
    filled(tmp_path, known)

    ledger = Ledger(tmp_path, PLACE)

    assert all(remembered(ledger, known))
    assert not any(remembered(ledger, unknown))
    assert known_places(tmp_path, find_runs(folder)[0]) == []
    run = find_runs(folder)[0]
    place = PLACE._replace(project_name=run.project_name, experiment_name=run.experiment_name)
    filled(tmp_path, known, place)
    assert known_places(tmp_path, run) == [place]


def test_cut_anywhere(folder: Path, tmp_path: Path) -> None:
    """Cut at 200 offsets and every page boundary: what it still says is true, and it goes on from there."""
    everything = trajectories(folder)
    path = filled(tmp_path / "whole", everything).path
    content = path.read_bytes()
    assert len(content) > 4096
    for offset in offsets(len(content), 200, chosen_seed()):
        state = tmp_path / str(offset)
        state.mkdir(exist_ok=True)
        (state / path.name).write_bytes(content[:offset])

        cut = Ledger(state, PLACE)
        before = sum(remembered(cut, everything))
        cut.add(cut.mark(trajectory) for trajectory in everything)
        cut.close()

        assert before <= offset // 33
        assert all(remembered(Ledger(state, PLACE), everything))


def test_says_nothing_for_others(folder: Path, tmp_path: Path) -> None:
    """Another server's, project's or run's ledger under this name, flipped bits and garbage are not believed."""
    everything = trajectories(folder)
    path = Ledger(tmp_path, PLACE).path
    path.parent.mkdir(exist_ok=True)
    for place in (PLACE._replace(server="http://other"), PLACE._replace(project_id="me/other")):
        shutil.copy(filled(tmp_path, everything, place).path, path)
        assert not any(remembered(Ledger(tmp_path, PLACE), everything))
    path.unlink()
    dice = random.Random(chosen_seed())
    content = bytearray(filled(tmp_path, everything).path.read_bytes())
    start = len(content) - 33 * TRAJECTORIES
    for line in range(TRAJECTORIES):
        content[start + 33 * line + dice.randrange(32)] ^= 1 << dice.randrange(5)
    path.write_bytes(content)
    assert not any(remembered(Ledger(tmp_path, PLACE), everything))
    path.write_bytes(dice.randbytes(200_000))
    assert not any(remembered(Ledger(tmp_path, PLACE), everything))


def test_another_state_of_a_trajectory_is_another(writer: Any, tmp_path: Path) -> None:
    """A trajectory of which more is known than when it was stored is asked for again."""
    recording = writer(tmp_path / "runs", "p")
    root = recording.start("A.run")
    ledger = Ledger(tmp_path, PLACE)
    marks = {ledger.mark(trajectories(recording.folder)[0])}
    recording.call("B.run", parent=root)
    marks.add(ledger.mark(trajectories(recording.folder)[0]))
    recording.end(root)
    marks.add(ledger.mark(trajectories(recording.folder)[0]))
    (trajectory,) = trajectories(recording.folder)
    for scores in ({"reward": 0.5}, {"reward": 0.5, "human": 4}, {"reward": 0.5, "human": 5}):
        trajectory.scores = scores
        marks.add(ledger.mark(trajectory))

    assert len(marks) == 6


def assert_same(folder: Path, project: str, stored: Stored, proxy: Any) -> None:
    """Another upload stores nothing, sends no call, and says that all is there."""
    before = stored(project)
    proxy.requests.clear()
    result = upload(folder)
    assert (result.sent, dict(result.skipped), result.failed) == (0, {ALREADY_STORED: 2 * TRAJECTORIES}, 0)
    assert proxy.sent("/calls/complete") == []
    assert stored(project) == before


def test_saves_questions(proxy: Any, folder: Path, project: str, stored: Stored) -> None:
    """With the ledger, 150 trajectories are one question; without it, the server is asked for their ids."""
    upload(folder)
    assert_same(folder, project, stored, proxy)
    assert len(proxy.sent("/calls/stream_query")) == 0
    assert len(proxy.sent("/calls/query_stats")) == 2

    shutil.rmtree(state_folder())

    assert_same(folder, project, stored, proxy)
    assert len(proxy.sent("/calls/stream_query")) == 1


def spoil(how: str, path: Path, dice: random.Random) -> None:
    """Damage of one kind."""
    if how == "deleted":
        path.unlink()
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "garbage":
        path.write_bytes(dice.randbytes(20_000))
    else:
        os.truncate(path, dice.randrange(path.stat().st_size))


@pytest.mark.parametrize("how", ["deleted", "a folder", "garbage", "cut"])
def test_damaged(proxy: Any, folder: Path, project: str, stored: Stored, how: str) -> None:
    """Whatever became of it, the next upload sends nothing twice, and the one after that neither."""
    seed = chosen_seed()
    print(f"VERL_TRACE_SEED={seed}")
    upload(folder)
    (path,) = state_folder().glob("*.ledger")
    spoil(how, path, random.Random(seed))

    assert_same(folder, project, stored, proxy)
    assert_same(folder, project, stored, proxy)


@pytest.mark.soak
def test_cut_at_two_hundred_offsets(proxy: Any, folder: Path, project: str, stored: Stored) -> None:
    """The same with an upload after each cut, and two calls that the server does not have yet."""
    upload(folder)
    (path,) = state_folder().glob("*.ledger")
    for offset in offsets(path.stat().st_size, 200, chosen_seed()):
        os.truncate(path, min(offset, path.stat().st_size))
        assert_same(folder, project, stored, proxy)


@pytest.mark.parametrize("limit", ["no folder", "full disk"])
def test_cannot_be_kept(
    proxy: Any, folder: Path, project: str, stored: Stored, tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state folder that cannot be made and a disk without room: all is sent, and one note says what to do."""
    state = tmp_path / "state"
    if limit == "no folder":
        state.write_text("a file is in the way")
        result = upload(folder, state_dir=state)
    else:
        state.mkdir()
        monkeypatch.setattr(os, "write", full_disk(state, os.write))
        result = upload(folder, state_dir=state)

    assert (result.sent, result.failed) == (2 * TRAJECTORIES, 0)
    (note,) = result.runs[0].notes
    assert note.startswith("progress cannot be kept (")
    assert "--state-dir" in note
    monkeypatch.undo()
    proxy.requests.clear()


def full_disk(state: Path, write: Callable[[int, bytes], int]) -> Callable[[int, bytes], int]:
    """An `os.write` that finds no room in one folder."""

    def limited(fd: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(state)):
            raise OSError(28, "No space left on device")
        return write(fd, data)

    return limited


def test_server_that_has_lost_calls(wandb_login: Server, folder: Path, project: str, stored: Stored) -> None:
    """What the ledger remembers and the server has no more (it was restored from an older copy) is sent again."""
    place = Place(wandb_login.url, f"demo/{project}", project, "exp1")
    filled(state_folder(), trajectories(folder), place)

    result = upload(folder)

    assert (result.sent, dict(result.skipped), result.failed) == (2 * TRAJECTORIES, {}, 0)
    assert len(stored(project)) == 2 * TRAJECTORIES
    assert "has lost calls of 150 trajectories" in " ".join(result.runs[0].notes)


def test_many_files_with_few_handles(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Stored
) -> None:
    """2,000 files are uploaded by a process that may open 128."""
    runs = tmp_path / "runs"
    for number in range(2000):
        recording = writer(runs, project, pid=number)
        recording.call("A.run")
        recording.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        result = upload(runs)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (result.sent, result.failed, result.unreadable) == (2000, 0, [])
    assert len(stored(project)) == 2000


def test_an_attempt_that_comes_later(writer: Any, tmp_path: Path) -> None:
    """Its W&B run is another, which says nothing of the calls of the first; another run of the first one does."""
    recording = writer(tmp_path / "runs", "proj")
    recording.call("A.run")
    ledger = Ledger(tmp_path, PLACE, ["", "first: team/proj/a"])
    ledger.add(ledger.mark(trajectory) for trajectory in trajectories(recording.folder))

    assert Ledger(tmp_path, PLACE, ["", "first: team/proj/a", "second: team/proj/b"]).one_form
    assert not Ledger(tmp_path, PLACE, ["", "first: team/proj/b"]).one_form
    assert not Ledger(tmp_path, PLACE, ["drop=['x']", "first: team/proj/a"]).one_form
