"""One run -> one Weave project: read, sort into requests, send, check."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..reader import Run, iter_trajectories
from ..reader.digest_cache import digests
from ..reader.losses import lost_words
from ..reader.pick import read
from ..reader.trees import Reading
from ..schemas.errors import Rejected
from ..schemas.redaction import KeyPatterns
from ..schemas.wording import counted
from .choose import Choice, Choosing
from .client import Client, Unreachable
from .estimate import keep_rate
from .feedback import give_feedback
from .folders import damaged_files
from .ledger import Ledger, Place, state_folder
from .lessen import Lessen
from .ops import Ops, expected_ref, op_object_id
from .payload import encode_trajectory
from .plan import Batch, Plan
from .result import STORED_OTHERWISE, WAITS_FOR_SEGMENT, RunReport
from .sender import Sender, count_call
from .settle import SETTLE, HasScore, Settling, has_score
from .target import Target
from .wandb_links import WandbLinks, links_of
from .wandb_options import WandbOptions

if TYPE_CHECKING:
    from ..reader import Trajectory

__all__ = ["WORKERS", "Options", "measure", "replay", "settling_of"]

# Requests under way at once. Each waits twice for an answer: with 50 ms to the server eight carry what can be read
# meanwhile. W&B's own client has four threads more than the machine has cores. More would take memory, 16 MiB each, and
# queue up where the server's inserts are what takes the time.
WORKERS = 8
# A torn end per killed worker is ordinary; more than this says nothing new.
DAMAGES_NOTED = 5
# Calls named in the note; --json has more.
UNLINKED_NAMED = 5


@dataclass(frozen=True)
class Options:
    """How to upload; `pipeline.upload` tells what each of them means."""

    workers: int = WORKERS
    max_wait: float = 300.0
    settle: float = SETTLE
    partial: bool = False
    check: str = "counts"
    state_dir: Path | None = None
    redact: KeyPatterns | None = None
    choosing: Choosing = field(default_factory=Choosing)
    lessen: Lessen | None = None
    wandb: WandbOptions = field(default_factory=WandbOptions)
    feedback: bool = False
    has_score: HasScore = has_score
    # the names in --where are looked for before anything is sent
    names_first: bool = True
    # what the ledger remembers is not asked for again: for looks between which nothing but time has passed
    trusting: bool = False
    # what the ledger of each place would remember if it could be written, for the next look
    known: dict[Place, set[bytes]] = field(default_factory=dict)
    # of which calls each place has feedback, for the next look
    given: dict[Place, set[str]] = field(default_factory=dict)

    def between(self) -> Options:
        """For a look at a run that goes on: what is long, the last one does."""
        check = "counts" if self.check == "deep" else self.check
        return replace(self, trusting=True, check=check, wandb=replace(self.wandb, later=True))

    def words(self, attempts: Iterable[str], links: Mapping[str, str]) -> list[str]:
        """What changes the calls that are sent: a call that was sent with other options is not the same. An attempt
        that comes later changes nothing of the others' calls."""
        parts = [] if self.lessen is None else [f"drop={sorted(self.lessen.drop)}, max_field={self.lessen.max_field}"]
        parts += [] if self.redact is None else [f"redact={self.redact.words}"]
        return ["; ".join(parts), *(f"{attempt}: {links.get(attempt, '')}" for attempt in attempts)]


def settling_of(run: Run, options: Options) -> Settling:
    """Which trajectories of the run are settled; made before anything is read."""
    return Settling(run, options.settle, has_score=options.has_score, partial=options.partial)


def measure(run: Run, report: RunReport, settling: Settling, options: Options, tell: Callable[[], None]) -> None:
    """A dry run: everything but the network."""
    prepared = links_of(run, None, options.wandb, report, settling, tell)
    if options.wandb.only:
        return

    reading = Reading()
    settling.watch(reading.damages)
    choice = choice_of(run, report, options)
    plan = Plan(
        report,
        report.target,
        partial(expected_ref, report.target),
        settling,
        redact=options.redact,
        choice=choice,
        lessen=options.lessen,
        held=prepared.held,
    )
    last = ""
    for batch in plan.batches(iter_trajectories(run, reading)):
        for call in batch.calls:
            count_call(report, call)
            report.stored_bytes += call.stored_size
        # one that is spread over several requests comes in each of them
        report.trajectories_to_send += sum(trace_id != last for trace_id in batch.traces)
        last = next(reversed(batch.traces), last)
        tell()
    _note(run, report, reading, settling)


