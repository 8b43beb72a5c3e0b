"""`wandb sync`, run as a command, and what it really did.

It exits with 0 on a wrong key, on a refusal and on errors of the server, and may retry for ever: only the marker that
it writes beside the log says that a run has arrived. `--id`, `-p` and `-e` are what wandb 0.29 to 0.31 have in common.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .offline import OfflineRun

__all__ = ["Synced", "sync"]

# The last lines of wandb's output that are kept for the report.
_TOLD_LINES = 20
_GRACE = 5.0


@dataclass(frozen=True)
class Synced:
    """What became of one folder. `output`: the end of what wandb said, where it did not work."""

    run: OfflineRun
    done: bool
    reason: str = ""
    output: str = ""


def sync(
    run: OfflineRun,
    *,
    entity: str | None = None,
    project: str | None = None,
    patience: float = 600.0,
    command: Sequence[str] = (sys.executable, "-m", "wandb"),
    environ: Mapping[str, str] | None = None,
) -> Synced:
    """Upload one offline run, within `patience` seconds. One that has its marker is not sent again."""
    if run.synced:
        return Synced(run, True, "was synced before")
    target = [*(["-e", entity] if entity else []), *(["-p", project] if project else []), "--id", run.run_id]
    words = [*command, "sync", *target, str(run.folder)]
    # of its own session: its helper processes must end with it
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(os.environ if environ is None else environ),
        start_new_session=True,
    )
    reason = ""
    try:
        output, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        output, reason = _stop(process), f"wandb sync did not end within {patience:.0f} s"
    except BaseException:
        _stop(process)
        raise
    if run.synced:
        return Synced(run, True)
    told = "\n".join(line for line in output.splitlines()[-_TOLD_LINES:] if line.strip())
    return Synced(run, False, reason or f"wandb sync (exit code {process.returncode}) left no mark of success", told)


def _stop(process: subprocess.Popen[str]) -> str:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            return process.communicate(timeout=_GRACE)[0] or ""
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            break
    return ""
