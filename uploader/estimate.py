"""What an upload will come to: calls, bytes, a share of the monthly quota, and time at a measured rate.

The rate is that of the last upload from here that sent enough to tell; it is kept beside the ledgers. Before the first
one nobody knows the server: then the time is what reading and encoding took in the dry run itself, which an upload does
as well, and is said to be the least.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

import orjson

from .forecast import Estimate, Rate
from .result import RunReport, UploadResult

__all__ = ["FREE_MONTH", "estimate", "keep_rate", "last_rate"]

# What W&B's free plan takes in a month, in bytes.
FREE_MONTH = 10**9
_NAME = "last-rate.json"
# An upload that sent less tells how long it takes to say hello. 200 calls are a request of small ones.
_CALLS, _BYTES = 200, 1 << 20


def estimate(result: UploadResult, quota: int, rate: Rate | None) -> Estimate:
    """Of a dry run that has ended."""
    calls, size = sum(run.to_send for run in result.runs), sum(run.bytes for run in result.runs)
    # reading and encoding take as long again, and may be what takes longest
    seconds = result.seconds if rate is None else max(result.seconds, rate.seconds_for(calls, size))
    return Estimate(
        trajectories=sum(run.trajectories_to_send for run in result.runs),
        calls=calls,
        bytes=size,
        stored_bytes=sum(run.stored_bytes for run in result.runs),
        quota=quota,
        seconds=seconds,
        rate=rate,
    )


def keep_rate(folder: Path, server: str, report: RunReport, seconds: float) -> None:
    """Remember how fast `report` was sent, if it tells: much was sent, and not much else was looked at meanwhile."""
    enough = report.sent >= _CALLS or (report.sent > 0 and report.bytes >= _BYTES)
    if not enough or report.sent * 2 < report.recorded or seconds <= 0 or report.stopped:
        return
    at = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    rate = Rate(server, report.sent, report.bytes, round(seconds, 3), at)
    partial = folder / f".{_NAME}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.write_bytes(orjson.dumps(rate._asdict()))
        os.replace(partial, folder / _NAME)
    except OSError:
        # an estimate less; the ledger beside it meets the same trouble, and tells
        return


def last_rate(folder: Path) -> Rate | None:
    """How fast the last upload from here was; None when there was none, or nobody can read of it."""
    try:
        found = orjson.loads((folder / _NAME).read_bytes())
        rate = Rate(
            str(found["server"]), int(found["calls"]), int(found["bytes"]), float(found["seconds"]), str(found["at"])
        )
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    return rate if rate.calls > 0 and rate.bytes > 0 and rate.seconds > 0 else None