def choice_of(run: Run, report: RunReport, options: Options) -> Choice | None:
    """What was asked for in this run, None for all of it; what there is no room for is noted.

    Raises:
        BadFilter: an attempt that the run does not have.
    """
    if options.choosing.everything:
        return None

    def size_of(trajectory: Trajectory) -> int:
        calls = encode_trajectory(trajectory, report.target, op_object_id, options.redact, options.lessen)
        return sum(call.stored_size for call in calls)

    choice = options.choosing.of(run, size_of)
    for words in choice.words():
        report.note(words)
    return choice


def replay(
    run: Run, report: RunReport, target: Target, settling: Settling, options: Options, tell: Callable[[], None]
) -> None:
    """Send what the server does not have."""
    prepared = links_of(run, target, options.wandb, report, settling, tell)
    if not options.wandb.only:
        _Replay(run, report, target, settling, options, prepared, tell).run()


class _Replay:
    def __init__(
        self,
        run: Run,
        report: RunReport,
        target: Target,
        settling: Settling,
        options: Options,
        prepared: WandbLinks,
        tell: Callable[[], None],
    ) -> None:
        self._run = run
        self._report = report
        self._settling = settling
        self._options = options
        self._wandb = prepared
        self._rewards: list[tuple[str, float]] | None = [] if options.feedback else None
        self._tell = tell
        self._client = Client(target, max_wait=options.max_wait)
        self._ops = Ops(self._client)
        self._choice = choice_of(run, report, options)
        place = Place(self._client.url, target.project_id, run.project_name, run.experiment_name)
        self._state = state_folder(options.state_dir)
        known = options.known.setdefault(place, set())
        self._given = options.given.setdefault(place, set())
        self._ledger = Ledger(self._state, place, options.words(run.attempts, prepared.links), known)

    def run(self) -> None:
        """All of it, and once more what only the ledger knew."""
        reading = Reading()
        began = time.monotonic()
        try:
            disowned = self._pass(reading)
            keep_rate(self._state, self._client.url, self._report, time.monotonic() - began)
            _note(self._run, self._report, reading, self._settling)
            if disowned:
                self._ledger.forget()
                self._report.note(
                    f"the server has lost calls of {counted(len(disowned), 'trajectory')}, which are sent again"
                )
                self._pass(Reading(), disowned)
        finally:
            self._ledger.close()
        self._feedback()
        self._note_troubles()

    def _feedback(self) -> None:
        """Rewards as feedback, once the calls that they are about are there."""
        if not self._rewards or self._report.stopped:
            return
        passed_over = {failure.id for failure in self._report.failures}
        if self._options.trusting:
            passed_over |= self._given
        rewards = [item for item in self._rewards if item[0] not in passed_over]
        try:
            give_feedback(self._client, rewards, self._report)
            self._given.update(call_id for call_id, _ in rewards)
        except Unreachable as error:
            self._report.stopped = f"while giving feedback: {error}"
            self._report.for_good = self._client.refused_for_good
        except Rejected as error:
            self._report.note(f"the server refuses feedback: {error}")

    def _pass(self, reading: Reading, only: frozenset[str] | None = None) -> frozenset[str]:
        """Read the run once; gives the ids of trajectories that the ledger remembers and the server does not have."""
        sender = Sender(
            self._client,
            self._ops,
            self._report,
            self._tell,
            ledger=self._ledger,
            check=self._options.check,
            trusting=self._options.trusting,
        )

        # to compare it, every call has to be read
        believe = self._options.check != "deep" and only is None and self._ledger.one_form
        plan = Plan(
            self._report,
            self._client.project_id,
            sender.op_ref,
            self._settling,
            self._ledger,
            believe=believe,
            only=only,
            redact=self._options.redact,
            choice=self._choice,
            lessen=self._options.lessen,
            links=self._wandb.links,
            held=self._wandb.held,
            rewards=self._rewards if only is None else None,
        )
        with sender.running(self._options.workers):
            for batch in self._batches(plan, reading):
                sender.put(batch)
        return frozenset(sender.disowned)

    def _batches(self, plan: Plan, reading: Reading) -> Iterator[Batch]:
        """The run's requests. Of a run that is partly stored, only what is new is read whole."""
        self._settling.watch(reading.damages)
        if not (plan.believe and self._ledger.remembers_any):
            yield from plan.batches(iter_trajectories(self._run, reading))
            return
        plan.later = set()
        yield from plan.batches(iter_trajectories(self._run, reading, source=digests))
        new, plan.later = frozenset(plan.later), None
        if not new:
            return
        seen, again = 0, Reading()
        self._settling.watch(again.damages)

        def of_new() -> Iterator[Trajectory]:
            nonlocal seen
            for trajectory in read(self._run, new, again):
                if trajectory.trace_id in new:
                    seen += 1
                    yield trajectory

        yield from plan.batches(of_new())
        known = {damage.path for damage in reading.damages}
        # what the cache knew to be whole, and is not any more
        since = [damage for damage in again.damages if damage.path not in known]
        reading.damages += since
        if seen < len(new):
            gone = counted(len(new) - seen, "trajectory")
            what = f"records of {gone} cannot be read any more" if since else f"files of {gone} have gone"
            self._report.unreadable.append(f"{self._run.folder}: {what}")

    def _note_troubles(self) -> None:
        if self._ledger.trouble:
            self._report.note(
                f"progress cannot be kept ({self._ledger.trouble}): the next upload asks the server for everything;"
                " --state-dir names another folder"
            )
        for name, words in sorted(self._ops.refused.items()):
            self._report.note(f"the server refuses the op {name} as an object; its calls carry the plain name: {words}")
        if self._client.legacy:
            self._report.note(
                "the server lacks /v2/…/calls/complete (an older version); calls went by /call/upsert_batch"
            )


