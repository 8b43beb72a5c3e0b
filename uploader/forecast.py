"""What an upload will come to, as values: `estimate` makes them of a dry run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Estimate", "Rate"]


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
