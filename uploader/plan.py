"""Which calls go into which request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from .payload import Encoded, encode_trajectory
from .result import STILL_OPEN, RunReport

if TYPE_CHECKING:
    from ..reader import Trajectory
    from ..schemas.redaction import KeyPatterns

__all__ = ["MAX_BYTES", "MAX_CALLS", "batches"]

# The hosted service takes 1000 calls and 32 MiB; smaller requests fail, wait and are repeated in smaller pieces.
MAX_CALLS = 500
MAX_BYTES = 8 << 20


def batches(
    trajectories: Iterable[Trajectory],
    report: RunReport,
    project_id: str,
    op_ref: Callable[[str], str],
    redact: KeyPatterns | None = None,
) -> Iterator[list[Encoded]]:
    """Requests of whole trajectories; only one that is too large for a request is spread over several.

    Values of keys that match `redact` are left out. Counts in `report` what is recorded and what must wait.
    """
    batch: list[Encoded] = []
    size = 0
    for trajectory in trajectories:
        report.trajectories += 1
        report.recorded += len(trajectory.calls)
        if is_open(trajectory):
            report.skipped[STILL_OPEN] += len(trajectory.calls)
            continue
        calls = encode_trajectory(trajectory, project_id, op_ref, redact)
        added = sum(call.size for call in calls)
        if batch and not _fits(len(batch) + len(calls), size + added):
            yield batch
            batch, size = [], 0
        if _fits(len(calls), added):
            batch += calls
            size += added
        else:
            yield from _pieces(calls)
    if batch:
        yield batch


def is_open(trajectory: Trajectory) -> bool:
    """Whether a process that may still live has not finished one of the calls: sent now, its end would be missing."""
    return any(call.writer.live and (call.unfinished or call.awaits_text) for call in trajectory.calls)


def _fits(calls: int, size: int) -> bool:
    return calls <= MAX_CALLS and size <= MAX_BYTES


def _pieces(calls: list[Encoded]) -> Iterator[list[Encoded]]:
    piece: list[Encoded] = []
    size = 0
    for call in calls:
        if piece and not _fits(len(piece) + 1, size + call.size):
            yield piece
            piece, size = [], 0
        piece.append(call)
        size += call.size
    if piece:
        yield piece
