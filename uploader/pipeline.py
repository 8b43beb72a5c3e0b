"""A path -> all its calls on a Weave server: find runs, resolve where they go, then replay one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..reader import Run, closed_folders, find_runs
from ..reader.places import archive_at
from ..reader.runs import UNKNOWN
from ..reader.unknown_names import look_for_names, unknown_names
from ..schemas.errors import BadFilter, CannotStart
from ..schemas.redaction import KeyPatterns
from .access import open_target
from .check import CHECKS
from .choose import Choosing
from .estimate import FREE_MONTH, estimate, last_rate
from .folders import folders_without_runs, why_unreadable
from .follow import Seen
from .follow import follow as follow_path
from .ledger import state_folder
from .lessen import Lessen
from .network import one_network
from .replay import WORKERS, Options, measure, replay, settling_of
from .result import RunReport, Unopened, UploadResult
from .settle import SETTLE, HasScore, Settling, has_score
from .target import Target, split_project
from .wandb_options import WandbOptions

__all__ = ["upload"]

Progress = Callable[[UploadResult], None]
# Recorded project name -> where its calls go.
_Targets = dict[str | None, Target]


def upload(
    path: str | Path,
    *,
    entity: str | None = None,
    project: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    workers: int = WORKERS,
    max_wait: float = 300.0,
    settle: float = SETTLE,
    partial: bool = False,
    check: str = "counts",
    state_dir: str | Path | None = None,
    fail_fast: bool = False,
    redact: Sequence[str] = (),
    choosing: Choosing | None = None,
    drop_fields: str | Sequence[str] = (),
    max_field: int | None = None,
    wandb: WandbOptions | None = None,
    feedback: bool = False,
    has_score: HasScore = has_score,
    quota: int = FREE_MONTH,
    follow: float | None = None,
    stop: threading.Event | None = None,
) -> UploadResult:
    """Replay every run at `path` into its Weave project. Calls that the server has already are not sent again.

    `progress` is called, from any thread, with the result so far. `workers`: requests under way at once. `max_wait`:
    seconds for which a request may fail before the upload gives up. `settle`: seconds of silence after which nothing
    more is awaited of a trajectory; `has_score` says whether its score is there. `partial`: wait for no missing
    segment. `check`: `none`, `counts` or `deep`. `state_dir`: where to remember what is stored. `fail_fast`: nothing is
    sent unless every run and folder at `path` can be uploaded. `redact`: patterns of keys whose values are left out.
    `choosing`: which trajectories, by default all. `drop_fields` (names) and `max_field` (bytes) leave fields out.
    `wandb`: what to do about the W&B runs that belong to it. `feedback`: give rewards as feedback, too. `quota`:
    bytes a month, of which a dry run says how much it would take (`UploadResult.estimate`). `follow`: look again every
    so many seconds until the runs have ended, or until `stop` is set (see `follow`).

    Memory is bounded by a few requests of 8 MiB for each worker and about 200 bytes a trajectory.

    Raises:
        NotARun: there are no span files.
        MissingExtra, CannotStart: nothing was sent.
        BadFilter: the same, since no run has such an attempt, or no trajectory such a name as `where` asks for.
    """
    if check not in CHECKS:
        raise CannotStart(f"no such check: {check!r}", hint=f"one of {', '.join(CHECKS)}")
    options = Options(
        workers=max(1, workers),
        max_wait=max_wait,
        settle=settle,
        partial=partial,
        check=check,
        state_dir=Path(state_dir) if state_dir is not None else None,
        redact=KeyPatterns(redact) if redact else None,
        choosing=choosing or Choosing(),
        lessen=Lessen.of(drop_fields, max_field),
        wandb=wandb or WandbOptions(),
        feedback=feedback,
        has_score=has_score,
        names_first=follow is None,
    )
    if follow is not None:
        _check_follow(options.choosing, dry_run=dry_run)
    path, progress = Path(path), progress or (lambda _: None)
    targets: _Targets = {}

    def look(progress: Progress, final: bool) -> Seen:
        passing = options if final else options.between()
        return _Upload(path, entity, project, dry_run, passing, fail_fast, progress, targets).look()

    with one_network():
        if follow is not None:
            result = follow_path(path, look, every=follow, stop=stop or threading.Event(), progress=progress)
            _note_unknown_names(options.choosing, result, ended=True)
            return result
        result, ended = look(progress, True)
        _note_unknown_names(options.choosing, result, ended=ended)
        if dry_run:
            result.estimate = estimate(result, quota, last_rate(state_folder(options.state_dir)))
        return result


def _note_unknown_names(choosing: Choosing, result: UploadResult, *, ended: bool) -> None:
    """What was sent cannot be taken back: then a name that no trajectory has is no error any more, but a note."""
    try:
        words = unknown_names(choosing.filters, ended=ended)
    except BadFilter as error:
        words = f"{error} ({error.hint})"
    if words and result.runs:
        result.runs[-1].note(words)


def _check_follow(choosing: Choosing, *, dry_run: bool) -> None:
    if dry_run:
        raise CannotStart("a dry run has nothing to follow", hint="say --dry-run or --follow")
    if choosing.limit is not None or choosing.budget is not None:
        raise CannotStart(
            "--limit and --budget choose among all trajectories of a run, and a run that is followed has not ended",
            hint="--sample-rate and the filters choose as it grows; or upload with a budget when it has ended",
        )


class _Upload:
    def __init__(
        self,
        path: Path,
        entity: str | None,
        project: str | None,
        dry_run: bool,
        options: Options,
        fail_fast: bool,
        progress: Progress,
        targets: _Targets,
    ) -> None:
        self._path = path
        self._entity = entity
        self._project = project
        self._options = options
        self._fail_fast = fail_fast
        self._result = UploadResult(dry_run=dry_run)
        self._progress = progress
        # those that have answered serve the next look, too
        self._good_targets = targets
        self._targets: dict[str | None, Target | CannotStart] = {**targets}
        self._errors: list[CannotStart] = []

    def look(self) -> Seen:
        try:
            return self._look()
        finally:
            # the next look may be minutes away
            self._disconnect()

    def _disconnect(self, but: Target | None = None) -> None:
        """Close the connections for all projects but this one: there may be many, each with as many as workers."""
        for target in self._targets.values():
            if isinstance(target, Target) and target is not but:
                target.http.close()

    def _look(self) -> Seen:
        began = time.monotonic()
        result = self._result
        runs = find_runs(self._path)
        closed = closed_folders(self._path)
        for folder in folders_without_runs(self._path, runs):
            inside = [name for name in closed if name.startswith(f"{folder}/")]
            closed = [name for name in closed if name not in inside]
            reasons = [name.removeprefix(f"{folder}/") for name in inside]
            result.unopened.append(Unopened(str(folder), "; ".join(reasons) or "no span files in it"))
        result.unreadable += closed + self._damaged_on_the_way()
        if self._fail_fast:
            self._stop_at(result.unreadable, result.unopened)
        # before reading: a process that ends meanwhile must not look as if it had left its calls unfinished
        settling = {id(run): settling_of(run, self._options) for run in runs}
        # every target is resolved before the first call is sent: a second run's bad name must not surprise half-way
        opened = [(run, target) for run in runs for target in self._open(run)]
        if not opened:
            # with nothing to be done at all, it is the command that failed
            raise self._errors[0]
        self._look_for_names([run for run, _ in opened], ended=all(found.ended for found in settling.values()))
        gone: dict[str, str] = {}
        for run, target in opened:
            if target is not None and target.project_id in gone:
                result.unopened.append(Unopened(str(run.folder), f"not begun: {gone[target.project_id]}"))
                continue
            self._disconnect(but=target)
            report = self._one(run, target, settling[id(run)])
            if report.stopped and target is not None:
                gone[target.project_id] = report.stopped
            result.seconds = time.monotonic() - began
        if gone:
            # whether it is the server or the key is asked when the next look begins
            self._good_targets.clear()
        return Seen(result, all(found.ended for found in settling.values()))

    def _look_for_names(self, runs: Sequence[Run], *, ended: bool) -> None:
        """Before anything is sent or synced; not of runs that are followed, to which names may still come."""
        if self._options.names_first and not self._options.wandb.only:
            filters = self._options.choosing.filters
            look_for_names(filters, runs)
            unknown_names(filters, ended=ended)

    def _damaged_on_the_way(self) -> list[str]:
        """Files of a packed run whose checksum says that they are not what was packed."""
        packed = archive_at(self._path)
        return [] if packed is None else [f"{packed[0].path}: {problem}" for problem in packed[0].check()]

    def _one(self, run: Run, target: Target | None, settling: Settling) -> RunReport:
        result = self._result
        report = self._report(run, target)
        result.runs.append(report)
        tell = lambda: self._progress(result)  # noqa: E731
        if target is None:
            measure(run, report, settling, self._options, tell)
        else:
            replay(run, report, target, settling, self._options, tell)
        result.unreadable += report.unreadable
        return report

    def _open(self, run: Run) -> list[Target | None]:
        """The target of the run, None in a dry run; nothing when it has none, which is noted."""
        name = None if run.project_name == UNKNOWN else run.project_name
        try:
            if self._result.dry_run:
                split_project(name, self._entity, self._project)
                return [None]
            if name not in self._targets:
                self._targets[name] = self._resolve(name)
            target = self._targets[name]
            if isinstance(target, CannotStart):
                raise target
            self._good_targets[name] = target
            self._disconnect(but=target)
        except CannotStart as error:
            # only its project's name was looked for in its files
            unreadable = why_unreadable(run) if self._project is None else ""
            reason = unreadable or str(error)
            if self._fail_fast:
                raise CannotStart(f"{run.folder}: {reason}", hint=error.hint) from None
            self._errors.append(CannotStart(f"{run.folder}: {reason}", hint=error.hint) if unreadable else error)
            self._result.unopened.append(Unopened(str(run.folder), reason))
            return []
        return [target]

    def _resolve(self, name: str | None) -> Target | CannotStart:
        try:
            return open_target(name, entity=self._entity, project=self._project, max_wait=self._options.max_wait)
        except CannotStart as error:
            return error

    def _report(self, run: Run, target: Target | None) -> RunReport:
        if target is not None:
            return RunReport(
                run.project_name, run.experiment_name, target.project_id, target.page, folder=str(run.folder)
            )
        recorded = None if run.project_name == UNKNOWN else run.project_name
        name = split_project(recorded, self._entity, self._project)
        owner = name.entity or "(default entity)"
        return RunReport(run.project_name, run.experiment_name, f"{owner}/{name.project}", folder=str(run.folder))

    def _stop_at(self, unreadable: list[str], unopened: list[Unopened]) -> None:
        for name in unreadable:
            raise CannotStart(f"cannot be read: {name}", hint="nothing was sent, as --fail-fast says")
        for found in unopened:
            raise CannotStart(f"{found.name}: {found.reason}", hint="nothing was sent, as --fail-fast says")
