"""`wandb sync`, run as a command, and what it really did.

It exits with 0 on a wrong key, on a refusal and on errors of the server, and may retry for ever: only the marker that
it writes beside the log says that a run has arrived, and not even that when it has said ERROR as well. `--id`, `-p` and
`-e` are what wandb 0.29 to 0.31 have in common.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..schemas.secrets import hidden
from ..schemas.wording import counted
from .extent import Extent, cut_copy, extent_of
from .offline import OfflineRun

__all__ = ["Synced", "make_known", "scrubbed", "sync"]

# The last lines of wandb's output that are kept for the report.
_TOLD_LINES = 20
_GRACE = 5.0
# `python -m wandb` would take a package of that name in the current folder, where offline runs lie as well.
_PROGRAM = "import runpy, sys; sys.path[:] = [p for p in sys.path if p]; runpy.run_module('wandb', run_name='__main__')"
_COMMAND = (sys.executable, "-c", _PROGRAM)
_ERROR = re.compile(r"^(?:wandb: )?ERROR (.*)")
_SECRETS = re.compile(r"\b[0-9a-f]{40,}\b|\b(?:local-|wandb_v\d+_)[A-Za-z0-9_-]{20,}|(?<=Basic )\S+|(?<=Bearer )\S+")


@dataclass(frozen=True)
class Synced:
    """What became of one folder. `output`: the end of what wandb said, where it did not work. `partial`: why not all of
    the run is there although all that its log holds has arrived."""

    run: OfflineRun
    done: bool
    reason: str = ""
    output: str = ""
    partial: str = ""


def sync(
    run: OfflineRun,
    *,
    entity: str | None = None,
    project: str | None = None,
    patience: float = 600.0,
    command: Sequence[str] = _COMMAND,
    environ: Mapping[str, str] | None = None,
    extent: Extent | None = None,
) -> Synced:
    """Upload one offline run that is no longer written, within `patience` seconds. One that has its marker is not sent
    again."""
    if run.synced:
        return Synced(run, True, "was synced before")
    if not os.access(run.folder, os.W_OK):
        return Synced(run, False, "its folder cannot be written, and wandb marks there what it has sent: copy it")
    extent = extent or extent_of(run)
    if not extent.run:
        return Synced(run, False, "there is nothing in its log")
    call = _Call(entity, project, patience, command, environ)
    if not extent.torn:
        done = call(run)
        return replace(done, partial="" if extent.ended or not done.done else "it was killed")
    # wandb would send what it can read, without a mark, and the same rows again the next time
    with cut_copy(run, extent.whole, files=True) as copy:
        done = call(copy)
    if done.done:
        run.marker.touch()
    end = counted(extent.size - extent.whole, "byte is", "bytes are")
    lost = f"it was killed, or damaged: of its log, the last {end} of no use"
    return replace(done, run=run, partial=lost if done.done else "")


def make_known(
    run: OfflineRun,
    extent: Extent,
    *,
    entity: str | None = None,
    project: str | None = None,
    patience: float = 600.0,
    command: Sequence[str] = _COMMAND,
    environ: Mapping[str, str] | None = None,
) -> Synced:
    """Make a run on the server, with name and config, of which no row is sent yet because it is still being written."""
    with cut_copy(run, extent.run, files=False) as copy:
        return replace(_Call(entity, project, patience, command, environ)(copy), run=run)


@dataclass(frozen=True)
class _Call:
    entity: str | None
    project: str | None
    patience: float
    command: Sequence[str]
    environ: Mapping[str, str] | None

    def __call__(self, run: OfflineRun) -> Synced:
        """Run wandb once."""
        environ = dict(os.environ if self.environ is None else self.environ)
        entity = ["-e", self.entity] if self.entity else []
        project = ["-p", self.project] if self.project else []
        words = [*self.command, "sync", *entity, *project, "--id", run.run_id, str(run.folder.absolute())]
        # of its own session: its helper processes must end with it
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environ,
            start_new_session=True,
        )
        reason = ""
        try:
            output, _ = process.communicate(timeout=self.patience)
        except subprocess.TimeoutExpired:
            output, reason = _stop(process), f"wandb sync did not end within {self.patience:.0f} s"
        except BaseException:
            _stop(process)
            raise
        output = scrubbed(output, environ)
        error = next((match[1] for line in output.splitlines() if (match := _ERROR.match(line))), "")
        if run.synced and not error:
            return Synced(run, True)
        if run.synced:
            # it marks a run even when the server has refused its rows; then the next upload would not try again
            with contextlib.suppress(OSError):
                run.marker.unlink()
        if error and not reason:
            reason = f"wandb sync: {error}"
        told = "\n".join(line for line in output.splitlines()[-_TOLD_LINES:] if line.strip())
        return Synced(
            run, False, reason or f"wandb sync (exit code {process.returncode}) left no mark of success", told
        )


def scrubbed(output: str, environ: Mapping[str, str]) -> str:
    """wandb's words without keys, passwords in URLs and headers of authorization."""
    key = environ.get("WANDB_API_KEY")
    if key:
        output = output.replace(key, "***")
    return hidden(_SECRETS.sub("***", output))


def _stop(process: subprocess.Popen[str]) -> str:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            return process.communicate(timeout=_GRACE)[0] or ""
        except subprocess.TimeoutExpired:
            continue
    return ""
