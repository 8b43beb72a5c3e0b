"""Finding and reading W&B's offline runs, whatever became of them."""

from __future__ import annotations

import os
import random
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from verl_trace.wandb_runs.extent import extent_of
from verl_trace.wandb_runs.log import read_log, read_whole
from verl_trace.wandb_runs.offline import find_offline_runs, read_offline_run


def test_a_finished_run(make_run: Any) -> None:
    """Id, project, display name and start are the run's; where to find it may be said in three ways."""
    folder = make_run("exp1", run_id="abc123")

    (run,) = find_offline_runs([folder.parent.parent, folder.parent, folder])

    assert (run.run_id, run.project, run.display_name, run.entity) == ("abc123", "proj", "exp1", "")
    assert (run.offline, run.is_exact, run.synced) == (True, True, False)
    assert abs(run.started_at - datetime.now(timezone.utc)) < timedelta(minutes=5)
    assert run.log.is_file()


def test_a_run_that_was_killed_at_once(make_run: Any) -> None:
    """Its log may hold nothing: the folder's name tells the id and about when."""
    run = read_offline_run(make_run("exp1", run_id="early", killed=0.1))

    assert run is not None
    assert (run.run_id, run.offline) == ("early", True)
    assert abs(run.started_at - datetime.now(timezone.utc)) < timedelta(minutes=5)


def test_damaged_logs_never_raise(make_run: Any, tmp_path: Path) -> None:
    """Cut or overwritten anywhere: the id stays, and a log that is whole up to the run's record tells the rest."""
    folder = make_run("exp1", run_id="abc123", steps=30)
    whole = (folder / "run-abc123.wandb").read_bytes()
    all_records = list(read_log(folder / "run-abc123.wandb"))
    chance = random.Random(3)
    copy = tmp_path / "copy" / folder.name
    shutil.copytree(folder, copy)
    names = set()
    for _ in range(60):
        data = bytearray(whole[: chance.randrange(len(whole))])
        if data and chance.random() < 0.5:
            data[chance.randrange(len(data))] ^= 0xFF
        (copy / "run-abc123.wandb").write_bytes(data)
        records = list(read_log(copy / "run-abc123.wandb"))
        assert all(record in all_records for record in records)
        run = read_offline_run(copy)
        assert run is not None
        assert run.run_id == "abc123"
        names.add(run.display_name)
    assert names == {"", "exp1"}
    (copy / "run-abc123.wandb").unlink()
    assert read_offline_run(copy) is not None


def test_long_records_go_over_blocks(make_run: Any) -> None:
    """A log of several blocks of 32 KiB is read whole."""
    folder = make_run("exp1", run_id="long", steps=2000)
    log = folder / "run-long.wandb"

    assert log.stat().st_size > 3 * (32 << 10)
    assert sum(b'"loss"' in record or b"loss" in record for record in read_log(log)) >= 2000


def test_how_far_a_log_can_be_used(make_run: Any, tmp_path: Path) -> None:
    """Cut or damaged anywhere: where the last whole record before that ends, so that nothing of it is lost."""
    found = read_offline_run(make_run("exp1", run_id="abc123", steps=300))
    assert found is not None
    whole, ends = found.log.read_bytes(), [record.end for record in read_whole(found.log)]
    extent = extent_of(found)
    assert (extent.size, extent.whole, extent.torn, extent.ended) == (len(whole), len(whole), False, True)
    assert len(whole) > 2 * (32 << 10)
    assert extent.run in ends[:5]

    chance = random.Random(7)
    for _ in range(40):
        at = chance.randrange(7, len(whole) - 1)
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        for data in (whole[:at], bytes(damaged)):
            found.log.write_bytes(data)
            extent = extent_of(found)
            # a damage in the padding at the end of a block hits no record
            assert extent.whole == max((end for end in ends if end <= at), default=0) or extent.whole == len(whole)
            assert extent.whole <= extent.size == len(data)
            assert extent.ended == (extent.whole == len(whole))
    for data, foreign in ((b"", False), (whole[:7], False), (b"{}", True), (b"\0" * 100, True)):
        found.log.write_bytes(data)
        assert (extent_of(found).run, extent_of(found).foreign) == (0, foreign)


def test_what_is_no_run_is_passed_over(tmp_path: Path) -> None:
    """Other folders, files, odd names and places that are not there."""
    for name in ("offline-run-20261301_000000-x", "offline-run-1-x", "run-20261129_205816-online", "latest-run"):
        (tmp_path / "wandb" / name).mkdir(parents=True)
    (tmp_path / "wandb" / "offline-run-20261129_205816-file").touch()
    (tmp_path / ".wandb" / "offline-run-20261129_205816-hidden").mkdir(parents=True)

    found = find_offline_runs([tmp_path, tmp_path / "missing"])

    assert [run.run_id for run in found] == ["hidden"]
    assert not found[0].is_exact


def test_a_log_that_is_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    """It is not opened: what the folder's name says is known, and that it cannot be read."""
    folder = tmp_path / "wandb" / "offline-run-20260301_120000-abc123"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "run-abc123.wandb")

    (run,) = find_offline_runs([tmp_path])

    assert (run.run_id, run.project) == ("abc123", "")
    with pytest.raises(OSError, match="is no regular file"):
        extent_of(run)
