"""`verl-trace upload` beside W&B runs that were killed, resumed, refused, or go on: exit codes, words, links, rows."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from verl_trace.uploader.pipeline import upload
from verl_trace.uploader.result import UploadResult
from verl_trace.uploader.wandb_options import WandbOptions
from verl_trace.wandb_runs.offline import read_offline_run

from .backend import Backend
from .conftest import ENTITY


@pytest.fixture
def linked(calls: Any) -> Any:
    """`linked(project)`: W&B run -> how many calls lead to it."""

    def count(project: str) -> dict[str | None, int]:
        out: dict[str | None, int] = {}
        for row in calls(project):
            name = row["wb_run_id"] and row["wb_run_id"].rpartition("/")[2].rpartition(":")[2]
            out[name] = out.get(name, 0) + 1
        return out

    return count


@pytest.mark.parametrize("cut", [3, pytest.param(0, marks=pytest.mark.soak)])
def test_a_run_killed_while_it_writes(
    command: Any, backend: Backend, recorded: Any, trainer: Any, linked: Any, project: str, cut: int
) -> None:
    """All whole records of its log arrive, once, and the report says that it was killed; the calls are linked."""
    run = recorded(project)
    with trainer("exp1", run_id="killed", steps=3000, project=project) as (folder, process):
        log = folder / "run-killed.wandb"
        deadline = time.monotonic() + 60
        while log.stat().st_size < 300_000 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    # wherever the kill has hit it: a log that ends in the middle of a record
    os.truncate(log, log.stat().st_size - cut)
    first = command("upload", run, "--settle", "0")
    losses = backend.losses("killed")
    requests = len(backend.requests)
    second = command("upload", run, "--settle", "0")

    assert first[0] == second[0] == 0, first
    assert "it was killed" in first[1]
    assert "what is in its log has arrived" in first[1]
    assert 500 < len(losses) <= 3000
    assert losses == [1 / (step + 1) for step in range(len(losses))]
    assert "synced before" in second[1]
    assert backend.losses("killed") == losses
    assert "CreateRunFiles" not in backend.requests[requests:]
    assert linked(project) == {"killed": 4}


def test_a_run_that_goes_on(
    command: Any, backend: Backend, recorded: Any, trainer: Any, linked: Any, project: str
) -> None:
    """wandb would send its rows anew each time: the server gets the run, the calls are linked, the rows follow once."""
    run = recorded(project)
    with trainer("exp1", run_id="alive", project=project) as (folder, _):
        while not backend_knows(folder):
            time.sleep(0.05)
        during = [command("upload", run) for _ in range(2)]
        rows, name, config = backend.losses("alive"), backend.runs["alive"]["display_name"], backend.runs["alive"]
        lr = config["config"]["lr"]["value"]
    after = command("upload", run)

    assert [code for code, *_ in during] == [1, 1], during
    assert "still being written" in during[0][1]
    assert (rows, name, lr) == ([], "exp1", 0.5)
    assert (after[0], backend.losses("alive")) == (0, [1, 0.5, 1 / 3, 0.25]), after
    assert backend.runs["alive"]["exit"] == 0
    assert linked(project) == {"alive": 4}


def backend_knows(folder: Any) -> bool:
    """Whether the record of the run is in its log."""
    found = read_offline_run(folder)
    return found is not None and found.is_exact


def test_a_run_killed_before_anything_was_written(
    command: Any, backend: Backend, recorded: Any, make_run: Any, linked: Any, project: str
) -> None:
    """Its calls wait as long as it may go on; then they are sent without a link, counted."""
    run = recorded(project, run_id="early")
    log = make_run("exp1", run_id="early", project=project) / "run-early.wandb"
    os.truncate(log, 7)
    waiting = command("upload", run)
    sent = command("upload", run, "--settle", "0")

    assert waiting[0] == 1
    assert "waiting for their W&B run" in waiting[1]
    assert (sent[0], backend.runs, linked(project)) == (0, {}, {None: 4}), sent
    assert "killed before anything was written" in sent[1]
    assert "4 calls of attempt attempt0 without a link" in sent[1]


def test_three_segments_of_one_run(
    command: Any, backend: Backend, recorded: Any, make_run: Any, linked: Any, project: str
) -> None:
    """A job that was requeued twice with one WANDB_RUN_ID: one run with all rows, in order, each once."""
    run = recorded(project, run_id="same")
    for part in range(3):
        make_run("exp1", run_id="same", first=4 * part, project=project)
    results = [command("upload", run) for _ in range(2)]

    assert [code for code, *_ in results] == [0, 0], results
    assert results[0][1].count("same: synced (") == results[1][1].count("same: synced before (") == 3
    assert backend.losses("same") == [1 / (step + 1) for step in range(12)]
    assert linked(project) == {"same": 4}


def test_each_attempt_has_its_run_and_waits_for_it_alone(
    command: Any, backend: Backend, recorded: Any, make_run: Any, linked: Any, project: str
) -> None:
    """Three starts, three runs: each call leads to its own. One run that is refused holds back its own calls only."""
    for number in range(3):
        run = recorded(project, attempt=f"attempt{number}", run_id=f"run{number}")
        make_run("exp1", run_id=f"run{number}", project=project)
    backend.mode, backend.refused = "graphql-error", {"run1"}
    refused = command("upload", run)
    between = linked(project)
    backend.mode = "ok"
    later = command("upload", run)

    assert refused[0] == 1
    assert "run1: failed" in refused[1]
    assert "this project is read-only" in refused[1]
    assert "the calls of attempt attempt1 wait" in refused[1]
    assert "4 waiting for their W&B run" in refused[1]
    assert between == {"run0": 4, "run2": 4}
    assert (later[0], linked(project)) == (0, {"run0": 4, "run1": 4, "run2": 4}), later


def test_rows_that_are_refused(
    command: Any, backend: Backend, recorded: Any, make_run: Any, linked: Any, project: str
) -> None:
    """wandb marks such a run as synced: the mark is not believed, and the next upload sends them."""
    run = recorded(project)
    folder = make_run("exp1", run_id="abc123", project=project)
    backend.mode = "no-rows"
    refused = command("upload", run)
    marked = (folder / "run-abc123.wandb.synced").exists()
    backend.mode = "ok"
    later = command("upload", run)

    assert (refused[0], marked) == (1, False)
    assert "Fatal error while uploading data" in refused[1]
    assert (later[0], len(backend.losses("abc123")), linked(project)) == (0, 4, {"abc123": 4})


def test_a_wrong_key(command: Any, backend: Backend, recorded: Any, make_run: Any, linked: Any, project: str) -> None:
    """Exit 2 and one line before anything is sent, which names no more of the key than its end."""
    run = recorded(project)
    make_run("exp1", run_id="abc123", project=project)
    backend.key = "another" * 6
    code, out, err = command("upload", run)

    assert (code, out, backend.runs, linked(project)) == (2, "", {}, {})
    assert "the API key ending in ocal: unauthorized" in err
    assert "local" * 8 not in err
    assert len(err.strip().splitlines()) <= 2


def test_what_wandb_says_holds_no_key(
    command: Any, backend: Backend, recorded: Any, make_run: Any, linked: Any, project: str
) -> None:
    """A server that repeats the key in its refusal: the words are shown, the key is not."""
    run = recorded(project)
    make_run("exp1", run_id="abc123", project=project)
    backend.mode = "graphql-error"
    code, out, err = command("upload", run)
    alone = command("upload", run, "--no-wandb")

    assert code == 1
    assert "this project is read-only for ***" in out
    assert "local" * 8 not in out + err
    assert (alone[0], linked(project)) == (0, {None: 4}), alone


def test_a_server_that_never_takes_the_run(
    backend: Backend, recorded: Any, make_run: Any, both: Any, linked: Any, project: str
) -> None:
    """wandb would try for ever: the patience ends it; nothing is sent, and what wandb said is in the report."""
    run = recorded(project)
    make_run("exp1", run_id="abc123", project=project)
    backend.mode = "broken"
    began = time.monotonic()
    stopped = upload(run, wandb=WandbOptions(patience=4))

    assert time.monotonic() - began < 30
    (found,) = stopped.runs[0].wandb
    assert found["reason"] == "wandb sync did not end within 4 s"
    assert "Syncing 1 run(s)" in found["output"]
    assert (stopped.sent, stopped.waiting, linked(project)) == (0, 4, {})


def test_a_server_that_is_down(
    command: Any, recorded: Any, make_run: Any, linked: Any, project: str, free_port: int, monkeypatch: Any
) -> None:
    """Exit 2, one line, at once."""
    run = recorded(project)
    folder = make_run("exp1", run_id="abc123", project=project)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port}")
    began = time.monotonic()
    code, out, err = command("upload", run)

    assert (code, out, linked(project)) == (2, "", {})
    assert f"cannot reach http://127.0.0.1:{free_port}" in err
    assert time.monotonic() - began < 60
    assert not (folder / "run-abc123.wandb.synced").exists()


def test_logs_that_cannot_be_read(
    command: Any, backend: Backend, recorded: Any, make_run: Any, linked: Any, project: str
) -> None:
    """Garbage, and what is no file: named, their calls wait; the others go."""
    for number in range(3):
        run = recorded(project, attempt=f"attempt{number}", run_id=f"run{number}")
        log = make_run("exp1", run_id=f"run{number}", project=project) / f"run-run{number}.wandb"
        if number:
            log.unlink()
            log.write_text("hello") if number == 1 else log.mkdir()
    code, out, _ = command("upload", run)

    assert (code, set(backend.runs), linked(project)) == (1, {"run0"}, {"run0": 4}), out
    assert "run-run1.wandb is no log of W&B's" in out
    assert "its log cannot be read: Is a directory" in out
    assert "8 waiting for their W&B run" in out


def test_a_training_that_is_followed(
    backend: Backend, recorded: Any, trainer: Any, both: Any, linked: Any, project: str
) -> None:
    """--follow: the run is made known by the first look, its rows come with the last."""
    run = recorded(project)
    stop = threading.Event()
    looks: list[list[float]] = []
    with trainer("exp1", run_id="alive", project=project) as (folder, process):
        while not backend_knows(folder):
            time.sleep(0.05)

        def progress(result: UploadResult) -> None:
            if result.sent == 4 and not looks:
                looks.append(backend.losses("alive"))
                process.communicate(timeout=60)

        result = upload(run, follow=0.2, stop=stop, progress=progress)

    assert looks == [[]]
    assert result.sent == 4
    assert [found["state"] for found in result.runs[0].wandb] == ["synced"]
    assert (backend.losses("alive"), linked(project)) == ([1, 0.5, 1 / 3, 0.25], {"alive": 4})


def test_two_runs_that_fit(
    command: Any, backend: Backend, recorded: Any, make_run: Any, linked: Any, project: str
) -> None:
    """A link is for good, so the calls wait until the user has said which: --run-id."""
    run = recorded(project)
    for run_id in ("one", "two"):
        make_run("exp1", run_id=run_id, project=project)
    asked = command("upload", run)
    said = command("upload", run, "--run-id", "two")

    assert asked[0] == 1
    assert "more than one W&B run fits: one, two; --run-id says which" in asked[1]
    assert (said[0], set(backend.runs), linked(project)) == (0, {"two"}, {"two": 4})


def test_the_step_of_a_call_is_the_training_step(
    command: Any, backend: Backend, recorded: Any, make_run: Any, calls: Any, project: str
) -> None:
    """Never verl's -1."""
    run = recorded(project)
    make_run("exp1", run_id="abc123", project=project)

    assert command("upload", run)[0] == 0
    steps = {(row["attributes"]["step"], row["wb_run_step"]) for row in calls(project)}
    assert steps == {(3, 3), (-1, None)}
    assert len(calls(project, wb_run_ids=[f"{ENTITY}/{project}/abc123"])) == 4
