"""The versions of wandb whose `sync` is used: 0.29 to 0.31 share few options."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from verl_trace.demo.server_env import environment_python
from verl_trace.wandb_runs.extent import extent_of
from verl_trace.wandb_runs.offline import read_offline_run
from verl_trace.wandb_runs.sync import make_known, sync

from .backend import Backend

# `wandb sync --help` of each version, as it printed it.
HELP = sorted((Path(__file__).parent / "sync_help").glob("*.txt"))
# A command that shows how it was called, and does nothing.
ECHO = (sys.executable, "-c", "import sys; print('called with', *sys.argv[1:])")
VERSIONS = ("0.29.0", "0.30.0", "0.31.0")


@pytest.mark.parametrize("text", HELP, ids=lambda path: path.stem)
def test_only_options_that_every_version_has(make_run: Any, text: Path) -> None:
    """Those of a plain sync, and of one that makes a run known."""
    found = read_offline_run(make_run("exp1", run_id="abc123"))
    assert found is not None
    outputs = [
        sync(found, entity="me", project="proj", command=ECHO).output,
        make_known(found, extent_of(found), entity="me", project="proj", command=ECHO).output,
    ]
    known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text.read_text().partition("\nOptions:\n")[2]))

    assert [path.stem for path in HELP] == list(VERSIONS)
    for output in outputs:
        used = set(re.findall(r"(?<= )--?[a-z-]+(?= )", output.partition("called with")[2]))
        assert used == {"-e", "-p", "--id"}
        assert used <= known


def test_a_folder_in_which_a_package_is_called_wandb(
    make_run: Any, backend: Backend, login: dict[str, str], tmp_path: Path
) -> None:
    """Offline runs lie in `wandb`, and a file there must not be taken for wandb itself."""
    found = read_offline_run(make_run("exp1", run_id="abc123"))
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    assert found is not None

    assert sync(found, environ=login).done


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_writes_and_syncs(
    trainer: Any, make_run: Any, backend: Backend, login: dict[str, str], version: str
) -> None:
    """Finished, going on, killed with a torn end, refused, in parts: written and synced by the same version."""
    python = str(environment_python((f"wandb=={version}",)))
    command = (python, "-m", "wandb")

    def run_in(folder: Path) -> Any:
        found = read_offline_run(folder)
        assert found is not None
        return found

    for part in range(3):
        done = sync(
            run_in(make_run("exp", run_id="parts", first=4 * part, python=python)), command=command, environ=login
        )
        assert done.done, done
    assert backend.losses("parts") == [1 / (step + 1) for step in range(12)]

    with trainer("exp", run_id="goes-on", steps=3000, python=python) as (folder, process):
        log = folder / "run-goes-on.wandb"
        deadline = time.monotonic() + 60
        while log.stat().st_size < 100_000 and time.monotonic() < deadline:
            time.sleep(0.05)
        known = make_known(run_in(folder), extent_of(run_in(folder)), command=command, environ=login)
        rows = backend.losses("goes-on")
        os.killpg(process.pid, signal.SIGKILL)
    os.truncate(log, log.stat().st_size - 3)
    torn = sync(run_in(folder), command=command, environ=login)

    assert (known.done, rows, torn.done) == (True, [], True), (known, torn)
    assert "killed" in torn.partial
    losses = backend.losses("goes-on")
    assert 100 < len(losses) <= 3000
    assert losses == [1 / (step + 1) for step in range(len(losses))]

    for mode in ("graphql-error", "no-rows", "forbidden"):
        backend.mode = mode
        refused = run_in(make_run("exp", run_id=mode, python=python))
        done = sync(refused, command=command, environ=login, patience=60)
        assert not done.done, mode
        assert "ERROR" in done.output or "Error" in done.output, done.output
        assert not refused.synced
