"""`upload --follow`: sends what has settled while a run is written, and in the end exactly the rest."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.demo.server_env import Server
from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.reader.filters import Filters
from verl_trace.reader.where import Where
from verl_trace.schemas.errors import CannotStart, NotARun
from verl_trace.uploader import upload
from verl_trace.uploader.choose import Choosing
from verl_trace.uploader.result import ALREADY_STORED, NOT_CHOSEN, STILL_OPEN, UploadResult

WRITERS = 16
TRAINING = Path(__file__).with_name("live_training.py")
COMMAND = [str(Path(sys.executable).with_name("verl-trace")), "upload", "runs", "--follow", "--every", "0.3s", "--json"]


def ends(runs: Path) -> dict[str, str | None]:
    """When the recorded calls ended, by id."""
    return {
        call.id: call.ended_at
        for run in find_runs(runs)
        for trajectory in iter_trajectories(run)
        for call in trajectory.calls
    }


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that comes sooner or later."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def whole_since(folder: Path) -> dict[str, float]:
    """Trace id -> a moment before which its group was not whole."""
    told = [line.split() for path in folder.glob("told-*.log") for line in path.read_text().splitlines()]
    groups: dict[str, float] = {}
    for _, group, moment in told:
        groups[group] = max(groups.get(group, 0.0), float(moment))
    return {trace_id: groups[group] for trace_id, group, _ in told}


@pytest.fixture
def follow_training(
    proxy: Any, project: str, tmp_path: Path, stored: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, int], None]:
    """`follow_training(rollouts, kills)`: the promise, with so many rollouts of each of 16 processes; prints the seed.

    In the end the server holds the recording, once, and nothing was sent before its group was whole.
    """

    def run(rollouts: int, kills: int) -> None:
        _follow_training(proxy, project, tmp_path, stored, monkeypatch, rollouts, kills)

    return run


def test_late_rewards_and_a_follower_that_is_killed(follow_training: Callable[[int, int], None]) -> None:
    """Sixteen processes for some seconds."""
    follow_training(12, 4)


@pytest.mark.soak
def test_late_rewards_for_longer(follow_training: Callable[[int, int], None]) -> None:
    """The same for some minutes."""
    follow_training(300, 40)


def _follow_training(
    proxy: Any, project: str, tmp_path: Path, stored: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch,
    rollouts: int, kills: int,
) -> None:  # fmt: skip
    seed = int(os.environ.get("VERL_TRACE_SEED") or random.SystemRandom().randrange(1 << 30))
    print(f"VERL_TRACE_SEED={seed}")
    dice = random.Random(seed)
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "VERL_TRACE_DIR": str(tmp_path / "runs"),
        "VERL_TRACE_MIN_FREE": "0",
        "VERL_TRACE_ATTEMPT": "0123456789ab",
        "VERL_TRACE_SEGMENT_BYTES": "50000",
    }.items():
        monkeypatch.setenv(name, value)
    arrived: dict[str, float] = {}

    def watch(path: str, body: bytes) -> None:
        if path.endswith("/calls/complete"):
            for part in body.split(b'"trace_id":"')[1:]:
                trace_id = part[:36].decode()
                arrived.setdefault(trace_id, time.time())

    proxy.decide = watch
    writers = [
        subprocess.Popen([sys.executable, str(TRAINING), f"demo/{project}", str(number), str(seed), str(rollouts)])
        for number in range(WRITERS)
    ]
    follower = subprocess.Popen(COMMAND, stdout=subprocess.PIPE)
    for number in range(kills):
        if number == kills // 2:
            # it does keep up: half-way the training waits until something has arrived
            wait_until(lambda: bool(arrived))
            (tmp_path / "enough").touch()
        time.sleep(dice.uniform(0.5, 4))
        follower.kill()
        follower.communicate()
        follower = subprocess.Popen(COMMAND, stdout=subprocess.PIPE)
    out, _ = follower.communicate(timeout=300)

    assert [process.wait(60) for process in writers] == [0] * WRITERS
    assert follower.returncode == 0, out
    rows = stored(project)
    assert {key: row["ended_at"] for key, row in rows.items()} == ends(tmp_path / "runs")
    assert len(rows) == WRITERS * rollouts * 3
    since = whole_since(tmp_path)
    assert {trace_id for trace_id in arrived if arrived[trace_id] < since[trace_id]} == set()
    roots = [row for row in rows.values() if row["parent_id"] is None]
    assert all({"reward", "group_rank"} <= row["attributes"].keys() for row in roots)
    again = upload(tmp_path / "runs")
    assert (again.sent, dict(again.skipped), again.failed) == (0, {ALREADY_STORED: len(rows)}, 0)


class Following:
    """`upload(…, follow=…)` in a thread; what it has told so far."""

    def __init__(self, runs: Path, **options: Any) -> None:
        self.told: list[tuple[int, int]] = []
        self.stop = threading.Event()
        self.result: UploadResult | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(runs, options), daemon=True)
        self._thread.start()

    def _run(self, runs: Path, options: dict[str, Any]) -> None:
        def progress(result: UploadResult) -> None:
            self.told.append((result.sent, sum(result.skipped.values())))

        try:
            self.result = upload(runs, follow=0.1, stop=self.stop, progress=progress, **options)
        except Exception as error:
            self.error = error

    def end(self) -> UploadResult:
        """Its result."""
        self._thread.join(60)
        assert self.error is None, self.error
        assert self.result is not None
        return self.result


def test_by_and_by(wandb_login: Server, writer: Any, project: str, tmp_path: Path) -> None:
    """The folder comes later, then a writer on another host, call by call; the result counts all looks as one."""
    following = Following(tmp_path / "runs")
    recording = writer(tmp_path / "runs", project)
    root = recording.start("A.run")
    wait_until(lambda: following.told[-1:] == [(0, 1)])
    recording.end(root)
    first = recording.call("B.run")
    # no score was ever told, and its last sign of life is months old
    wait_until(lambda: following.told[-1:] == [(2, 0)])
    recording.start("C.run")
    wait_until(lambda: following.told[-1:] == [(2, 1)])
    recording.call("D.run")
    recording.close()
    result = following.end()

    assert first["id"] in ends(tmp_path / "runs")
    assert (result.recorded, result.sent, dict(result.skipped), result.failed) == (4, 4, {}, 0)
    assert (result.runs[0].interrupted, result.runs[0].checked) == (1, 4)


def test_stopped_from_outside(wandb_login: Server, writer: Any, project: str, tmp_path: Path) -> None:
    """The API's `stop` ends it between two looks; what waits is counted."""
    recording = writer(tmp_path / "runs", project)
    recording.call("A.run")
    recording.start("B.run")
    following = Following(tmp_path / "runs")
    wait_until(lambda: following.told[-1:] == [(1, 1)])
    following.stop.set()
    result = following.end()

    assert (result.recorded, result.sent, dict(result.skipped)) == (2, 1, {STILL_OPEN: 1})


