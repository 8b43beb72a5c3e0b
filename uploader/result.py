"""What an upload did, in numbers that add up: recorded = sent + skipped (why) + failed (which)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from .forecast import Estimate

__all__ = [
    "ALREADY_STORED",
    "NOT_CHOSEN",
    "STILL_OPEN",
    "STORED_OTHERWISE",
    "WAITS_FOR_SCORE",
    "WAITS_FOR_SEGMENT",
    "WAITS_FOR_WANDB",
    "Difference",
    "Failure",
    "MovedField",
    "RunReport",
    "Unopened",
    "UploadResult",
]

# Reasons for not sending a call: the server has it …
ALREADY_STORED = "already stored"
STORED_OTHERWISE = "stored otherwise"
# … or it was not asked for …
NOT_CHOSEN = "not chosen"
# … or it waits.
STILL_OPEN = "still open"
WAITS_FOR_SCORE = "waiting for the score"
WAITS_FOR_SEGMENT = "waiting for a missing segment"
WAITS_FOR_WANDB = "waiting for their W&B run"
_NEVER_SENT = (ALREADY_STORED, STORED_OTHERWISE, NOT_CHOSEN)
# Failures kept with their details, per run: enough to find the cause, and bounded when a server dies for good.
FAILURES_KEPT = 1000


@dataclass(frozen=True)
class Failure:
    """A call that did not arrive, and why, in the server's words where it had some.

    `field`: the part of the call that the server objects to, "" when it does not say.
    """

    id: str
    trace_id: str
    op: str
    reason: str
    field: str = ""


@dataclass(frozen=True)
class Difference:
    """A field of a stored call that is not what the files say. `kind`: one of those in `check`."""

    id: str
    op: str
    field: str
    kind: str


@dataclass(frozen=True)
class Unopened:
    """A run, folder or file of which nothing was uploaded, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class MovedField:
    """A field of a call that was too large for a row of Weave and is a file there; `bytes` of JSON."""

    id: str
    op: str
    path: str
    bytes: int


@dataclass
class RunReport:
    """The upload of one run. `failures` has the first `FAILURES_KEPT` of `failed`; `unsent` of these were never sent,
    since the upload had stopped.

    All counts but `trajectories` and `bytes` are calls; `interrupted`, `orphans` and `marked_texts` (strings that got
    `TEXT_MARK`) and `missing_contents` (pictures and arrays that no side file holds whole) count within the calls
    that were sent (dry run: would be). `unlinked`: stored calls that lack the link to their W&B run, the first
    `FAILURES_KEPT` of them in `unlinked_calls`; `without_link`: calls that were sent without one, by attempt, for the
    reason in `why_without`. `wandb_left`: something of a W&B run is still to be synced. `trajectories_to_send`,
    `stored_bytes`: of a dry run. `checked`: calls that the server counts; `compared`: calls that were read back and
    compared whole, of `compared_bytes` of JSON; None where that was not asked for. `unreadable`: files that the
    operating system refuses, or that are damaged; what cannot be read of them counts nowhere.
    """

    project_name: str
    experiment_name: str
    target: str
    page: str = ""
    folder: str = ""
    trajectories: int = 0
    recorded: int = 0
    sent: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    unsent: int = 0
    failures: list[Failure] = field(default_factory=list)
    bytes: int = 0
    interrupted: int = 0
    orphans: int = 0
    marked_texts: int = 0
    moved: list[MovedField] = field(default_factory=list)
    missing_contents: int = 0
    stored_bytes: int = 0
    trajectories_to_send: int = 0
    fields_left_out: int = 0
    wandb: list[dict[str, str]] = field(default_factory=list)
    wandb_left: bool = False
    unlinked: int = 0
    unlinked_calls: list[dict[str, str]] = field(default_factory=list)
    without_link: Counter[str] = field(default_factory=Counter)
    why_without: dict[str, str] = field(default_factory=dict)
    feedback: int = 0
    notes: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    stopped: str = ""
    # what stopped it would do so again, as long as key, project and server are the same
    for_good: bool = False
    checked: int | None = None
    compared: int | None = None
    compared_bytes: int = 0
    more: int = 0
    lightened: int = 0
    differences: list[Difference] = field(default_factory=list)
    differing: Counter[str] = field(default_factory=Counter)

    def count(self, *, size: int, interrupted: bool, orphan: bool, marked_texts: int) -> None:
        """Count what is special about a call that was sent, or would be."""
        self.bytes += size
        self.interrupted += interrupted
        self.orphans += orphan
        self.marked_texts += marked_texts

    def fail(self, failure: Failure) -> None:
        """Count a call that did not arrive."""
        self.failed += 1
        if len(self.failures) < FAILURES_KEPT:
            self.failures.append(failure)

    def lacks_link(self, call_id: str, op: str, wandb_run: str) -> None:
        """Count a call that is stored without the link to its W&B run."""
        self.unlinked += 1
        if len(self.unlinked_calls) < FAILURES_KEPT:
            self.unlinked_calls.append({"id": call_id, "op": op, "wandb_run": wandb_run})

    def differ(self, difference: Difference) -> None:
        """Note a field that the server holds otherwise."""
        self.differing[difference.kind] += 1
        if len(self.differences) < FAILURES_KEPT:
            self.differences.append(difference)

    def since(self, earlier: RunReport) -> RunReport:
        """What this pass over a run and the `earlier` ones did together: what they sent is stored already for this."""
        known = min(earlier.sent, self.skipped[ALREADY_STORED])
        added = ("bytes", "interrupted", "orphans", "marked_texts", "missing_contents", "fields_left_out")
        return replace(
            self,
            sent=self.sent + known,
            skipped=self.skipped - Counter({ALREADY_STORED: known}),
            moved=earlier.moved + self.moved,
            lightened=earlier.lightened + self.lightened,
            feedback=earlier.feedback + self.feedback,
            without_link=earlier.without_link + self.without_link,
            why_without=earlier.why_without | self.why_without,
            **{name: getattr(earlier, name) + getattr(self, name) for name in added},
        )

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def key(self) -> tuple[str, ...]:
        """Which run, and where to."""
        return self.folder, self.project_name, self.experiment_name, self.target

    @property
    def to_send(self) -> int:
        """Calls that neither arrived, failed nor were skipped: what a dry run would send."""
        return self.recorded - self.sent - sum(self.skipped.values()) - self.failed

    @property
    def stored(self) -> int:
        """Calls that the server has, sent now or before."""
        return self.sent + self.skipped[ALREADY_STORED] + self.skipped[STORED_OTHERWISE]

    @property
    def waiting(self) -> int:
        """Calls that were asked for and that a later upload will send."""
        return sum(count for reason, count in self.skipped.items() if reason not in _NEVER_SENT)

    def as_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "project_name": self.project_name,
            "experiment_name": self.experiment_name,
            "target": self.target,
            "page": self.page,
            "folder": self.folder,
            "trajectories": self.trajectories,
            "recorded": self.recorded,
            "sent": self.sent,
            "stored": self.stored,
            "skipped": _plain(self.skipped),
            "failed": self.failed,
            "unsent": self.unsent,
            "to_send": self.to_send,
            "trajectories_to_send": self.trajectories_to_send,
            "bytes": self.bytes,
            "interrupted": self.interrupted,
            "orphans": self.orphans,
            "marked_texts": self.marked_texts,
            "missing_contents": self.missing_contents,
            "stored_bytes": self.stored_bytes,
            "fields_left_out": self.fields_left_out,
            "wandb": self.wandb,
            "wandb_left": self.wandb_left,
            "unlinked": self.unlinked,
            "unlinked_calls": self.unlinked_calls,
            "without_link": [
                {"attempt": attempt, "calls": count, "reason": self.why_without[attempt]}
                for attempt, count in sorted(self.without_link.items())
            ],
            "feedback": self.feedback,
            "moved": [vars(moved) for moved in self.moved],
            "failures": [vars(failure) for failure in self.failures],
            "stopped": self.stopped,
            "checked": self.checked,
            "compared": self.compared,
            "compared_bytes": self.compared_bytes,
            "more": self.more,
            "lightened": self.lightened,
            "differing": _plain(self.differing),
            "differences": [vars(difference) for difference in self.differences],
            "notes": self.notes,
        }


