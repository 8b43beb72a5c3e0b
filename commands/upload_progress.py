"""How far an upload is: a moving line on a terminal, a plain line now and then anywhere else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..schemas.wording import counted
from ..uploader.result import UploadResult

__all__ = ["showing_progress"]

# Often enough to see that it lives, seldom enough for a job's log.
PLAIN_INTERVAL = 10.0


@contextmanager
def showing_progress(stream: TextIO) -> Iterator[Callable[[UploadResult], None]]:
    """A function that shows a result so far on `stream`; it may be called from any thread."""
    if not stream.isatty():
        yield _plain(stream)
        return
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def show(result: UploadResult) -> None:
            # what is read ahead of the sending is a few requests: the bar shows how much of it has been dealt with
            done = result.sent + sum(result.skipped.values()) + result.failed
            bar.update(task, description=_words(result), completed=done)

        yield show


def _plain(stream: TextIO) -> Callable[[UploadResult], None]:
    lock = threading.Lock()
    last = time.monotonic()

    def show(result: UploadResult) -> None:
        nonlocal last
        with lock:
            if time.monotonic() - last < PLAIN_INTERVAL:
                return
            last = time.monotonic()
            stream.write(f"verl-trace: {_words(result)}\n")
            stream.flush()

    return show


def _words(result: UploadResult) -> str:
    read, skipped = counted(result.recorded, "call"), sum(result.skipped.values())
    return f"{read} read, {result.sent:,} sent, {skipped:,} skipped, {result.failed:,} failed"