def test_a_server_that_is_gone_for_a_while(
    proxy: Any, writer: Any, project: str, tmp_path: Path, fault: Any, stored: Callable[[str], Any]
) -> None:
    """It goes on when the server answers again, however often `max_wait` is over."""
    recording = writer(tmp_path / "runs", project)
    recording.call("A.run")
    following = Following(tmp_path / "runs", max_wait=0.2)
    wait_until(lambda: following.told[-1:] == [(1, 0)])
    proxy.decide = lambda path, body: fault(503)
    recording.call("B.run")
    faults = proxy.faults
    wait_until(lambda: proxy.faults > faults + 3)
    proxy.decide = lambda path, body: None
    recording.close()
    result = following.end()

    assert (result.sent, result.failed, result.stopped) == (2, 0, "")
    assert len(stored(project)) == 2


def test_access_is_withdrawn(proxy: Any, writer: Any, project: str, tmp_path: Path, fault: Any) -> None:
    """That ends it: nothing else will succeed."""
    recording = writer(tmp_path / "runs", project)
    recording.call("A.run")
    following = Following(tmp_path / "runs")
    wait_until(lambda: following.told[-1:] == [(1, 0)])
    proxy.decide = lambda path, body: fault(401)
    recording.call("B.run")
    result = following.end()

    assert "401" in result.stopped
    assert result.sent == 1


