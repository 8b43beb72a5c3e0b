"""Names of unfinished copies at the destination: whose they are, and when they are nobody's."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from pathlib import Path

from ..schemas.files import TMP_SUFFIX

__all__ = ["remove_abandoned", "token_of"]

# A copy that goes on is written to all the time, however slow; older than this it is nobody's, wherever it came from.
_ABANDONED_AFTER = 86400.0
# Of a process of this node that does not run any more: pids may be those of another container, so not at once.
_GRACE = 5.0
_NAME = re.compile(r".+\.(?P<node>[^.]+)-(?P<pid>\d+)-[0-9a-f]{8}" + re.escape(TMP_SUFFIX) + r"\Z")


def token_of(node: str) -> str:
    """What makes temporary names of this process its own."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "-", node)
    return f"{safe}-{os.getpid()}-{secrets.token_hex(4)}"


def remove_abandoned(folder: Path, node: str) -> None:
    """Remove copies that a killed pass of this node left unfinished, and very old ones of any."""
    mine = token_of(node).rsplit("-", 2)[0]
    now = time.time()
    for name in os.listdir(folder):
        found = _NAME.match(name)
        if found is None:
            continue
        with contextlib.suppress(OSError):
            age = now - os.stat(folder / name).st_mtime
            dead = found["node"] == mine and not _runs(int(found["pid"])) and age > _GRACE
            if dead or age > _ABANDONED_AFTER:
                os.unlink(folder / name)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # somebody else's
        return True
    return True
