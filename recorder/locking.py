"""Locks that are waited for with a time limit, and are let go of whatever a signal handler does.

A handler runs, and may raise, when a call has returned: also between `acquire` and the `try` behind it. The lock would
then be held for ever. `with lock:` has no such gap, and no time limit; a `for` loop over `map` has both right.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

__all__ = ["within"]


def within(lock: threading.RLock, seconds: float) -> Iterator[bool]:
    """Whether it was taken: `for taken in within(lock, 1.0):`, a `try` at once, and in its `finally` `if taken:` and
    `release`. Nothing before the `try`: in Python 3.10 a handler may raise at a condition, too."""
    return map(lock.acquire, (True,), (seconds,))
