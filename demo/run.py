"""The whole way on one machine, as steps: record → start a Weave server → upload → read back."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import NamedTuple

from ..schemas.errors import VerlTraceError
from ..schemas.files import parse_segment_name, run_folder_name
from .rollout import Plan, work, work_until_killed

__all__ = ["Recorded", "make_plan", "record"]

PROJECT = "demo/rollouts"
EXPERIMENT = "calculator"
# A worker needs a second or two; more than a minute means that it will never come.
_PATIENCE = 120.0


class Recorded(NamedTuple):
    """What the workers left on disk."""

    folder: Path
    files: list[Path]
    bytes: int
    killed_pid: int


def make_plan(folder: Path) -> Plan:
    """The demo's rollout, to be recorded below `folder`."""
    return Plan(folder=folder, project=PROJECT, experiment=EXPERIMENT, attempt=os.urandom(8).hex())


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
        raise VerlTraceError(f"{len(failed)} demo workers failed, exit code {failed[0]}", hint="see their output above")
    folder = plan.folder / run_folder_name(plan.experiment)
    files = sorted(path for path in folder.iterdir() if parse_segment_name(path) is not None)
    return Recorded(folder, files, sum(path.stat().st_size for path in files), _pid(victim))


def _pid(process: multiprocessing.process.BaseProcess) -> int:
    if process.pid is None:
        raise VerlTraceError("a demo worker was never started")
    return process.pid