@pytest.mark.parametrize("refused", [("/calls/complete", "upsert_batch"), ("/obj/create",)])
def test_a_key_that_may_only_read(
    proxy: Any, writer: Any, project: str, tmp_path: Path, fault: Any, refused: tuple[str, ...]
) -> None:
    """Every look would begin well and be refused what it sends: the first one says so, and is the last."""
    recording = writer(tmp_path / "runs", project)
    recording.call("A.run")
    proxy.decide = lambda path, body: fault(403) if any(route in path for route in refused) else None
    stop = threading.Event()
    too_late = threading.Timer(60, stop.set)
    too_late.start()
    result = upload(tmp_path / "runs", follow=0.1, settle=0.0, stop=stop)
    too_late.cancel()

    assert not stop.is_set()
    assert "403" in result.stopped
    assert (result.sent, result.failed) == (0, 1)


@pytest.mark.parametrize(("status", "refused"), [(404, "stream_query"), (302, "/calls/complete")])
def test_a_proxy_that_answers_for_a_moment(
    proxy: Any, writer: Any, project: str, tmp_path: Path, fault: Any, status: int, refused: str
) -> None:
    """What is not about the key is asked again at the next look, which begins with a question of its own."""
    recording = writer(tmp_path / "runs", project)
    recording.call("A.run")
    left = [1]

    def decide(path: str, body: bytes) -> Any:
        if refused in path and left:
            left.clear()
            return fault(status)
        return None

    proxy.decide = decide
    following = Following(tmp_path / "runs")
    wait_until(lambda: not left)
    recording.close()
    result = following.end()

    assert (result.sent, result.failed, result.stopped) == (1, 0, "")


def test_ctrl_c_between_two_looks(wandb_login: Server, writer: Any, project: str, tmp_path: Path) -> None:
    """It answers at once, says what was sent, and ends with 0 when nothing waits."""
    recording = writer(tmp_path / "runs", project)
    recording.call("A.run")
    command = [*COMMAND[:1], "upload", str(tmp_path / "runs"), "--follow", "--every", "1h"]
    follower = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 60
    while upload(tmp_path / "runs", dry_run=True).recorded and not list((tmp_path / "home").rglob("*.ledger")):
        assert time.monotonic() < deadline
    # the look ends a moment after what it sent is remembered
    time.sleep(1)
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate(timeout=20)

    assert follower.returncode == 0, err
    assert "sent             1 call," in out
    assert "a look every 1h; Ctrl-C ends it" in err


def test_what_cannot_be_followed(writer: Any, project: str, tmp_path: Path) -> None:
    """A path that nothing can come to, a dry run, and a choice that needs the whole run."""
    writer(tmp_path / "runs", project).close()
    with pytest.raises(NotARun, match="no such folder"):
        upload(tmp_path / "no" / "runs", follow=0.1)
    with pytest.raises(CannotStart, match="dry run"):
        upload(tmp_path / "runs", follow=0.1, dry_run=True)
    with pytest.raises(CannotStart, match="--budget"):
        upload(tmp_path / "runs", follow=0.1, choosing=Choosing(budget=1000))


