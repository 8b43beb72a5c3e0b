"""When a trajectory is sent: once it can no longer change, and not before."""

from __future__ import annotations

import hashlib
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import Trajectory, find_runs, iter_trajectories
from verl_trace.uploader import upload
from verl_trace.uploader.result import STILL_OPEN, WAITS_FOR_SCORE, WAITS_FOR_SEGMENT
from verl_trace.uploader.settle import Settling


def moment(text: str) -> datetime:
    """A recorded time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


Waits = list["str | None"]


def waits(folder: Path, settle: float = 600.0, *, scored: bool = True) -> Waits:
    """Why each trajectory waits, in order of their first calls."""
    (run,) = find_runs(folder)
    settling = Settling(run, settle, has_score=lambda _: scored)
    found = sorted(iter_trajectories(run), key=lambda trajectory: trajectory.calls[0].started_at)
    return [settling.waits(trajectory) for trajectory in found]


@pytest.fixture
def live(writer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A recording on another host, written to just now: one trajectory that ended, one that did not."""
    recording = writer(tmp_path, "p")
    recording.call("A.run")
    recording.call("B.run", parent=recording.start("A.run"))
    return recording


def test_a_score_is_waited_for(live: Any) -> None:
    """While its attempt goes on, a trajectory that has ended is sent when its score is there, or after `settle`."""
    now = live_now(live)

    assert waits(live.folder, scored=True) == [None, STILL_OPEN]
    assert waits(live.folder, settle=now + 600, scored=False) == [WAITS_FOR_SCORE, STILL_OPEN]
    assert waits(live.folder, settle=now - 600, scored=False) == [None, STILL_OPEN]


def live_now(live: Any) -> float:
    """Seconds since the recorded times, which are of a fixed day, with the file's age made to be none."""
    (run,) = find_runs(live.folder)
    os.utime(live.path)
    (first, *_) = iter_trajectories(run)
    ended = moment(first.calls[0].ended_at or "").timestamp()
    return float(live.path.stat().st_mtime) - ended


def test_no_score_comes_after_the_end(live: Any) -> None:
    """A run that records no scores, or none of this trajectory, is sent as soon as its attempt has ended."""
    live.close()

    assert waits(live.folder, settle=1e12, scored=False) == [None, None]


def test_an_attempt_ends_with_its_last_process(live: Any, writer: Any) -> None:
    """One closed recording does not end the attempt: another process may still give the score of what has ended."""
    live.close()
    other = writer(live.folder.parent, "p", pid=4712)

    assert waits(live.folder, settle=1e12, scored=False) == [WAITS_FOR_SCORE, None]
    other.close()
    assert waits(live.folder, settle=1e12, scored=False) == [None, None]


@pytest.mark.parametrize(("quiet", "settle", "expected"), [(360, 600, STILL_OPEN), (660, 600, None), (60, 0, None)])
def test_a_long_call_on_another_host(live: Any, quiet: float, settle: float, expected: str | None) -> None:
    """A process that nobody can see counts as alive until its files are quiet for `settle`, however long its call."""
    live.age(quiet)

    assert waits(live.folder, settle)[1] == expected


def test_a_living_process_of_this_host(live: Any) -> None:
    """What is open in a process that runs here waits, whatever `settle` says and however old its file is."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    head = live.path.read_bytes().replace(b'"pid":4711', b'"pid":%d' % os.getpid())
    head = head.replace(b'"pid_start":1,', b'"pid_start":%s,' % stat[19].encode())
    head = head.replace(b'"pid_ns":1,', b'"pid_ns":%d,' % os.stat("/proc/self/ns/pid").st_ino)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().encode()
    live.path.write_bytes(head.replace(b'"boot_id":"none"', b'"boot_id":"%s"' % boot))
    live.age(1e6)

    assert waits(live.folder, 0) == [None, STILL_OPEN]


def test_a_picture_that_waits_in_memory(live: Any) -> None:
    """The line was there first: the trajectory waits for its content, and not for ever."""
    now = live_now(live)
    content = b"pixels"
    digest = hashlib.sha256(content).hexdigest()
    live.path.write_bytes(
        live.path.read_bytes().replace(b'"attributes":', b'"blobs":["%s"],"attributes":' % digest.encode())
    )

    assert waits(live.folder, now + 600)[0] == STILL_OPEN
    assert waits(live.folder, now - 600)[0] is None
    entry = b'{"kind":"blob","digest":"%s","size":%d}\n%s\n' % (digest.encode(), len(content), content)
    live.path.with_suffix(".blobs").write_bytes(b'{"kind":"header"}\n' + entry)
    assert waits(live.folder, now + 600)[0] is None


def test_a_picture_of_a_process_that_is_gone(live: Any) -> None:
    """Nobody writes it any more: what there is is sent. A side file that is not here at all may still arrive."""
    live.path.write_bytes(
        live.path.read_bytes().replace(b'"attributes":', b'"blobs":["%s"],"attributes":' % (b"0" * 64))
    )
    assert waits(live.folder, 0) == [None, None]
    live.close()
    assert waits(live.folder, 1e12) == [WAITS_FOR_SEGMENT, WAITS_FOR_SEGMENT]
    live.path.with_suffix(".blobs").write_bytes(b'{"kind":"header"}\n')
    assert waits(live.folder, 1e12) == [None, None]


def test_a_lost_root_is_waited_for(live: Any) -> None:
    """While the attempt goes on, the root of an orphan may still come."""
    root = live.start("A.run", on_disk=False)
    live.call("B.run", parent=root)

    assert waits(live.folder, settle=1e12)[-1] == STILL_OPEN
    live.close()
    assert waits(live.folder, settle=1e12)[-1] is None


def test_option_reaches_the_upload(wandb_login: Any, live: Any, project: str) -> None:
    """`settle` and `has_score` of `upload` decide: first nothing, then the scored one, in the end all."""
    first_id = next(iter_trajectories(find_runs(live.folder)[0])).trace_id

    def has_score(trajectory: Trajectory) -> bool:
        return trajectory.trace_id == first_id

    none = upload(live.folder, project=project, settle=1e12, has_score=lambda _: False)
    one = upload(live.folder, project=project, settle=1e12, has_score=has_score)
    everything = upload(live.folder, project=project, settle=0)

    assert (none.sent, dict(none.skipped)) == (0, {WAITS_FOR_SCORE: 1, STILL_OPEN: 2})
    assert (one.sent, one.waiting) == (1, 2)
    assert (everything.sent, everything.waiting, everything.runs[0].interrupted) == (2, 0, 1)
