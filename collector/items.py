"""What of a folder of runs is not at its destination yet."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..schemas.files import (
    ATTEMPT_PREFIX,
    PRUNED_PREFIX,
    SIDE_SUFFIX,
    TMP_SUFFIX,
    WANDB_PREFIX,
    parse_segment_name,
)
from .pruned import notes_in, notes_to_bring, pruned_files, stays

__all__ = ["Item", "items_of", "run_folders", "sealed_form", "whole_item"]

# Files that say something of the run.
_NOTES = (ATTEMPT_PREFIX, PRUNED_PREFIX, WANDB_PREFIX)

# Of the file system itself, for root alone.
_NO_RUN = "lost+found"

# `whole`: published by rename and never changed; `grows`: appended to, so that its beginning is what it was
Kind = Literal["whole", "grows"]


@dataclass(frozen=True)
class Item:
    """A file to be brought to `target`. `size` bytes of it are there to be read; `done` of them are at the target.

    `is_lines`: only whole lines count. `twin`: the raw form that lies at the target until this sealed one has arrived;
    `sealed`: where the sealed form of this raw one is going to be.
    """

    source: Path
    target: Path
    kind: Kind
    size: int
    modified_ns: int
    done: int = 0
    is_lines: bool = False
    twin: Path | None = None
    sealed: Path | None = None

    @property
    def left(self) -> int:
        """Bytes that are still to be brought."""
        return max(0, self.size - self.done)

    @property
    def urgency(self) -> tuple[int, int, int, int]:
        """Smaller is sooner, when there is no time for all: what grows holds the newest records; then newest, smallest.

        Contents go before the lines that refer to them, and a later segment of a process before the one that says that
        it goes on there.
        """
        order = 0 if self.kind == "grows" and not self.is_lines else 1 if self.kind == "grows" else 2
        return (order, -(self.modified_ns // 10**9), -self.index, self.left)

    @property
    def index(self) -> int:
        """Of a segment, 0 of anything else."""
        segment = parse_segment_name(self.source)
        return segment.index if segment is not None else 0


def run_folders(source: Path, failures: list[tuple[str, str]]) -> list[tuple[Path, Path]]:
    """The folders with files of runs at `source`, itself or right below, and where they are within it.

    Folders below that cannot be listed go to `failures`, with the reason.

    Raises:
        OSError: `source` cannot be listed.
    """
    found = [(source, Path())] if any(_concerns(name) for name in os.listdir(source)) else []
    with os.scandir(source) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir())
    # a run's folder that was given itself keeps its name at the destination
    found = [(folder, Path(Path(os.path.abspath(source)).name)) for folder, _ in found]
    for name in folders:
        try:
            if any(map(_concerns, os.listdir(source / name))):
                found.append((source / name, Path(name)))
        except FileNotFoundError:
            # removed since it was listed
            continue
        except OSError as error:
            if name != _NO_RUN:
                failures.append((str(source / name), error.strerror or str(error)))
    return found


def _concerns(name: str) -> bool:
    return parse_segment_name(name) is not None or name.startswith(_NOTES)


def items_of(folder: Path, target: Path, failures: list[tuple[str, str]], kept: list[Path]) -> Iterator[Item]:
    """The files of one run's folder that are not, or not whole, at `target`; those that cannot be asked for go to
    `failures`, with the reason. Segments that were pruned here, and stay at `target` as they are there, go to `kept`.

    Sizes are taken before anything is copied, those of segments first: contents are written before the lines that
    refer to them, so that whatever the lines refer to is within the sizes of the side files taken after. Segments are
    listed twice: a process opens its next one before it says in the last that it goes on there.
    """
    names = sorted(name for name in os.listdir(folder) if not name.endswith(TMP_SUFFIX))
    found = _stat_all(folder, [name for name in names if parse_segment_name(name) is not None], failures)
    again = [name for name in os.listdir(folder) if parse_segment_name(name) is not None and name not in set(names)]
    found |= _stat_all(folder, again, failures)
    found |= _stat_all(folder, [name for name in names if parse_segment_name(name) is None], failures)
    # a note is written before the files that it tells of change: none of those that are in `found` is overlooked
    notes = notes_in(folder, lenient=True)
    deleted = pruned_files(target, notes)
    unneeded = {note.name for note in notes} - notes_to_bring(notes, target)
    for name, status in found.items():
        if name in deleted or name in unneeded:
            continue
        item = _item(folder / name, target / name, status)
        if item is None or _is_done(item):
            continue
        try:
            # what is pruned here is not thereby deleted there
            if item.twin is not None and stays(item.target, item.twin, item.source):
                kept.append(item.source)
                continue
        except FileNotFoundError:
            # by another pass, which has brought it, or removed it here
            continue
        except OSError as error:
            failures.append((str(error.filename or item.source), error.strerror or str(error)))
            continue
        yield item


def whole_item(source: Path, target: Path) -> Item | None:
    """A sealed segment that is there already, to be brought again; None of what is no file.

    Raises:
        FileNotFoundError: it is not here any more.
    """
    return _item(source, target, os.stat(source))


def sealed_form(item: Item) -> Item | None:
    """The sealed form of a raw segment that was sealed since it was listed; None where there is none."""
    if item.sealed is None:
        return None
    source = item.source.with_name(f"{item.source.name}.zst")
    try:
        return _item(source, item.sealed, os.stat(source))
    except FileNotFoundError:
        return None


def _stat_all(folder: Path, names: list[str], failures: list[tuple[str, str]]) -> dict[str, os.stat_result]:
    """The files of these names; a raw segment that was sealed since it was listed under the name that it has now."""
    found = {}
    for name in names:
        try:
            try:
                status = os.stat(folder / name)
            except FileNotFoundError:
                name += ".zst"
                status = os.stat(folder / name)
        except FileNotFoundError:
            continue
        except OSError as error:
            failures.append((str(folder / name), error.strerror or str(error)))
        else:
            found[name] = status
            if _concerns(name) and not stat.S_ISREG(status.st_mode):
                failures.append((str(folder / name), "is no regular file"))
    return found


def _item(source: Path, target: Path, status: os.stat_result) -> Item | None:
    # what has vanished since is looked for under its other name when it is to be brought
    if not stat.S_ISREG(status.st_mode):
        return None
    segment = parse_segment_name(source)
    if segment is not None and segment.sealed:
        twin = target.with_name(target.name.removesuffix(".zst"))
        return Item(source, target, "whole", status.st_size, status.st_mtime_ns, twin=twin)
    if segment is not None:
        sealed = target.with_name(f"{target.name}.zst")
        if sealed.exists():
            # a pass that was interrupted between the two: the sealed form holds all of it
            return None
        done = _size(target)
        return Item(source, target, "grows", status.st_size, status.st_mtime_ns, done, is_lines=True, sealed=sealed)
    if source.suffix == SIDE_SUFFIX:
        return Item(source, target, "grows", status.st_size, status.st_mtime_ns, _size(target))
    if _concerns(source.name):
        return Item(source, target, "whole", status.st_size, status.st_mtime_ns)
    return None


def _is_done(item: Item) -> bool:
    if item.kind == "grows":
        return item.done >= item.size
    try:
        status = os.stat(item.target)
    except FileNotFoundError:
        return False
    # seconds: not every shared file system keeps nanoseconds
    return status.st_size == item.size and status.st_mtime_ns // 10**9 == item.modified_ns // 10**9


def _size(path: Path) -> int:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return 0
    # what is no file cannot be written, and is told when that is tried
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
