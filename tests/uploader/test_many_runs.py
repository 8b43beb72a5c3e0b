"""Folders of many runs, of which some are none; and uploads that run side by side."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.demo.server_env import Server
from verl_trace.schemas.errors import CannotStart
from verl_trace.uploader import plan, target, upload
from verl_trace.uploader.result import UploadResult

Stored = Callable[[str], dict[str, Any]]


@pytest.fixture
def ten(writer: Any, project: str, tmp_path: Path) -> Path:
    """Eight runs, a run whose one file cannot be opened, and a folder that is no run."""
    runs = tmp_path / "runs"
    for number in range(9):
        recording = writer(runs, project, f"exp{number}")
        recording.call("A.run")
        recording.close()
    # a folder in place of the file: nobody can read that, root included
    recording.path.unlink()
    recording.path.mkdir()
    (runs / "no-run").mkdir()
    (runs / "no-run" / "notes.txt").write_text("lr 1e-6 was too much")
    (runs / ".cache").mkdir()
    return runs


def test_eight_of_ten(wandb_login: Server, ten: Path, project: str, stored: Stored) -> None:
    """The eight that can be uploaded are; the other two are named, with the reason."""
    result = upload(ten)

    assert (result.sent, len(stored(project)), len(result.runs)) == (8, 8, 8)
    named = {Path(unopened.name).name: unopened.reason for unopened in result.unopened}
    assert set(named) == {"exp8", "no-run"}
    assert named["exp8"].endswith(".00000.jsonl is no regular file, and is not read")
    assert named["no-run"] == "no span files in it"


def test_fail_fast(wandb_login: Server, ten: Path, project: str, stored: Stored) -> None:
    """`fail_fast` sends nothing, and names the first that cannot be uploaded."""
    with pytest.raises(CannotStart, match=r"exp8: .* is no regular file"):
        upload(ten, fail_fast=True)
    shutil.rmtree(ten / "exp8")
    with pytest.raises(CannotStart, match="no-run: no span files"):
        upload(ten, fail_fast=True)

    assert stored(project) == {}


def test_a_run_of_its_own_is_no_folder_of_runs(wandb_login: Server, ten: Path) -> None:
    """What lies in a run's folder beside its files is the user's own business."""
    (ten / "exp0" / "plots").mkdir()

    assert upload(ten / "exp0").unopened == []


def test_server_gone_between_runs(proxy: Any, ten: Path, project: str, fault: Any) -> None:
    """Once a project has refused access, the runs after it are named, and not tried one by one."""
    seen: list[str] = []

    def decide(path: str, body: bytes) -> Any:
        if path.endswith("/complete"):
            seen.append(path)
        return fault(403) if len(seen) > 3 else None

    proxy.decide = decide

    result = upload(ten)

    assert (result.sent, len(seen)) == (3, 4)
    assert "HTTP 403" in result.stopped
    assert [unopened.reason[:9] for unopened in result.unopened].count("not begun") == 4


def test_two_at_once(
    proxy: Any,
    writer: Any,
    project: str,
    tmp_path: Path,
    stored: Stored,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two people upload one run, one of them a copy of it, at the same time: each call is there once, none failed."""
    monkeypatch.setattr(plan, "MAX_CALLS", 20)
    recording = writer(tmp_path / "runs", project)
    for _ in range(200):
        recording.call("A.run")
    recording.close()
    copy = tmp_path / "copy of somebody else"
    shutil.copytree(recording.folder, copy)
    results: dict[str, UploadResult] = {}
    both = threading.Barrier(2)

    def decide(path: str, body: bytes) -> None:
        # neither sends its first calls before the other is about to
        if path.endswith("/complete") and not both.broken and both.n_waiting < 2 and not results.get("met"):
            try:
                both.wait(10)
            except threading.BrokenBarrierError:
                return
            results["met"] = UploadResult()
            both.abort()

    proxy.decide = decide
    folders = {"one": recording.folder, "two": copy}

    errors: list[BaseException] = []

    def one(name: str) -> None:
        try:
            results[name] = upload(folders[name], state_dir=tmp_path / name, workers=2)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(name,)) for name in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert errors == []
    assert len(stored(project)) == 200
    for name in folders:
        assert (results[name].failed, results[name].stopped, results[name].runs[0].checked) == (0, "", 200)
    assert upload(copy, state_dir=tmp_path / "nobody").sent == 0
    assert "met" in results


MEMORY = """
import resource, sys
from verl_trace.uploader import upload
result = upload(sys.argv[1])
assert (result.sent, result.failed) == (int(sys.argv[2]), 0), result.as_json()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.soak
def test_memory_does_not_grow_with_the_run(wandb_login: Server, writer: Any, project: str, tmp_path: Path) -> None:
    """Ten times the calls, with a kilobyte each, take less than 400 bytes more a trajectory, and 30 MB for the rest."""
    peaks = {}
    for trajectories in (1000, 10_000):
        recording = writer(tmp_path / str(trajectories), f"{project}-{trajectories}")
        for _ in range(trajectories):
            root = recording.start("A.run", inputs={"text": "x" * 1000})
            for _ in range(9):
                recording.call("B.run", "y" * 1000, parent=root)
            recording.end(root)
        recording.close()
        command = [sys.executable, "-c", MEMORY, str(recording.folder), str(10 * trajectories)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr
        peaks[trajectories] = int(done.stdout) * 1024
    print(peaks)

    assert peaks[10_000] - peaks[1000] < 9000 * 400 + 30e6


def test_filters_of_warnings_stay_the_programs_own() -> None:
    """What Weave's client warns of is not shown; threads that ask at once leave the program's list as it was."""
    asking = target._Asking(target.load_weave(), "http://api", "about", 1.0)
    before = list(warnings.filters)
    raised: list[BaseException] = []

    def ask(seconds: float) -> None:
        def question() -> None:
            time.sleep(seconds)
            warnings.warn("deprecated", DeprecationWarning, stacklevel=1)

        try:
            asking.answer(question)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=ask, args=(seconds,)) for seconds in (0.1, 0.2, 0.3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert raised == []
    assert warnings.filters == before
