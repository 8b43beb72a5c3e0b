"""What of a run may be deleted because the server holds it: every call read back and compared, group by group.

A GRPO group goes as a whole, since the figures of those that stay are made of all its rewards. What is still being
written, is damaged or waits for something stays, and so does what the server holds otherwise than the files say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from ..reader import iter_trajectories
from ..reader.facts import trajectory_facts
from ..reader.filters import Filters
from ..reader.pruned import unfinished_prunings
from ..reader.records import trace_id_of
from ..reader.selection import GroupKey, group_key
from ..reader.trees import Reading
from ..schemas.errors import Rejected
from ..schemas.files import parse_segment_name
from .check import HARMLESS, compare
from .client import Client
from .heavy import Lightener
from .ops import Ops
from .payload import Encoded, encode_trajectory
from .prune_files import FilesPlan, delete, plan_files, stamps_of
from .settle import Settling

if TYPE_CHECKING:
    from ..reader import Run, Segment, Trajectory
    from ..schemas.redaction import KeyPatterns
    from .target import Target

__all__ = ["Pruning", "plan_pruning"]

# Calls, and bytes of them, that are read back in one question.
_ASKED_CALLS = 200
_ASKED_BYTES = 8 << 20

# Calls named that the server holds otherwise.
_NAMED = 20

NOT_CHOSEN = "not chosen"
WRITING = "still being written"
DAMAGED = "in a damaged file"
OTHERWISE = "not on the server, or otherwise than recorded"
GROUP = "of a group that stays"
# What the note tells of each trajectory.
_NOTED = (
    "trace_id", "attempt", "step", "sample_index", "rollout_n", "validate", "op", "status", "reward", "uid",
    "started_at", "duration", "calls", "tokens",
)  # fmt: skip


@dataclass
class Pruning:
    """What is to be deleted of one run. `kept`: trajectories that stay, by reason; `differing`: ids of calls that the
    server holds otherwise, the first few."""

    run: Run
    server: str
    project_id: str
    page: str
    trajectories: int = 0
    calls: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    lost_records: int = 0
    files: FilesPlan | None = None
    note: Path | None = None

    @property
    def anything(self) -> bool:
        """Whether there is something to delete; be it only what an interrupted deletion has left."""
        return self.files is not None and bool(self.files.removed or self.files.rewritten)

    @property
    def bytes(self) -> int:
        """Of the files that are touched, on disk."""
        return self.files.bytes if self.files is not None else 0

    def delete(self, tell: Callable[[], None] = lambda: None) -> None:
        """Do it.

        Raises:
            BadTarget: the folder, or a file, refuses.
        """
        if self.files is None or not self.anything:
            return
        head = {
            "server": self.server,
            "project_id": self.project_id,
            "page": self.page,
            "project_name": self.run.project_name,
            "experiment_name": self.run.experiment_name,
            "trajectories": self.trajectories,
            "calls": self.calls,
            "bytes": self.bytes,
            "lost_records": self.lost_records,
        }
        self.note = delete(self.files, head, self.lines, tell)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "folder": str(self.run.folder),
            "project_name": self.run.project_name,
            "experiment_name": self.run.experiment_name,
            "target": self.project_id,
            "trajectories": self.trajectories,
            "calls": self.calls,
            "bytes": self.bytes,
            "kept": dict(sorted(self.kept.items())),
            "differing": self.differing,
            "note": str(self.note) if self.note is not None else None,
        }


def plan_pruning(
    run: Run,
    target: Target,
    *,
    filters: Filters,
    settle: float,
    redact: KeyPatterns | None = None,
    max_wait: float = 300.0,
    tell: Callable[[Pruning], None] = lambda _: None,
) -> Pruning:
    """Read the run and what the server has of it. Deletes nothing.

    `settle`: seconds of silence after which a process of another host counts as dead. `redact`: as it was uploaded.

    Raises:
        BadFilter: an attempt that the run does not have.
        Unreachable: the server was gone for `max_wait` seconds.
    """
    client = Client(target, max_wait=max_wait)
    pruning = Pruning(run, client.url, target.project_id, target.page)
    # what is not whole here differs from what the server has, and stays for that
    settling = Settling(run, settle, damaged=False)
    return _Planning(pruning, client, filters.of_run(run.attempts), settling, redact, tell).run()


@dataclass
class _Group:
    """The members of a group that the server holds, as lines of the note; `stays`: how many must not go."""

    lines: dict[str, bytes] = field(default_factory=dict)
    calls: int = 0
    stays: int = 0


_Batch = list[tuple["Trajectory", list[Encoded]]]


def _named(path: Path) -> tuple[str, int] | None:
    name = parse_segment_name(path)
    return (name.writer, name.index) if name is not None else None


class _Planning:
    def __init__(
        self,
        pruning: Pruning,
        client: Client,
        filters: Filters,
        settling: Settling,
        redact: KeyPatterns | None,
        tell: Callable[[Pruning], None],
    ) -> None:
        self._pruning = pruning
        self._client = client
        self._lightener = Lightener(client)
        self._ops = Ops(client)
        self._filters = filters
        self._settling = settling
        self._redact = redact
        self._tell = tell
        self._groups: dict[GroupKey, _Group] = {}
        self._group_of: dict[str, GroupKey] = {}
        self._before = unfinished_prunings(pruning.run.folder, client.url, client.project_id)

    def run(self) -> Pruning:
        run, pruning = self._pruning.run, self._pruning
        writing = {writer.id for writer in run.writers if self._settling.may_write(writer)}
        reading = Reading()
        # before it is read: what is added later is not deleted
        stamps = stamps_of(run)
        for batch in self._batches(run, writing, reading):
            self._confirm(batch)
            self._tell(pruning)
        damaged = {damage.path for damage in reading.damages if damage.kind != "torn"}
        named = {_named(path) for path in damaged}
        for writer in run.writers:
            for segment in writer.segments:
                if writer.id in writing:
                    self._keep_lines_of(segment, WRITING)
                elif (writer.id, segment.index) in named:
                    self._keep_lines_of(segment, DAMAGED)
        gone = self._whole_groups()
        pruning.lost_records = reading.lost_records
        nothing_else = not (pruning.kept or reading.unknown_kinds or writing or damaged)
        # scores alone may be left of others
        gone |= self._before.trace_ids - self._group_of.keys()
        pruning.files = plan_files(
            run,
            gone,
            stamps,
            everything=nothing_else and bool(gone or self._before.removed),
            writing=writing,
            damaged=damaged,
            begun=self._before.removed,
        )
        return pruning

    def _batches(
        self, run: Run, writing: set[str], reading: Reading
    ) -> Iterator[list[tuple[Trajectory, list[Encoded]]]]:
        batch: list[tuple[Trajectory, list[Encoded]]] = []
        calls = size = 0
        for trajectory in iter_trajectories(run, reading):
            reason = self._reason(trajectory, writing)
            if reason is not None:
                self._keep(trajectory, reason)
                continue
            encoded = encode_trajectory(trajectory, self._client.project_id, self._ops.ref, self._redact)
            batch.append((trajectory, encoded))
            calls, size = calls + len(encoded), size + sum(call.size for call in encoded)
            if calls >= _ASKED_CALLS or size >= _ASKED_BYTES:
                yield batch
                batch, calls, size = [], 0, 0
        if batch:
            yield batch

    def _reason(self, trajectory: Trajectory, writing: set[str]) -> str | None:
        if not self._filters.trajectory(trajectory):
            return NOT_CHOSEN
        if any(call.writer.id in writing for call in trajectory.calls):
            return WRITING
        if trajectory.trace_id in self._before.trace_ids:
            # the file that its other part was in may be deleted already
            return None
        return self._settling.waits(trajectory)

    def _confirm(self, batch: _Batch) -> None:
        every = [call for _, calls in batch for call in calls]
        absent: set[str] = set()
        otherwise: set[str] = set()
        for at in range(0, len(every), _ASKED_CALLS):
            piece = every[at : at + _ASKED_CALLS]
            rows = {row["id"]: row for row in self._client.rows([call.id for call in piece])}
            absent |= {call.id for call in piece} - rows.keys()
            otherwise |= self._differing([call for call in piece if call.id in rows], rows)
        for trajectory, calls in batch:
            # parts that an interrupted deletion has left of what was whole when it began look otherwise
            bad = absent if trajectory.trace_id in self._before.trace_ids else absent | otherwise
            if not any(call.id in bad for call in calls):
                self._take(trajectory)
            else:
                room = _NAMED - len(self._pruning.differing)
                self._pruning.differing += [call.id for call in calls if call.id in bad][:room]
                self._keep(trajectory, OTHERWISE)

    def _differing(self, calls: list[Encoded], rows: dict[str, dict[str, Any]]) -> set[str]:
        bad: set[str] = set()
        for call in calls:
            try:
                # in the form in which it was sent
                sent = self._lightener.ready(call)
            except Rejected:
                bad.add(call.id)
                continue
            if sent.missing or any(found.kind not in HARMLESS for found in compare(sent, rows[call.id])):
                bad.add(call.id)
        return bad

    def _group(self, trajectory: Trajectory) -> tuple[_Group, dict[str, Any]]:
        facts = trajectory_facts(trajectory)
        # a trajectory that nothing numbers is alone
        numbered = facts.get("uid") is not None or facts.get("sample_index") is not None
        key = group_key(facts) if numbered else (trajectory.trace_id,)
        self._group_of[trajectory.trace_id] = key
        return self._groups.setdefault(key, _Group()), facts

    def _take(self, trajectory: Trajectory) -> None:
        group, facts = self._group(trajectory)
        noted = {name: facts.get(name) for name in _NOTED}
        group.lines[trajectory.trace_id] = orjson.dumps(noted, default=str)
        group.calls += len(trajectory.calls)

    def _keep(self, trajectory: Trajectory, reason: str) -> None:
        group, _ = self._group(trajectory)
        group.stays += 1
        self._pruning.kept[reason] += 1

    def _keep_lines_of(self, segment: Segment, reason: str) -> None:
        """A file that is not whole, or grows, is not touched, nor what lies partly in it, be it only a score."""
        for trace_id in {trace_id_of(line) for _, line in segment.lines()} & self._group_of.keys():
            group = self._groups[self._group_of[trace_id]]
            if group.lines.pop(trace_id, None) is not None:
                group.stays += 1
                self._pruning.kept[reason] += 1

    def _whole_groups(self) -> frozenset[str]:
        pruning = self._pruning
        gone: set[str] = set()
        for group in self._groups.values():
            if group.stays:
                pruning.kept[GROUP] += len(group.lines)
                continue
            gone |= group.lines.keys()
            pruning.lines += group.lines.values()
            pruning.calls += group.calls
        pruning.trajectories = len(gone)
        pruning.kept = +pruning.kept
        return frozenset(gone)
