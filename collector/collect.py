"""A pass over a folder of runs: everything that is not at the destination yet is brought there.

Many nodes, and many passes, may work into one destination at once: every file belongs to one writer and has the same
name everywhere. With `move`, what has arrived whole, was compared, and cannot change any more is removed here.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..recorder import node_name, seal_dead
from ..schemas.errors import BadTarget
from ..schemas.files import SIDE_SUFFIX, parse_segment_name
from .items import Item, items_of, run_folders, sealed_form
from .temporary import remove_abandoned, token_of
from .transfer import Differs, OutOfTime, Pace, digest_of, transfer

__all__ = ["Report", "collect"]


@dataclass
class Report:
    """What a pass did on this node. Counts of files; bytes that were moved; `left` did not get their turn in time.

    `failures`: file and reason. `sealed`: raw files of dead processes that were compressed here first.
    """

    host: str = field(default_factory=node_name)
    copied: int = 0
    extended: int = 0
    sealed: int = 0
    removed: int = 0
    size: int = 0
    left: int = 0
    left_size: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "failures": [{"file": name, "reason": reason} for name, reason in self.failures]}

    def add(self, other: Report) -> None:
        """Take in a later pass: what it moved adds up, what it left is what is left."""
        for name in ("copied", "extended", "sealed", "removed", "size"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.left, self.left_size, self.failures = other.left, other.left_size, other.failures


def collect(source: str | Path, target: str | Path, *, move: bool = False, pace: Pace | None = None) -> Report:
    """Bring what is at `source` (a run's folder, or a folder of such) to `target`, a folder of runs. Repeatable.

    Raises:
        OSError: `source` cannot be listed, or `target` cannot be made.
        BadTarget: a run of `source` lies where it would be brought to.
    """
    source, target, pace = Path(source), Path(target), pace or Pace()
    report = Report()
    token = token_of(report.host)
    items: list[Item] = []
    folders = run_folders(source)
    for folder, name in folders:
        _two_places(folder, target / name)
    for folder, name in folders:
        (target / name).mkdir(parents=True, exist_ok=True)
        try:
            if pace.deadline is None:
                # with a deadline there is no time for compressing: the raw files go as they are
                report.sealed += sum(found.outcome == "sealed" for found in seal_dead(folder))
            items += items_of(folder, target / name)
            if move:
                _remove(folder, target / name, report)
        except FileNotFoundError:
            # the run was removed here since it was listed; anything else that has vanished is at the destination
            if folder.exists():
                raise
        remove_abandoned(target / name, report.host)
    for item in sorted(items, key=lambda item: item.urgency):
        _bring(item, pace, token, report)
        if move and item.kind == "whole":
            _remove_one(item, report)
    for folder, name in folders if move and pace.deadline is None else ():
        if folder.exists():
            _remove_side_files(folder, target / name, report)
    return report


def _two_places(folder: Path, target: Path) -> None:
    """With `move` a run that is its own copy would be gone: by another path, a link or a second mount, too."""
    if target.exists() and os.path.samefile(folder, target):
        raise BadTarget(f"{folder} and {target} are the same folder", hint="let DEST be a folder elsewhere")


def _bring(item: Item, pace: Pace, token: str, report: Report) -> None:
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
        elif sealed is not None:
            # now, since what is there of the process's next segment says that this one is whole
            _bring(sealed, pace, token, report)
    except (OSError, Differs) as error:
        report.failures.append((str(item.source), getattr(error, "strerror", None) or str(error)))
        report.left += 1
        report.left_size += item.left
    else:
        report.size += moved
        report.copied += item.kind == "whole"
        report.extended += item.kind == "grows" and moved > 0


def _remove(folder: Path, target: Path, report: Report) -> None:
    """Remove what an earlier pass brought whole."""
    pending = {item.source for item in items_of(folder, target)}
    for path in sorted(folder.glob("*.jsonl.zst")):
        if path not in pending and (target / path.name).exists():
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
            if arrived.stat().st_size == path.stat().st_size and digest_of(arrived) == digest_of(path):
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
        if os.stat(item.target).st_size == os.stat(item.source).st_size:
            os.unlink(item.source)
            report.removed += 1
    except OSError:
        return
