"""An upload through a network that does everything wrong, 40 % of the time: the server holds the recording, once."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.uploader import plan, sender, transport, upload
from verl_trace.uploader.result import ALREADY_STORED

Stored = Callable[[str], dict[str, Any]]
# More than an upload through the worst of these storms takes.
MAX_WAIT = 120.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that gives an answer one second, begins with short pauses, and sends many small requests."""
    monkeypatch.setattr(plan, "MAX_CALLS", 100)
    # SQLite reads the calls that it is to count: it shall be done within the second
    monkeypatch.setattr(plan, "MAX_TRACES", 50)
    monkeypatch.setattr(sender, "MAX_TRACES", 50)
    monkeypatch.setattr(transport, "TIMEOUT", (1.0, 1.0))
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(transport, "LONGEST_WAIT", 1.0)


def chosen_seed() -> int:
    """A new one each time, or the one that is asked for."""
    return int(os.environ.get("VERL_TRACE_SEED") or random.SystemRandom().randrange(1 << 30))


def record(writer: Any, runs: Path, project: str, calls: int) -> Path:
    """Trajectories of five calls, one of them with more bytes than others."""
    recording = writer(runs, project)
    for number in range(calls // 5):
        root = recording.start("A.run", step=number, inputs={"n": number})
        for turn in range(4):
            recording.call("B.run", {"text": "x" * (2000 if turn == 1 else 20)}, parent=root)
        recording.end(root, {"n": number})
    recording.close()
    folder: Path = recording.folder
    return folder


def recorded(folder: Path) -> dict[str, tuple[str, str | None, str | None]]:
    """Times and parents of the recorded calls, by id."""
    return {
        call.id: (call.started_at, call.ended_at, call.parent_id)
        for run in find_runs(folder)
        for trajectory in iter_trajectories(run)
        for call in trajectory.calls
    }


def weather(proxy: Any, stored: Stored, run: Path, project: str, seed: int, decide: Any) -> None:
    """The promise. `stored` fails when a call is there twice."""
    print(f"VERL_TRACE_SEED={seed}")
    proxy.decide = decide

    result = upload(run, max_wait=MAX_WAIT)

    print(f"{proxy.faults} of {len(proxy.requests)} requests went wrong")
    wanted = recorded(run)
    rows = stored(project)
    assert (result.failed, result.stopped, result.sent) == (0, "", len(wanted)), result.runs[0].failures[:3]
    assert {key: (row["started_at"], row["ended_at"], row["parent_id"]) for key, row in rows.items()} == wanted
    assert result.runs[0].checked == len(wanted)

    proxy.requests.clear()
    again = upload(run, max_wait=MAX_WAIT)

    assert (again.sent, dict(again.skipped), again.failed) == (0, {ALREADY_STORED: len(wanted)}, 0)
    assert proxy.sent("/calls/complete") == proxy.sent("/call/upsert_batch") == []


@pytest.mark.parametrize("number", range(3))
def test_storm(
    proxy: Any, writer: Any, project: str, tmp_path: Path, stored: Stored, storm: Any, impatient: None, number: int
) -> None:
    """A thousand calls, in any weather: equal, none twice, and a second upload sends none."""
    seed = chosen_seed() + number

    weather(proxy, stored, record(writer, tmp_path, project, 1000), project, seed, storm(seed, largest=60_000))


def test_storm_before_an_older_server(
    proxy: Any, writer: Any, project: str, tmp_path: Path, stored: Stored, storm: Any, impatient: None, fault: Any
) -> None:
    """The same with a server that takes starts and ends one by one, so that a lost answer leaves calls half stored."""
    seed = chosen_seed()
    bad = storm(seed, largest=60_000)

    def decide(path: str, body: bytes) -> Any:
        return fault(404) if path.startswith("/v2/") else bad(path, body)

    weather(proxy, stored, record(writer, tmp_path, project, 300), project, seed, decide)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(int(os.environ.get("SOAK_STORMS", "30"))))
def test_long_storm(
    proxy: Any, writer: Any, project: str, tmp_path: Path, stored: Stored, storm: Any, impatient: None, number: int
) -> None:
    """The same with ten thousand."""
    seed = chosen_seed() + number

    weather(proxy, stored, record(writer, tmp_path, project, 10_000), project, seed, storm(seed, largest=60_000))
