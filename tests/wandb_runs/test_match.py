"""Which W&B run belongs to which training start."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest

from verl_trace.reader import Run, find_runs
from verl_trace.wandb_runs.match import match_runs
from verl_trace.wandb_runs.offline import OfflineRun

# When the first attempt of `recorded` begins; see tests/conftest.py.
BEGIN = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)


def recorded(writer: Any, tmp_path: Path, *, attempts: int = 1, wandb: dict[str, str] | None = None) -> Run:
    """A run with attempts that began an hour apart."""
    for number in range(attempts):
        recording = writer(tmp_path / "runs", "me/proj", "exp1", pid=100 + number)
        recording.call("Loop.run")
        recording.close()
        header, *rest = recording.path.read_bytes().splitlines(keepends=True)
        head = orjson.loads(header)
        head |= {"attempt": f"attempt{number}", "wandb": wandb or {}}
        head["started_at"] = (BEGIN + timedelta(hours=number)).isoformat().replace("+00:00", "Z")
        recording.path.write_bytes(b"".join([orjson.dumps(head) + b"\n", *rest]))
    (run,) = find_runs(tmp_path / "runs")
    return run


def offline(run_id: str, minutes: float, **other: Any) -> OfflineRun:
    """An offline run that began so many minutes after the first attempt."""
    known: dict[str, Any] = {"is_exact": True, "project": "proj", "display_name": "exp1", **other}
    folder = Path(f"wandb/offline-run-x-{run_id}-{minutes}")
    return OfflineRun(folder, run_id, True, BEGIN + timedelta(minutes=minutes), **known)


def ids(run: Run, *found: OfflineRun, run_id: str | None = None) -> dict[str, str]:
    return {attempt: link.run_id for attempt, link in match_runs(run, found, run_id).links.items()}


def test_by_name_project_and_time(writer: Any, tmp_path: Path) -> None:
    """Each attempt gets the run that began with it; runs of other names and projects are left alone."""
    run = recorded(writer, tmp_path, attempts=3)
    others = [offline("x", 1, display_name="exp2"), offline("y", 1, project="other"), offline("z", 1, is_exact=False)]

    found = ids(run, offline("a", 1), offline("b", 61), offline("c", 119.5), *others)

    assert found == {"attempt0": "a", "attempt1": "b", "attempt2": "c"}


@pytest.mark.parametrize("told", ["", "0001-01-01T00:00:00Z", "2026-03-01T11:00:00"])
def test_a_start_that_is_not_known(writer: Any, tmp_path: Path, told: str) -> None:
    """An attempt whose files do not say when it began fits no run, and the others keep theirs."""
    recorded(writer, tmp_path, attempts=2)
    first = next((tmp_path / "runs").rglob("*-100-*"))
    header, *rest = first.read_bytes().splitlines(keepends=True)
    first.write_bytes(b"".join([orjson.dumps(orjson.loads(header) | {"started_at": told}) + b"\n", *rest]))
    (run,) = find_runs(tmp_path / "runs")

    assert ids(run, offline("a", 1), offline("b", 61)) == {"attempt1": "b"}


def test_segments_of_one_run_are_one(writer: Any, tmp_path: Path) -> None:
    """Three folders with one id: one run, all its folders are to be synced, in order."""
    run = recorded(writer, tmp_path)
    segments = [offline("same", minutes) for minutes in (30, 1, 10)]
    matches = match_runs(run, segments)

    assert matches.links["attempt0"].run_id == "same"
    assert [found.started_at for found in matches.folders] == sorted(found.started_at for found in segments)
    assert (matches.links["attempt0"].project, matches.undecided, matches.unmatched) == ("proj", {}, {})


def test_nothing_is_guessed(writer: Any, tmp_path: Path) -> None:
    """Two that fit: neither, and a sentence that names both and the way out. None that fits: a sentence, too."""
    run = recorded(writer, tmp_path)
    two = match_runs(run, [offline("a", 1), offline("b", 2)])
    none = match_runs(run, [offline("a", -10)])

    assert (two.links, none.links) == ({}, {})
    assert "a, b" in two.undecided["attempt0"]
    assert "--run-id" in two.undecided["attempt0"]
    assert "none of the 1" in none.unmatched["attempt0"]
    alone = match_runs(run, [])
    assert (alone.links, alone.undecided, alone.unmatched) == ({}, {}, {})


def test_what_was_recorded_goes_first(writer: Any, tmp_path: Path) -> None:
    """WANDB_RUN_ID of the workers decides, whatever offline runs there are."""
    run = recorded(writer, tmp_path, wandb={"run_id": "env", "entity": "me", "project": "proj"})
    (link,) = match_runs(run, [offline("a", 1), offline("env", 500)]).links.values()

    assert (link.run_id, link.entity, link.project, len(link.folders)) == ("env", "me", "proj", 1)


def test_the_trainers_note(writer: Any, tmp_path: Path) -> None:
    """The plugin's note beside the span files decides for its attempt; foreign and broken notes do not."""
    run = recorded(writer, tmp_path, attempts=2)
    note = {"attempt": "attempt1", "run_id": "noted", "project_name": "me/proj", "experiment_name": "exp1"}
    (run.folder / ".wandb-attempt1-noted.json").write_text(json.dumps({**note, "project": "proj", "entity": "me"}))
    (run.folder / ".wandb-attempt0-x.json").write_text(json.dumps({**note, "attempt": "attempt0", "project_name": "o"}))
    (run.folder / ".wandb-attempt0-y.json").write_text("{")
    (run.folder / ".wandb-attempt0-z.json").write_text("[1]")

    assert ids(run, offline("a", 1), offline("b", 61)) == {"attempt0": "a", "attempt1": "noted"}
    assert match_runs(run, []).links["attempt1"].source == "the trainer's note"


def test_the_user_decides(writer: Any, tmp_path: Path) -> None:
    """--run-id is for all attempts."""
    run = recorded(writer, tmp_path, attempts=2, wandb={"run_id": "env"})
    assert ids(run, offline("a", 1), run_id="mine") == {"attempt0": "mine", "attempt1": "mine"}
