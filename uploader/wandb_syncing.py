"""One W&B run -> W&B's server: its offline folders, in order, each once, and what became of them in the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..schemas.errors import MissingExtra
from ..wandb_runs.copies import copies_among
from ..wandb_runs.extent import Extent, extent_of
from ..wandb_runs.offline import OfflineRun
from ..wandb_runs.sync import Synced, make_known, sync

if TYPE_CHECKING:
    from .result import RunReport
    from .settle import Settling
    from .target import Target
    from .wandb_options import WandbOptions

__all__ = ["Arrival", "Syncing"]

_GROWN = "its log is newer than wandb's mark; wandb sync --include-synced would send all of its rows once more"
_NOTHING = "there is no run in its log: it was killed before anything was written"
_FOLLOWS = "it is known to the server; its metrics follow, by the same command, once it has ended"


@dataclass(frozen=True)
class Arrival:
    """Whether a W&B run can be linked. `missing`: why it is not on the server yet; `empty`: why it never will be."""

    missing: str = ""
    empty: str = ""


class Syncing:
    """The W&B runs of one recorded run. Without a target (a dry run) nothing is sent."""

    def __init__(
        self,
        target: Target | None,
        options: WandbOptions,
        settling: Settling,
        report: RunReport,
        tell: Callable[[], None],
    ) -> None:
        self._target = target
        self._options = options
        self._settling = settling
        self._report = report
        self._tell = tell

    def bring(self, folders: Sequence[OfflineRun], attempts: Sequence[str]) -> Arrival:
        """Sync the folders of one run, the parts of it, oldest first. A run without any is elsewhere, or was online."""
        there = not folders
        missing = empty = ""
        alive = any(self._settling.alive(attempt) for attempt in attempts)
        copies = copies_among(folders)
        folders = [found for found in folders if found.folder not in copies]
        for folder, original in copies.items():
            told = {"run_id": original.run_id, "folder": str(folder), "state": "a copy"}
            self._report.wandb.append({**told, "reason": f"of {original.folder}, which counts"})
        for found in folders:
            told = {"run_id": found.run_id, "folder": str(found.folder), "state": ""}
            self._report.wandb.append(told)
            if found.synced:
                there = True
                told |= {"state": "synced before", **({"reason": _GROWN} if found.grown else {})}
                continue
            if missing:
                # rows are appended in the order in which they come
                told |= {"state": "waits", "reason": "an earlier part of this run is not there yet"}
                self._report.wandb_left = True
                continue
            if self._options.later and found.folder in self._options.known:
                there = True
                told |= {"state": "still being written", "reason": _FOLLOWS}
                continue
            try:
                extent = self._extent_of(found)
            except OSError as error:
                missing = self._failed(found, told, f"its log cannot be read: {error.strerror or error}")
                continue
            # of a run of several parts only the last one may go on
            live = not extent.ended and (self._settling.within(found.quiet()) or (alive and found is folders[-1]))
            if extent.foreign:
                missing = self._failed(found, told, f"{found.log.name} is no log of W&B's")
            elif not extent.run and live:
                told |= {"state": "empty", "reason": "there is nothing in its log yet"}
                missing = f"there is nothing yet in the log of W&B run {found.run_id}"
                self._report.wandb_left = True
            elif not extent.run:
                told |= {"state": "empty", "reason": _NOTHING}
                empty = f"W&B run {found.run_id} cannot be synced: {_NOTHING}"
            elif self._target is None:
                there = True
                told["state"] = "still being written" if live else "would be synced"
            else:
                missing = self._send(found, extent, self._target, told, known=there, live=live)
                there = there or not missing
        # a run of which a part is there can be linked
        return Arrival() if there else Arrival(missing, "" if missing else empty)

    def _send(
        self, found: OfflineRun, extent: Extent, target: Target, told: dict[str, str], *, known: bool, live: bool
    ) -> str:
        """Why it did not arrive, or ""."""
        told["state"] = "being synced"
        self._tell()
        entity = found.entity or target.entity
        # a run without a project would go to wandb's default one
        project = None if found.project else target.project
        patience = self._options.patience
        try:
            if not live:
                done = sync(found, entity=entity, project=project, patience=patience, extent=extent)
            elif known:
                done = Synced(found, True)
            else:
                done = make_known(found, extent, entity=entity, project=project, patience=patience)
        except OSError as error:
            done = Synced(found, False, f"wandb sync could not be started: {error}")
        if not done.done:
            return self._failed(found, told, done.reason, done.output)
        if live:
            self._options.known.add(found.folder)
            self._report.wandb_left = True
            told |= {"state": "still being written", "reason": _FOLLOWS}
        else:
            told["state"] = "synced"
            if done.partial:
                told["reason"] = f"{done.partial}; what is in its log has arrived"
        return ""

    def _failed(self, found: OfflineRun, told: dict[str, str], reason: str, output: str = "") -> str:
        told |= {"state": "failed", "reason": reason, **({"output": output} if output else {})}
        self._report.wandb_left = True
        return f"W&B run {found.run_id} was not synced: {reason}"

    def _extent_of(self, found: OfflineRun) -> Extent:
        try:
            return extent_of(found)
        except ImportError:
            if self._target is None:
                return Extent(1, 1, 1, ended=True)
            raise MissingExtra("upload", "upload", "wandb") from None
