"""`wandb sync` as it really ends, through the real command."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from verl_trace.wandb_runs.offline import OfflineRun, read_offline_run
from verl_trace.wandb_runs.sync import sync

from .backend import Backend
from .conftest import KEY


def run_in(folder: Path) -> OfflineRun:
    """The run of a folder."""
    found = read_offline_run(folder)
    assert found is not None
    return found


def test_a_run_arrives_once(make_run: Any, backend: Backend, login: dict[str, str]) -> None:
    """Config, history and display name arrive under its id; the marker keeps it from being sent again."""
    folder = make_run("exp1", run_id="abc123")

    first = sync(run_in(folder), environ=login)
    requests = len(backend.requests)
    second = sync(run_in(folder), environ=login)

    assert (first.done, second.done, second.reason) == (True, True, "was synced before"), first
    assert run_in(folder).synced
    assert len(backend.requests) == requests
    arrived = backend.runs["abc123"]
    assert (arrived["project"], arrived["display_name"], arrived["exit"]) == ("proj", "exp1", 0)
    assert [row["loss"] for row in arrived["history"].values() if "loss" in row] == [1.0, 0.5, 1 / 3, 0.25]
    assert arrived["config"]["lr"]["value"] == 0.5
    assert backend.keys == {KEY}


def test_into_another_project(make_run: Any, backend: Backend, login: dict[str, str]) -> None:
    """Entity and project may be given."""
    done = sync(run_in(make_run("exp1", run_id="abc123")), entity="me", project="other", environ=login)

    assert done.done, done
    assert backend.runs["abc123"]["project"] == "other"


@pytest.mark.parametrize("mode", ["unauthorized", "forbidden", "graphql-error"])
def test_a_refusal_is_no_success(make_run: Any, backend: Backend, login: dict[str, str], mode: str) -> None:
    """wandb's exit code is 0; ours is the marker that is missing. What wandb said is kept, the key is not in it."""
    backend.mode = mode
    folder = make_run("exp1", run_id="abc123")

    refused = sync(run_in(folder), environ=login, patience=60)

    assert not refused.done
    assert refused.output, refused
    assert KEY not in refused.output
    assert not run_in(folder).synced


def test_a_server_that_is_not_there(make_run: Any, login: dict[str, str]) -> None:
    """wandb would try for ever: it is ended, with all its helpers, when the patience is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    folder = make_run("exp1", run_id="abc123")
    began = time.monotonic()

    gone = sync(run_in(folder), environ={**login, "WANDB_BASE_URL": f"http://127.0.0.1:{port}"}, patience=8)

    assert not gone.done
    assert time.monotonic() - began < 30
    assert not run_in(folder).synced


def test_a_killed_run_sends_what_it_can(make_run: Any, backend: Backend, login: dict[str, str]) -> None:
    """Killed in the middle: what is on the disk arrives, and the report says whether wandb found it whole."""
    folder = make_run("exp1", run_id="killed", steps=3000, killed=20)

    result = sync(run_in(folder), environ=login)

    rows = [row for row in backend.runs["killed"]["history"].values() if "loss" in row]
    assert 0 < len(rows) <= 3000
    assert result.done == run_in(folder).synced
    assert result.done or result.output


def test_three_segments_are_one_run(make_run: Any, backend: Backend, login: dict[str, str]) -> None:
    """A run that was resumed twice offline: three folders, one run."""
    folders = [make_run("exp1", run_id="same", steps=4 * part) for part in (1, 2, 3)]

    assert all(sync(run_in(folder), environ=login).done for folder in folders)
    assert set(backend.runs) == {"same"}
