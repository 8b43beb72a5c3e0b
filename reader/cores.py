"""Work on the files of a run by as many processes as there are cores for, results in order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

__all__ = ["on_all_cores"]

# Starting processes costs more than one of them needs for this many stored bytes.
_SMALL = 4 << 20
# From when on glibc keeps freed memory for what comes next: after a piece of this size was freed.
_FREED = 4 << 20

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


# What forked processes do; they inherit it.
_task: list[Callable[[Any], Any]] = []


def on_all_cores(function: Callable[[_Item], _Result], items: Sequence[_Item], stored_bytes: int) -> Iterator[_Result]:
    """`function` of each item, which are `stored_bytes` on disk together; items and results must be picklable.

    Processes are forked, so they are used by programs of one thread alone, and where the system allows them.
    """
    workers = min(len(os.sched_getaffinity(0)), len(items))
    if workers < 2 or stored_bytes < _SMALL or threading.active_count() > 1:
        yield from map(function, items)
        return
    import multiprocessing  # a tenth of the time in which a small command is done

    _task[:] = [function]
    try:
        pool = multiprocessing.get_context("fork").Pool(workers, _begin)
    except OSError:
        # no shared memory, or no more processes
        yield from map(function, items)
        return
    with pool:
        yield from pool.imap(_inherited, items)


def _inherited(item: Any) -> Any:
    return _task[0](item)


def _begin() -> None:
    # whoever started the processes ends them
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Else memory for what is decompressed comes page by page from the system, piece after piece. This one is never
    # touched, and costs nothing.
    bytes(_FREED)