def test_a_filter_that_holds_only_later(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """A trajectory is chosen by a reward that is told after it was seen without."""
    recording = writer(tmp_path / "runs", project)
    high, low = (recording.call("A.run", step=0, sample_index=n, rollout_n=0) for n in (0, 1))
    filters = Filters(where=Where("reward > 0.5"))
    following = Following(tmp_path / "runs", choosing=Choosing(filters=filters))
    wait_until(lambda: following.told[-1:] == [(0, 2)])
    for head, reward in ((high, 0.9), (low, 0.1)):
        told = {name: head[name] for name in ("trace_id", "step", "sample_index", "rollout_n")}
        recording.write({"kind": "score", "id": head["id"], **told, "scores": {"reward": reward}})
    recording.close()
    result = following.end()

    assert (result.sent, dict(result.skipped)) == (1, {NOT_CHOSEN: 1})
    assert stored(project).keys() == {high["id"]}
    assert result.runs[0].notes == []
    mistyped = Choosing(filters=Filters(where=Where("rewrad > 0.5")))
    (note,) = upload(tmp_path / "runs", follow=0.05, choosing=mistyped).runs[0].notes
    assert note.startswith("--where 'rewrad > 0.5': no trajectory has 'rewrad' (did you mean reward?")


def test_progress_that_cannot_be_kept(proxy: Any, writer: Any, project: str, tmp_path: Path) -> None:
    """A full or read-only home: while it runs, a follower knows what it has sent, and says what is the matter."""
    (tmp_path / "file").touch()
    recording = writer(tmp_path / "runs", project)
    first = recording.call("A.run")
    following = Following(tmp_path / "runs", state_dir=tmp_path / "file" / "no")
    wait_until(lambda: following.told[-1:] == [(1, 0)])
    asked = len(proxy.sent("/calls/stream_query"))
    recording.call("B.run")
    wait_until(lambda: following.told[-1:] == [(2, 0)])
    questions = proxy.sent("/calls/stream_query")[asked:]
    recording.close()
    result = following.end()

    assert questions
    assert not any(first["id"].encode() in question for question in questions)
    assert (result.sent, result.runs[0].checked) == (2, 2)
    assert any("progress cannot be kept" in note for note in result.runs[0].notes)


def test_single_calls_and_feedback_are_asked_for_once(proxy: Any, writer: Any, project: str, tmp_path: Path) -> None:
    """With --calls and --feedback, too, a look asks for what is new; the last one for all of it."""
    recording = writer(tmp_path / "runs", project)

    def rollout(number: int) -> dict[str, Any]:
        head: dict[str, Any] = recording.start("A.run", step=0, sample_index=number, rollout_n=0)
        recording.call("B.generate", parent=head)
        recording.end(head)
        told = {name: head[name] for name in ("trace_id", "step", "sample_index", "rollout_n")}
        recording.write({"kind": "score", "id": head["id"], **told, "scores": {"reward": 1.0}})
        return head

    first = rollout(0)
    choosing = Choosing(filters=Filters.of(op="A.run"), calls=True)
    following = Following(tmp_path / "runs", choosing=choosing, feedback=True)
    wait_until(lambda: following.told[-1:] == [(1, 1)])
    paths = ("/calls/stream_query", "/feedback/query")
    wait_until(lambda: bool(proxy.sent(paths[1])))
    asked = {path: len(proxy.sent(path)) for path in paths}
    second = rollout(1)
    wait_until(lambda: following.told[-1:] == [(2, 2)] and len(proxy.sent(paths[1])) > asked[paths[1]])
    questions = [question for path in paths for question in proxy.sent(path)[asked[path] :]]
    feedback_asked = len(proxy.sent(paths[1]))
    recording.close()
    result = following.end()

    assert any(second["id"].encode() in question for question in questions)
    assert not any(first["id"].encode() in question for question in questions)
    assert [question.count(b"$literal") for question in proxy.sent(paths[1])[:feedback_asked]] == [1, 1]
    assert [question.count(b"$literal") for question in proxy.sent(paths[1])[feedback_asked:]] == [2]
    assert (result.sent, dict(result.skipped), result.runs[0].feedback) == (2, {NOT_CHOSEN: 2}, 2)


def test_other_calls_of_a_trajectory_are_not_taken_for_sent(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """What is remembered of single calls says nothing of the others."""
    recording = writer(tmp_path / "runs", project)
    head = recording.start("A.run")
    recording.call("B.generate", parent=head)
    recording.end(head)
    recording.close()
    for op in ("A.run", "A.run", "B.generate"):
        upload(tmp_path / "runs", choosing=Choosing(filters=Filters.of(op=op), calls=True))
    assert len(stored(project)) == 2
    rest = upload(tmp_path / "runs")

    assert (rest.sent, dict(rest.skipped)) == (0, {ALREADY_STORED: 2})
