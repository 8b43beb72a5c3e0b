"""The whole way on one machine, as steps: record → start a Weave server → upload → read back.

plan = make_plan(Path("runs"))
recorded = record(plan)
stored = replay(plan, recorded)
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..schemas.errors import VerlTraceError
from ..schemas.files import parse_segment_name, run_folder_name
from ..schemas.wording import counted
from ..uploader.result import UploadResult
from .read_back import ServerCall, read_back
from .rollout import Plan, work, work_until_killed
from .server_env import start_server

__all__ = ["Recorded", "Stored", "make_plan", "record", "replay"]

PROJECT = "demo/rollouts"
# A worker needs a second or two; more than a minute means that it will never come.
_PATIENCE = 120.0


class Recorded(NamedTuple):
    """What the workers left on disk."""

    folder: Path
    files: list[Path]
    bytes: int
    killed_pid: int


class Stored(NamedTuple):
    """What the uploader reports, and what the server holds afterwards."""

    url: str
    result: UploadResult
    calls: list[ServerCall]


def make_plan(folder: Path) -> Plan:
    """The demo's rollout, recorded below `folder` in a run of its own: other demos stay what they were."""
    experiment = time.strftime("demo-%Y%m%d-%H%M%S", time.gmtime())
    return Plan(folder=folder.absolute(), project=PROJECT, experiment=experiment, attempt=os.urandom(8).hex())


def record(plan: Plan) -> Recorded:
    """Run the workers to their end, and one until SIGKILL ends it in the middle of a tool call.

    Raises:
        VerlTraceError: a worker failed.
    """
    # spawn: as Ray does, every worker is a fresh interpreter that imports and starts recording by itself
    context = multiprocessing.get_context("spawn")
    stuck = context.Event()
    workers = [context.Process(target=work, args=(plan, number)) for number in range(plan.workers)]
    victim = context.Process(target=work_until_killed, args=(plan, stuck))
    everyone = [*workers, victim]
    try:
        for process in everyone:
            process.start()
        if not stuck.wait(_PATIENCE):
            raise VerlTraceError("the worker to be killed never reached its tool call", hint="see its output above")
        os.kill(_pid(victim), signal.SIGKILL)
        for process in everyone:
            process.join(_PATIENCE)
    finally:
        for process in everyone:
            if process.is_alive():
                process.kill()
    failed = [process.exitcode for process in workers if process.exitcode != 0]
    if failed:
        told = counted(len(failed), "demo worker")
        raise VerlTraceError(f"{told} failed, exit code {failed[0]}", hint="see their output above")
    folder = plan.folder / run_folder_name(plan.experiment)
    files = sorted(path for path in folder.iterdir() if parse_segment_name(path) is not None)
    return Recorded(folder, files, sum(path.stat().st_size for path in files), _pid(victim))


def replay(plan: Plan, recorded: Recorded, say: Callable[[str], None]) -> Stored:
    """Upload the recorded run to a Weave server that lives as long as this call, and read it back.

    Raises:
        VerlTraceError: the server cannot be installed or started, or the upload cannot start.
    """
    from ..uploader.network import environment
    from ..uploader.pipeline import upload

    with (
        tempfile.TemporaryDirectory(prefix="verl-trace-demo-") as scratch,
        start_server(Path(scratch) / "weave.db", progress=say) as server,
        # W&B's libraries and our uploader take their target from it
        environment(server.client_environment()),
    ):
        say(f"W&B's Weave trace server is up at {server.url}")
        # what is remembered of this server is of no use to anybody later
        result = upload(recorded.folder, state_dir=Path(scratch) / "state")
        return Stored(server.url, result, read_back(server, plan.project))


def _pid(process: multiprocessing.process.BaseProcess) -> int:
    if process.pid is None:
        raise VerlTraceError("a demo worker was never started")
    return process.pid