@dataclass
class UploadResult:
    """All runs of one upload. `unreadable`: files and folders that could not be read, so that calls may be missing;
    `unopened`: runs that could not be uploaded, and folders that hold none. `interrupted`: it was ended while it read,
    so that the counts are of what it had read. `estimate`: what it will come to, of a dry run."""

    runs: list[RunReport] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    unopened: list[Unopened] = field(default_factory=list)
    dry_run: bool = False
    seconds: float = 0.0
    interrupted: bool = False
    estimate: Estimate | None = None

    def since(self, earlier: UploadResult) -> UploadResult:
        """What this look at all runs and the `earlier` ones did together."""
        known = {report.key: report for report in earlier.runs}
        runs = [report.since(known[report.key]) if report.key in known else report for report in self.runs]
        return replace(self, runs=runs, seconds=earlier.seconds + self.seconds)

    @property
    def recorded(self) -> int:
        """Calls found in the files."""
        return sum(run.recorded for run in self.runs)

    @property
    def sent(self) -> int:
        """Calls that the server has confirmed in this upload."""
        return sum(run.sent for run in self.runs)

    @property
    def skipped(self) -> Counter[str]:
        """Calls that needed no sending or must wait, by reason."""
        return sum((run.skipped for run in self.runs), Counter())

    @property
    def failed(self) -> int:
        """Calls that did not arrive."""
        return sum(run.failed for run in self.runs)

    @property
    def waiting(self) -> int:
        """Calls that were asked for and that a later upload will send."""
        return sum(run.waiting for run in self.runs)

    @property
    def stopped(self) -> str:
        """Why an upload of a run ended before its time, "" when none did."""
        return next((run.stopped for run in self.runs if run.stopped), "")

    def as_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "dry_run": self.dry_run,
            "recorded": self.recorded,
            "sent": self.sent,
            "skipped": _plain(self.skipped),
            "failed": self.failed,
            "unreadable": self.unreadable,
            "unopened": [vars(unopened) for unopened in self.unopened],
            "seconds": round(self.seconds, 3),
            "interrupted": self.interrupted,
            "estimate": None if self.estimate is None else self.estimate.as_json(),
            "runs": [run.as_json() for run in self.runs],
        }


def _plain(counts: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items()) if count}
