"""A disk that refuses a read and gives it later: what may lie there is not stored for ever as what was seen of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.demo.server_env import Server
from verl_trace.recorder.sealing import seal
from verl_trace.uploader import upload
from verl_trace.uploader.result import WAITS_FOR_SEGMENT, UploadResult

CALLS, ROLLOUTS = 4, 10


@pytest.fixture
def runs(writer: Callable[..., Any], project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process that was not killed, and has one file: trajectories side by side, in records of 30 kB."""
    monkeypatch.setenv("VERL_TRACE_CACHE", str(tmp_path / "cache"))
    made, chance = writer(tmp_path / "runs", project), random.Random(1)
    heads = [made.start("A.run", step=number) for number in range(ROLLOUTS)]
    for head in heads * (CALLS - 1):
        made.call("B.generate", {"token_ids": chance.choices(range(150_000), k=5000)}, parent=head)
    for head in heads:
        made.end(head)
    made.close()
    made.age(3600)
    seal(made.path)
    return tmp_path / "runs"


def test_what_may_lie_in_it_waits(runs: Path, disk: Callable[[int], None]) -> None:
    """Whichever read is refused: no call counts as interrupted, and the file is named."""
    refused = 0
    for number in range(1, 40):
        disk(number)
        result = upload(runs, dry_run=True)
        (report,) = result.runs
        assert (report.interrupted, report.orphans) == (0, 0)
        if result.unreadable:
            refused += 1
            assert report.to_send % CALLS == 0
            assert report.recorded == report.to_send + report.skipped[WAITS_FOR_SEGMENT]
            if report.skipped[WAITS_FOR_SEGMENT]:
                (note,) = [note for note in report.notes if note.startswith("missing or damaged: ")]
                assert Path(result.unreadable[0]).name in note
    disk(0)

    assert refused >= 5
    assert upload(runs, dry_run=True).runs[0].to_send == CALLS * ROLLOUTS


def test_the_next_upload_sends_it(
    wandb_login: Server, runs: Path, project: str, stored: Callable[[str], Any], disk: Callable[[int], None]
) -> None:
    """Whole, as if nothing had been."""

    def refused(number: int, *, dry_run: bool) -> UploadResult:
        disk(number)
        return upload(runs, dry_run=dry_run)

    in_the_middle = next(number for number in range(1, 40) if refused(number, dry_run=True).waiting)
    first = refused(in_the_middle, dry_run=False)
    disk(0)
    second = upload(runs)
    rows = stored(project)

    assert first.unreadable
    assert first.waiting > 0
    assert (second.unreadable, second.waiting, second.failed) == ([], 0, 0)
    assert len(rows) == first.sent + second.sent == CALLS * ROLLOUTS
    assert not any(row["exception"] for row in rows.values())
