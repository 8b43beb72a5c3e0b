"""A pass over a folder of runs: everything that is not at the destination yet is brought there.

Many nodes, and many passes, may work into one destination at once: every file belongs to one writer and has the same
name everywhere. With `move`, what has arrived whole, was compared, and cannot change any more is removed here.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..recorder import node_name
from ..recorder.leftovers import iter_raw
from ..schemas.files import SIDE_SUFFIX, parse_segment_name
from .items import Item, items_of, run_folders, sealed_form, whole_item
from .pruned import has_all_of, is_rewritten, notes_in, pruned_files
from .temporary import remove_abandoned, token_of
from .transfer import Differs, OutOfTime, Pace, digest_of, transfer
from .twins import remove_twins

__all__ = ["Report", "collect"]


@dataclass
class Report:
    """What a pass did on this node. Counts of files; bytes that were moved; `left` did not get their turn in time.

    `failures`: file and reason. `sealed`: raw files of dead processes that were compressed here first. `kept`: segments
    that `prune` has written anew here, and that stay at the destination as they are there.
    """

    host: str = field(default_factory=node_name)
    copied: int = 0
    extended: int = 0
    sealed: int = 0
    removed: int = 0
    kept: int = 0
    size: int = 0
    left: int = 0
    left_size: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        # names of files may be bytes that are no text
        failures = [{"file": _utf8(name), "reason": _utf8(reason)} for name, reason in self.failures]
        return {**vars(self), "host": _utf8(self.host), "failures": failures}

    def add(self, other: Report) -> None:
        """Take in a later pass: what it moved adds up, what it left is what is left."""
        for name in ("copied", "extended", "sealed", "removed", "size"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.left, self.left_size, self.failures = other.left, other.left_size, other.failures
        self.kept = other.kept


def collect(source: str | Path, target: str | Path, *, move: bool = False, pace: Pace | None = None) -> Report:
    """Bring what is at `source` (a run's folder, or a folder of such) to `target`, a folder of runs. Repeatable.

    A run's folder, or a file, that cannot be read or written is a failure in the report and does not keep the others.

    Raises:
        OSError: `source` cannot be listed, `target` cannot be made, or they are the same folder.
    """
    source, target, pace = Path(source), Path(target), pace or Pace()
    report = Report()
    token = token_of(report.host)
    items: list[Item] = []
    folders = []
    found = run_folders(source, report.failures)
    target.mkdir(parents=True, exist_ok=True)
    if source.samefile(target):
        raise OSError(errno.EINVAL, "is source and destination at once: there is nothing to collect", str(source))
    for folder, name in found:
        try:
            items += _look(folder, target / name, pace, report)
            folders.append((folder, target / name))
        except OSError as error:
            # that the run was removed here since it was listed is no failure
            if folder.exists():
                report.failures.append((str(error.filename or folder), error.strerror or str(error)))
    for item in sorted(items, key=lambda item: item.urgency):
        if _bring(item, pace, token, report) and move and item.kind == "whole":
            _remove_one(item, report)
    brought = {item.source for item in items}
    for folder, there in folders if move else ():
        if folder.exists():
            _remove(folder, there, brought, pace, token, report)
            if pace.deadline is None:
                _remove_side_files(folder, there, report)
    return report


def _look(folder: Path, target: Path, pace: Pace, report: Report) -> list[Item]:
    """What of a run is to be brought, after the files of dead processes were compressed."""
    target.mkdir(parents=True, exist_ok=True)
    if folder.samefile(target):
        raise OSError(errno.EINVAL, "is its own destination: there is nothing to collect", str(folder))
    # with a deadline there is no time for compressing: the raw files go as they are
    for raw in iter_raw(folder) if pace.deadline is None else ():
        report.sealed += raw.outcome == "sealed"
        if pace.over:
            break
    kept: list[Path] = []
    items = list(items_of(folder, target, report.failures, kept))
    report.kept += len(kept)
    remove_abandoned(target, report.host)
    remove_twins(target)
    return items


def _bring(item: Item, pace: Pace, token: str, report: Report) -> bool:
    """Bring one file; whether it is there now, compared with what is here."""
    try:
        if pace.over:
            raise OutOfTime
        moved = transfer(item, pace, token)
    except OutOfTime:
        report.left += 1
        report.left_size += item.left
    except FileNotFoundError:
        sealed = sealed_form(item)
        if item.source.exists():
            report.failures.append((str(item.source), "its destination has vanished"))
        elif sealed is not None and not sealed.target.exists():
            # now, since what is there of the process's next segment says that this one is whole
            return _bring(sealed, pace, token, report)
    except (OSError, Differs) as error:
        report.failures.append((str(item.source), getattr(error, "strerror", None) or str(error)))
        report.left += 1
        report.left_size += item.left
    else:
        report.size += moved
        report.copied += item.kind == "whole"
        report.extended += item.kind == "grows" and moved > 0
        return True
    return False


def _remove(folder: Path, target: Path, brought: set[Path], pace: Pace, token: str, report: Report) -> None:
    """Remove what an earlier pass, or somebody else, brought whole: compared now, and brought again if it differs,
    unless `prune` is why."""
    pruned = pruned_files(target, notes_in(folder, lenient=True))
    for path in sorted(folder.glob("*.jsonl.zst")):
        arrived = target / path.name
        if pace.over:
            return
        if path in brought or parse_segment_name(path) is None:
            continue
        try:
            if path.samefile(arrived):
                continue
            item = whole_item(path, arrived)
            # of what was written anew there, with less in it, a Weave project holds the rest
            same = path.name in pruned or digest_of(arrived) == digest_of(path)
            if not same and is_rewritten(path):
                same, item = has_all_of(arrived, path), None
                if not same:
                    why = f"was pruned here, and {arrived} lacks some of what is left in it; both were kept"
                    report.failures.append((str(path), why))
        except FileNotFoundError:
            # pruned there, or removed here by another pass
            continue
        except OSError as error:
            report.failures.append((str(error.filename or path), error.strerror or str(error)))
            continue
        if same or (item is not None and _bring(item, pace, token, report)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                report.removed += 1


def _remove_side_files(folder: Path, target: Path, report: Report) -> None:
    """Remove the contents of processes that have nothing else here any more: they were appended, so compare them."""
    writers = {name.writer for name in map(parse_segment_name, os.listdir(folder)) if name is not None}
    for path in sorted(folder.glob(f"*{SIDE_SUFFIX}")):
        if path.name.partition(".")[0] in writers:
            continue
        arrived = target / path.name
        try:
            there, here = arrived.stat(), path.stat()
            if os.path.samestat(there, here) or there.st_size != here.st_size:
                continue
            if digest_of(arrived) == digest_of(path):
                path.unlink()
                report.removed += 1
        except FileNotFoundError:
            # another pass has removed it
            continue
        except OSError as error:
            report.failures.append((str(path), error.strerror or str(error)))


def _remove_one(item: Item, report: Report) -> None:
    """Remove a sealed segment that has just arrived: `transfer` has compared it."""
    if item.twin is None:
        # markers are small, and tell the next process of this node what was announced
        return
    try:
        there, here = os.stat(item.target), os.stat(item.source)
        if there.st_size == here.st_size and not os.path.samestat(there, here):
            os.unlink(item.source)
            report.removed += 1
    except OSError:
        return


def _utf8(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()
