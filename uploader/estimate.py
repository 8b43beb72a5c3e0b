"""What an upload will come to: calls, bytes, a share of the monthly quota, and time at a measured rate.

The rate is that of the last upload from here that sent enough to tell; it is kept beside the ledgers. Before the first
one nobody knows the server: then the time is what reading and encoding took in the dry run itself, which an upload does
as well, and is said to be the least.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from .result import RunReport, UploadResult

__all__ = ["FREE_MONTH", "Estimate", "Rate", "estimate", "keep_rate", "last_rate"]

# What W&B's free plan takes in a month, in bytes.
FREE_MONTH = 10**9
_NAME = "last-rate.json"
# An upload that sent less tells how long it takes to say hello. 200 calls are a request of small ones.
_CALLS, _BYTES = 200, 1 << 20


class Rate(NamedTuple):
    """How fast an upload was: calls and bytes of requests that `server` took in `seconds`, up to the moment `at`."""

    server: str
    calls: int
    bytes: int
    seconds: float
    at: str

    def seconds_for(self, calls: int, size: int) -> float:
        """How long as many calls of so many bytes take: by calls or by bytes, whichever is longer."""
        return self.seconds * max(calls / self.calls, size / self.bytes)


@dataclass(frozen=True)
class Estimate:
    """What a dry run found, of all its runs together. `bytes`: of the requests; `stored_bytes`: as the server counts
    them; `quota`: bytes a month. `seconds`: at the `rate`; without one, the least that it takes.
    """

    trajectories: int
    calls: int
    bytes: int
    stored_bytes: int
    quota: int
    seconds: float
    rate: Rate | None

    @property
    def share(self) -> float:
        """Part of the quota; 1.0 is all of it."""
        return self.stored_bytes / self.quota

    def as_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        rate = None if self.rate is None else self.rate._asdict()
        return {**vars(self), "share": self.share, "seconds": round(self.seconds, 3), "rate": rate}


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