def _note(run: Run, report: RunReport, reading: Reading, settling: Settling) -> None:
    """What is to be said beside numbers."""
    if reading.skipped:
        report.note(f"{counted(reading.skipped, 'trajectory')} left out by sampling when the run was recorded")
    if reading.lost_records:
        report.note(lost_words(reading.lost_records, reading.lost_by))
    if report.skipped[WAITS_FOR_SEGMENT]:
        names = settling.missing
        more = f" and {len(names) - DAMAGES_NOTED:,} more" if len(names) > DAMAGES_NOTED else ""
        report.note(
            f"missing or damaged: {', '.join(names[:DAMAGES_NOTED]) or 'files of the packed run'}{more}. Put whole ones"
            " there; or, if there are none, send what there is with --partial"
        )
    if report.unlinked:
        runs = ", ".join(sorted({call["wandb_run"] for call in report.unlinked_calls}))
        some = [f"{call['op']} {call['id']}" for call in report.unlinked_calls[:UNLINKED_NAMED]]
        more = f", and {report.unlinked - len(some):,} more" if report.unlinked > len(some) else ""
        report.note(
            f"{counted(report.unlinked, 'call is', 'calls are')} stored without a link to a W&B run ({runs}), and Weave"
            f" changes no stored call: {', '.join(some)}{more}"
        )
    for attempt, count in sorted(report.without_link.items()):
        calls = counted(count, "call")
        report.note(f"W&B: {calls} of attempt {attempt} without a link to a run: {report.why_without[attempt]}")
    if report.skipped[STORED_OTHERWISE]:
        report.note(
            f"{counted(report.skipped[STORED_OTHERWISE], 'call is', 'calls are')} stored with another end or other"
            " attributes than would be sent now (from a copy of another age, before a score was there, or with other"
            " options). Weave changes no stored call; --project OTHER makes a full copy"
        )
    report.unreadable += sorted({str(damage.path) for damage in reading.damages if damage.kind == "unreadable"})
    damaged = damaged_files(run, reading.damages)
    report.unreadable += [f"{path} is damaged (`verl-trace verify` says where)" for path in damaged]
    for damage in reading.damages[:DAMAGES_NOTED]:
        size = counted(damage.length, "byte")
        report.note(f"damaged: {damage.path.name} at byte {damage.offset:,}, {size}: {damage.reason}")
    if len(reading.damages) > DAMAGES_NOTED:
        report.note(counted(len(reading.damages) - DAMAGES_NOTED, "more damaged place"))
