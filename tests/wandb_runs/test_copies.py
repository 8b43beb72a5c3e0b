"""Folders and ids of W&B runs that must not be taken at their word."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from verl_trace.wandb_runs.copies import copies_among
from verl_trace.wandb_runs.offline import OfflineRun, is_run_id, read_offline_run

from .backend import Backend

NAME = "offline-run-20261129_205816-abc"


def test_a_folder_in_two_places(
    command: Any, backend: Backend, recorded: Any, make_run: Any, project: str, tmp_path: Path
) -> None:
    """Rows are sent once, also by the next upload, which finds a copy without a mark."""
    run = recorded(project)
    folder = make_run("exp1", run_id="abc", project=project)
    shutil.copytree(folder.parent, tmp_path / "copy" / "wandb")
    words = ("upload", run, "--wandb-dir", tmp_path / "copy", "--settle", "0")
    first, second = command(*words), command(*words)

    assert (first[0], second[0]) == (0, 0), first
    assert len(backend.losses("abc")) == 4
    assert first[1].count("abc: synced (") == first[1].count("abc: a copy (") == 1
    assert second[1].count("abc: synced before (") == second[1].count("abc: a copy (") == 1


def test_which_of_them_counts(tmp_path: Path) -> None:
    """The synced one, else the longest; logs of which none begins the other are not copies, whatever their names."""

    def made(place: str, log: bytes, *, synced: bool = False) -> OfflineRun:
        folder = tmp_path / place / NAME
        folder.mkdir(parents=True)
        (folder / "run-abc.wandb").write_bytes(log)
        if synced:
            (folder / "run-abc.wandb.synced").touch()
        run = read_offline_run(folder)
        assert run is not None
        return run

    short, long, other = made("a", b":W&B12"), made("b", b":W&B123"), made("c", b":W&B9")
    synced = made("d", b":W&B1", synced=True)
    assert copies_among([short, long, other]) == {short.folder: long}
    assert copies_among([short, long, other, synced]) == {short.folder: synced, long.folder: synced}


@pytest.mark.parametrize("text", ["a", "a b", "e5wl1oka", "job-1_2.x", "é"])
def test_ids(text: str) -> None:
    """What W&B takes."""
    assert is_run_id(text)


@pytest.mark.parametrize("text", ["", " a", "a ", "a/b", "../a", "a\\b", "a#", "a?b", "a%b", "a:b", "a\nb", "a\x1b[1m"])
def test_no_ids(command: Any, recorded: Any, project: str, calls: Any, text: str) -> None:
    """Refused from the user before anything is sent; passed over where it was recorded."""
    assert not is_run_id(text)
    run = recorded(project, run_id=text)
    note = {"experiment_name": "exp1", "project_name": project, "attempt": "attempt0", "run_id": text}
    (run / ".wandb-attempt0-x.json").write_bytes(orjson.dumps(note))
    refused = command("upload", run, "--run-id", text, "--settle", "0")

    assert refused[0] == 2
    assert "is no id of a W&B run" in refused[2]
    if text == "a/b":
        assert command("upload", run, "--settle", "0")[0] == 0
        assert {row["wb_run_id"] for row in calls(project)} == {None}
