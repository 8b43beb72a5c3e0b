"""`verl-trace collect`: from the node's own disk to a shared folder."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from ..reader.durations import parse_duration
from ..schemas.errors import BadFilter, BadTarget
from ..schemas.wording import counted
from ..viewer.text import human_bytes, human_seconds, visible
from .printing import print_json
from .sizes import parse_size

if TYPE_CHECKING:
    from ..collector import Pace, Report

__all__ = ["collect"]

# Slurm kills 30 seconds after SIGTERM unless told otherwise.
_DEADLINE = "25s"
_FAILURES_TOLD = 10
# Slurm, a keyboard, a terminal that closes: each asks for the last pass.
_ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# The system call that `ionice` makes, which minimal images do not have; threads that are started later inherit it.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_CLASS_IDLE = 3


def collect(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder of runs on this node, or one run.")],
    target: Annotated[Path, typer.Argument(metavar="DEST", help="Folder of runs on shared storage.")],
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Make a pass so often (60s) until SIGTERM, then a last one.")
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="End after so long; newest and smallest first. The last pass of --every: 25s."
        ),
    ] = None,
    move: Annotated[
        bool, typer.Option("--move", help="Remove here what has arrived and cannot change any more.")
    ] = False,
    bwlimit: Annotated[str | None, typer.Option(metavar="SIZE", help="At most so many bytes a second: 50MB.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each report as one JSON object a line.")] = False,
) -> None:
    """Bring recorded runs from node-local disk to shared storage, while they are written or afterwards.

    Sealed segments are copied under a temporary name, synced, read back, compared and renamed. Of open ones the whole
    lines so far are copied, so that a lost node costs one interval; the sealed file replaces the copy later. Safe to
    repeat, to interrupt, and to run on all nodes at once: srun --overlap --ntasks-per-node=1 verl-trace collect …

    Exit codes: 0 all is there; 1 something is left or failed; 2 it could not start.

    Example: verl-trace collect /mnt/local/verl-trace /shared/runs --every 60s
    """
    _step_back()
    limit = None if bwlimit is None else parse_size(bwlimit, "--bwlimit")
    seconds = None if deadline is None else parse_duration(deadline, "--deadline")
    try:
        if every is None:
            report = _once(source, target, move, limit, seconds)
            _tell(report, as_json)
        else:
            last = seconds if seconds is not None else parse_duration(_DEADLINE, "--deadline")
            report = _Sidecar(source, target, move, limit, last, as_json).run(_interval(every))
    except OSError as error:
        raise BadTarget(
            f"{error.filename or target}: {error.strerror}",
            hint="SRC is a folder of runs, or one run; DEST a folder that can be written",
        ) from error
    raise typer.Exit(1 if report.left or report.failures else 0)


def _once(source: Path, target: Path, move: bool, limit: int | None, deadline: float | None) -> Report:
    from ..collector import Pace
    from ..collector import collect as one_pass

    return one_pass(source, target, move=move, pace=Pace(limit, _until(deadline)))


def _interval(text: str) -> float:
    seconds = parse_duration(text, "--every")
    if not seconds:
        # pass after pass without a rest would take a whole core from the training
        raise BadFilter(f"--every {text!r} leaves no time between passes", hint="e.g. --every 60s")
    return seconds


def _until(deadline: float | None) -> float | None:
    return None if deadline is None else time.monotonic() + deadline


class _Sidecar:
    """Passes until a signal, then a last one within the deadline."""

    def __init__(
        self, source: Path, target: Path, move: bool, limit: int | None, deadline: float, as_json: bool
    ) -> None:
        self._source, self._target, self._move, self._as_json = source, target, move, as_json
        self._limit, self._deadline = limit, deadline
        self._ending = False
        # by this a signal ends a wait; a lock could be held by whom the signal interrupts
        self._wakes, self._wake = os.pipe()
        self._pace: Pace | None = None
        # before what is imported later: a job may be over at once
        for number in _ENDINGS:
            # `nohup` has it ignored
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: self._end())

    def run(self, every: float) -> Report:
        from ..collector import Pace, Report

        # a destination that cannot be is told at once; one that goes away later may come back
        self._target.mkdir(parents=True, exist_ok=True)
        if self._source.exists() and self._source.samefile(self._target):
            raise OSError(errno.EINVAL, "is source and destination at once", str(self._source))
        total = Report()
        waits = "" if self._source.is_dir() else " (not there yet)"
        text = f"collecting {self._source}{waits} to {self._target}, a pass every {human_seconds(every)};"
        # a log that is closed ends no collecting
        with contextlib.suppress(OSError):
            typer.echo(f"verl-trace: {visible(text)} SIGTERM or Ctrl-C makes the last one", err=True)
        while not self._ending:
            began = time.monotonic()
            self._pace = Pace(self._limit)
            if not self._ending and self._source.is_dir():
                # before the first record there is no folder
                self._told(self._pass(self._pace, self._move), total)
            select.select([self._wakes], [], [], max(0.0, every - (time.monotonic() - began)))
        # no limit any more: what is left behind is lost with the node
        self._pace = Pace(None, _until(self._deadline))
        if self._source.is_dir():
            self._told(self._pass(self._pace, False), total)
        # Slurm may send it twice; the interpreter, once it ends, has no handler that keeps the second from killing it
        for number in _ENDINGS:
            signal.signal(number, signal.SIG_IGN)
        return total

    def _pass(self, pace: Pace, move: bool) -> Report:
        from ..collector import Report
        from ..collector import collect as one_pass

        try:
            return one_pass(self._source, self._target, move=move, pace=pace)
        except OSError as error:
            # shared storage that is away for an hour must not cost the passes after it
            return Report(failures=[(str(error.filename or self._target), error.strerror or str(error))])

    def _end(self) -> None:
        if not self._ending:
            os.write(self._wake, b"x")
        self._ending = True
        if self._pace is not None and self._pace.deadline is None:
            self._pace.stop()

    def _told(self, report: Report, total: Report) -> None:
        total.add(report)
        if report.size or report.failures or report.left:
            _tell(report, self._as_json)


def _step_back() -> None:
    """Training goes first: the lowest priority for the processor and the disk."""
    with contextlib.suppress(OSError):
        os.nice(19)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        # a refusal changes nothing but the priority
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_CLASS_IDLE << 13)


def _tell(report: Report, as_json: bool) -> None:
    if as_json:
        print_json(orjson.dumps(report.as_json()).decode())
        return
    extended = counted(report.extended, "open one")
    parts = [f"{counted(report.copied, 'file')} copied", f"{extended} extended", human_bytes(report.size)]
    for count, words in (
        (report.sealed, "compressed first"),
        (report.removed, "removed here"),
        (report.kept, "pruned here and kept there"),
    ):
        parts += [f"{count:,} {words}"] if count else []
    if report.left:
        parts.append(f"LEFT HERE: {counted(report.left, 'file')}, {human_bytes(report.left_size)}")
    typer.echo(f"{visible(report.host)}: {', '.join(parts)}")
    for name, reason in report.failures[:_FAILURES_TOLD]:
        typer.echo(f"verl-trace: {visible(name)}: {visible(reason)}", err=True)
    if len(report.failures) > _FAILURES_TOLD:
        typer.echo(f"verl-trace: … and {counted(len(report.failures) - _FAILURES_TOLD, 'more failure')}", err=True)
