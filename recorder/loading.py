"""Modules that the recorder's own threads load, because training does not need them at its start: not while this
process forks.

A child would find such a module half loaded by a thread that it does not have, and wait for ever where it imports it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator

from .locking import within

__all__ = ["install", "loading"]

# A module comes in milliseconds; on a file system that hangs, nobody else waits longer than this, in seconds.
PATIENCE = 2.0
# re-entrant: a signal handler may fork while its own thread loads
_lock = threading.RLock()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Around an import in a thread of the recorder; a fork waits for its end.

    An import that hangs in another thread is waited for no longer than a fork waits: the program has to be able to end.
    """
    for taken in within(_lock, PATIENCE):
        try:
            yield
        finally:
            if taken:
                _lock.release()


def install() -> None:
    """From now on forks wait."""
    # Not in Python: a signal that came during the fork has its handler called by the first Python code after it, and
    # what that raised, a time limit for one, would end the hook instead of reaching the program. Where waiting was
    # given up, the interpreter notes at each fork that there was nothing to release.
    os.register_at_fork(
        before=functools.partial(_lock.acquire, True, PATIENCE),
        after_in_parent=_lock.release,
        after_in_child=_after_fork,
    )


def _after_fork() -> None:
    try:
        _lock.release()
    except RuntimeError:
        # waiting was given up: the thread that has it is not here
        _lock._at_fork_reinit()  # type: ignore[attr-defined]
