"""`wandb sync` as it really ends, through the real command."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from verl_trace.wandb_runs.extent import extent_of
from verl_trace.wandb_runs.offline import OfflineRun, read_offline_run
from verl_trace.wandb_runs.sync import make_known, scrubbed, sync

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


def test_a_torn_run_is_sent_once_with_its_files(make_run: Any, backend: Backend, login: dict[str, str]) -> None:
    """All whole records and the files beside the log arrive; the folder has its mark, and nothing else was changed."""
    folder = make_run("exp1", run_id="torn", steps=500, html=True)
    log = folder / "run-torn.wandb"
    os.truncate(log, log.stat().st_size * 2 // 3)
    before = {path.name for path in folder.iterdir()}

    first = sync(run_in(folder), environ=login)
    rows = backend.losses("torn")
    requests = len(backend.requests)
    second = sync(run_in(folder), environ=login)

    assert (first.done, second.reason) == (True, "was synced before"), first
    assert "the last" in first.partial
    assert 100 < len(rows) < 500
    assert rows == [1 / (step + 1) for step in range(len(rows))]
    assert any("media/html" in name for name in backend.runs["torn"]["files"])
    assert {path.name for path in folder.iterdir()} == before | {"run-torn.wandb.synced"}
    assert len(backend.requests) == requests


def test_a_run_is_made_known_without_its_rows(make_run: Any, backend: Backend, login: dict[str, str]) -> None:
    """Name and config arrive; the folder is as before, and a sync afterwards sends each row once."""
    folder = make_run("exp1", run_id="abc123")
    before = {path.name for path in folder.iterdir()}

    known = make_known(run_in(folder), extent_of(run_in(folder)), environ=login)
    rows, config = backend.losses("abc123"), backend.runs["abc123"]["config"]["lr"]["value"]
    kept = {path.name for path in folder.iterdir()}
    later = sync(run_in(folder), environ=login)

    assert (known.done, later.done) == (True, True), (known, later)
    assert (rows, config, kept) == ([], 0.5, before)
    assert backend.losses("abc123") == [1, 0.5, 1 / 3, 0.25]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("key 0123456789abcdef0123456789abcdef01234567 is wrong", "key *** is wrong"),
        ("Authorization: Basic YXBpOmtleQ==", "Authorization: Basic ***"),
        ("https://me:secret@host/x and local-0123456789abcdef0123456789", "https://***@host/x and ***"),
        ("wandb_v1_abcDEF0123456789abcDEF0123456789_x, mine", "***, mine"),
        ("run 0123abcd of https://host/me/proj", "run 0123abcd of https://host/me/proj"),
    ],
)
def test_no_secrets_are_shown(said: str, shown: str) -> None:
    """Keys of every form, passwords in URLs, headers; and the user's own key, whatever it looks like."""
    assert scrubbed(said, {}) == shown
    assert scrubbed("my-odd-key is wrong", {"WANDB_API_KEY": "my-odd-key"}) == "*** is wrong"
