"""Which calls go into which request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..schemas.redaction import KeyPatterns
from .choose import Choice
from .ledger import Ledger
from .lessen import Lessen
from .payload import Encoded, encode_trajectory
from .result import NOT_CHOSEN, WAITS_FOR_WANDB, RunReport
from .settle import Settling

if TYPE_CHECKING:
    from ..reader import Trajectory
    from ..schemas.redaction import KeyPatterns

__all__ = ["MAX_BYTES", "MAX_CALLS", "MAX_TRACES", "Batch", "Plan", "Trace"]

# The hosted service takes 1000 calls and 32 MiB; smaller requests fail, wait and are repeated in smaller pieces.
MAX_CALLS = 500
MAX_BYTES = 8 << 20
# The server takes at most 1000 ids in a filter.
MAX_TRACES = 500


@dataclass(eq=False)
class Trace:
    """One trajectory on its way. `left`: calls of which it is not known yet what became of them; `sent` and `failed`:
    ids of those that were stored now, or did not arrive. `remembered`: the ledger says that all are stored.
    `partial`: it has other calls, too. `otherwise`: how many the server has that would be sent in another form now."""

    trace_id: str
    ids: list[str]
    mark: bytes
    left: int
    remembered: bool = False
    partial: bool = False
    otherwise: int = 0
    sent: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    @property
    def expected(self) -> int:
        """How many of its calls the server must have."""
        return len(self.ids) - len(self.failed)


@dataclass
class Batch:
    """Calls of one request, and whose they are; or trajectories that the ledger remembers, without calls."""

    calls: list[Encoded] = field(default_factory=list)
    traces: dict[str, Trace] = field(default_factory=dict)
    size: int = 0

    def has_room(self, calls: int, size: int) -> bool:
        """Whether so many more calls, of so many bytes, fit."""
        return len(self.calls) + calls <= MAX_CALLS and self.size + size <= MAX_BYTES

    def add(self, calls: list[Encoded], trace: Trace, size: int) -> None:
        """Add calls of a trajectory."""
        self.calls += calls
        self.traces[trace.trace_id] = trace
        self.size += size


@dataclass
class Plan:
    """Sorts trajectories into requests and counts in `report` what is recorded and what must wait.

    `op_ref`: recorded op name -> what the call refers to. `believe`: what `ledger` remembers is not sent again. `only`:
    trace ids; all other trajectories were dealt with before and count no more. `redact`: keys of values to leave out.
    `choice`: what was asked for, all without it; `lessen`: fields to leave out; `links`: W&B runs; `held`: attempts
    whose calls must not be sent before their W&B run is there.
    `rewards`: gets, where it is a list, (id of the root call, reward) of the trajectories that are due. `later`: gets,
    where it is a set, the trace ids of what must be sent, in place of requests; they are not counted, and need no
    payloads.
    """

    report: RunReport
    project_id: str
    op_ref: Callable[[str], str]
    settling: Settling
    ledger: Ledger | None = None
    believe: bool = True
    only: frozenset[str] | None = None
    redact: KeyPatterns | None = None
    choice: Choice | None = None
    lessen: Lessen | None = None
    links: Mapping[str, str] | None = None
    held: Mapping[str, str] | None = None
    rewards: list[tuple[str, float]] | None = None
    later: set[str] | None = None

    def batches(self, trajectories: Iterable[Trajectory]) -> Iterator[Batch]:
        """Requests of whole trajectories; only one that is too large for a request is spread over several."""
        batch, remembered = Batch(), Batch()
        for trajectory in trajectories:
            trace = self._taken(trajectory)
            if trace is None:
                continue
            if trace.remembered:
                remembered.add([], trace, 0)
                if len(remembered.traces) == MAX_TRACES:
                    yield remembered
                    remembered = Batch()
                continue
            calls = self._encode(trajectory, trace)
            size = sum(call.size for call in calls)
            if batch.calls and not batch.has_room(len(calls), size):
                yield batch
                batch = Batch()
            if batch.has_room(len(calls), size):
                batch.add(calls, trace, size)
            else:
                yield from _pieces(calls, trace)
        for rest in (batch, remembered):
            if rest.traces:
                yield rest

    def _taken(self, trajectory: Trajectory) -> Trace | None:
        """The trajectory on its way; None of one that is not to be sent, or that is left for `later`."""
        if self.only is not None and trajectory.trace_id not in self.only:
            return None
        reason = self._reason(trajectory) if self.only is None else None
        ids = self._ids(trajectory) if reason is None else []
        trace = self._trace(trajectory, ids) if ids else None
        if trace is not None and self.only is None and self._is_held(trajectory, trace):
            reason, ids, trace = WAITS_FOR_WANDB, [], None
        if trace is not None and self.later is not None and not trace.remembered:
            self.later.add(trajectory.trace_id)
            return None
        if self.only is None:
            self.report.trajectories += 1
            self.report.recorded += len(trajectory.calls)
            self.report.skipped[reason or NOT_CHOSEN] += len(trajectory.calls) - len(ids)
        root, reward = trajectory.root, trajectory.reward
        if self.rewards is not None and reward is not None and root is not None and root.id in ids:
            self.rewards.append((root.id, reward))
        return trace

    def _reason(self, trajectory: Trajectory) -> str | None:
        """Why it is not sent now; None when it is."""
        if self.choice is not None and not self.choice.takes(trajectory):
            return NOT_CHOSEN
        return self.settling.waits(trajectory)

    def _is_held(self, trajectory: Trajectory, trace: Trace) -> bool:
        """Whether it must not be sent yet, because its W&B run is not there; what is stored is not held."""
        if not self.held or trace.remembered:
            return False
        return any(call.writer.attempt in self.held for call in trajectory.calls)

    def _ids(self, trajectory: Trajectory) -> list[str]:
        """Ids of the calls to be sent: all, unless single calls were asked for."""
        return [call.id for call in trajectory.calls if self.choice is None or self.choice.takes_call(call)]

    def _encode(self, trajectory: Trajectory, trace: Trace) -> list[Encoded]:
        calls = encode_trajectory(trajectory, self.project_id, self.op_ref, self.redact, self.lessen, self.links)
        if len(trace.ids) == len(calls):
            return calls
        wanted = set(trace.ids)
        return [call for call in calls if call.id in wanted]

    def _trace(self, trajectory: Trajectory, ids: list[str]) -> Trace:
        trace = Trace(trajectory.trace_id, ids, b"", left=len(ids), partial=len(ids) < len(trajectory.calls))
        if self.ledger is not None:
            # of a trajectory that is not sent whole, it is remembered which calls were
            only = ids if trace.partial else ()
            trace.mark = self.ledger.mark(trajectory, self.settling.has_score(trajectory), only)
            trace.remembered = self.believe and self.ledger.remembers(trace.mark)
        return trace


def _pieces(calls: list[Encoded], trace: Trace) -> Iterator[Batch]:
    piece = Batch()
    for call in calls:
        if piece.calls and not piece.has_room(1, call.size):
            yield piece
            piece = Batch()
        piece.add([call], trace, call.size)
    if piece.calls:
        yield piece
