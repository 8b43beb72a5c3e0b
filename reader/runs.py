"""Which runs lie in a folder: files -> writers -> runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..schemas.errors import NotARun
from ..schemas.files import RAW_SUFFIX, parse_segment_name, parse_side_file_name
from .contents import file_size, side_files
from .places import NO_FILE, archive_at, folders_in, is_file, is_folder, list_files, may_be_read
from .pruned import pruned_folders, pruned_notes, pruned_words
from .segments import Damage
from .writers import Segment, State, Writer

__all__ = ["UNKNOWN", "Run", "Segment", "State", "Writer", "closed_folders", "find_runs"]

# Project and experiment of files whose header is lost and whose folder does not tell.
UNKNOWN = "unknown"

# What is wrong with a file that ends as span files do: they say in their names whose they are.
_NOT_NAMED_SO = "not named as a span file is, <writer>.<5 digits>.jsonl or .jsonl.zst"
_NAMES = "rename it back if it is one; <writer> is <UTC start>-<node>-<pid>-<12 hex digits>"

_Segments = dict[tuple[str, int], Segment]


@dataclass
class Run:
    """All files of one (project, experiment) in one folder."""

    project_name: str
    experiment_name: str
    folder: Path
    writers: list[Writer]
    # All that was recorded until then is in the files that were found; of what came later some may be. UTC.
    as_of: str = ""
    # What has a segment's name in this folder and is no file; of several runs, the first one has it.
    passed_over: list[Damage] = field(default_factory=list)

    @property
    def writing(self) -> int:
        """How many processes may still write."""
        return sum(writer.live for writer in self.writers)

    @property
    def state(self) -> State:
        """Live if one writer is, else torn if one is, else closed."""
        states = {writer.state for writer in self.writers}
        return "live" if "live" in states else "torn" if "torn" in states else "closed"

    @property
    def stored_bytes(self) -> int:
        """Bytes on disk."""
        return sum(segment.stored_bytes for writer in self.writers for segment in writer.segments) + self.content_bytes

    @property
    def content_bytes(self) -> int:
        """Bytes of side files."""
        # the folder is listed once, not by each writer
        folders = {writer.segments[0].folder: None for writer in self.writers}
        of_run = {writer.id for writer in self.writers}
        found = ((parse_side_file_name(path), path) for folder in folders for path in side_files(folder))
        return sum(file_size(path) for parsed, path in found if parsed is not None and parsed[0] in of_run)

    @property
    def attempts(self) -> list[str]:
        """Attempts in the order in which they started."""
        began: dict[str, str] = {}
        for writer in self.writers:
            began[writer.attempt] = min(writer.started_at, began.get(writer.attempt, writer.started_at))
        return sorted(began, key=lambda attempt: (began[attempt], attempt))


def find_runs(path: str | Path) -> list[Run]:
    """The runs at `path`: a run's folder, a folder of such folders, or one span file. Ordered by folder and names.

    Folders below `path` that cannot be read, or vanish meanwhile, are passed over unless there is nothing else.

    Raises:
        NotARun: the path does not exist, cannot be read, or holds no span files at any of these places.
    """
    path = Path(path)
    name = parse_segment_name(path)
    if name is not None and is_file(path):
        segment = Segment(path.parent, name.writer, name.index, raw=not name.sealed, sealed=name.sealed)
        return _group(path.parent, [Writer(name.writer, [segment])], _now())
    if not is_folder(path):
        if _looks_like_one(path.name) and is_file(path):
            raise NotARun(f"{path}: {_NOT_NAMED_SO}", hint=_NAMES)
        raise NotARun(
            f"{path}: {'not a span file' if os.path.lexists(path) else 'no such file or folder'}",
            hint="give a folder such as runs or runs/exp1, or a file in it",
        )
    runs: list[Run] = []
    refused: list[OSError] = []
    for folder in _folders(path):
        try:
            runs += _read_folder(folder)
        except OSError as error:
            refused.append(error)
    if runs:
        return runs
    for refusal in refused:
        raise NotARun(f"{refusal.filename or path}: {refusal.strerror}") from refusal
    notes = [pruned_words(note) for folder in pruned_folders(path) for note in pruned_notes(folder)]
    if notes:
        raise NotARun(f"{path}: nothing is left here", details=notes)
    renamed = next((place for folder in _folders(path) for place in _looking_like_one(folder)), None)
    if renamed is not None:
        raise NotARun(f"{path}: no span files; {renamed.relative_to(path)} is {_NOT_NAMED_SO}", hint=_NAMES)
    raise NotARun(
        f"{path}: no span files (*{RAW_SUFFIX}, *{RAW_SUFFIX}.zst) in it or in the folders right below it",
        hint="look for the line `verl-trace: recording to …` in the training's log; it names the folder",
        details=[f"{name} {NO_FILE}" for folder in _folders(path) for name in sorted(_no_files_of(folder))],
    )


def _looks_like_one(name: str) -> bool:
    return name.endswith((RAW_SUFFIX, f"{RAW_SUFFIX}.zst"))


def _looking_like_one(folder: Path) -> list[Path]:
    """Files in a folder that end as span files do, in order."""
    try:
        return [folder / name for name in sorted(list_files(folder)[0]) if _looks_like_one(name)]
    except OSError:
        return []


def closed_folders(path: str | Path) -> list[str]:
    """What `find_runs` passes over right below `path`, and nobody knows what is in it: folders that may not be read,
    and, where a folder has no others, segments that are no files, with the reason.
    """
    packed = archive_at(Path(path))
    if packed is not None:
        return [f"{packed[0].path}: {problem}" for problem in packed[0].problems]
    try:
        folders = [entry.path for entry in os.scandir(path) if entry.is_dir()]
    except OSError:
        # a file, or gone by now
        return []
    closed = [folder for folder in folders if not os.access(folder, os.R_OK | os.X_OK)]
    odd = [name for folder in folders if folder not in closed for name in _no_files_of(Path(folder))]
    return sorted(closed) + [f"{name} {NO_FILE}" for name in sorted(odd)]


def _no_files_of(folder: Path) -> list[str]:
    """All segments of a folder, where none of them is a file; [] elsewhere, where the run tells of them."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if parse_segment_name(entry.name) is not None:
                if may_be_read(entry):
                    return []
                found.append(entry.path)
    return found


def _folders(path: Path) -> Iterator[Path]:
    yield path
    try:
        yield from folders_in(path)
    except OSError:
        # `path` itself was just given, and its reader meets the same error
        return


def _read_folder(folder: Path) -> list[Run]:
    """The runs of one folder.

    It is listed twice: a file that is renamed during one listing is in the other, and what a writer wrote before it
    was seen dead is in the second.
    """
    segments: _Segments = {}
    others: set[str] = set()
    as_of = _now()
    _list(folder, segments, others)
    seen = {writer.id: writer for writer in _writers(segments) if writer.header and writer.alive is not None}
    _list(folder, segments, others)
    writers = [seen.get(writer.id, writer).with_segments(writer.segments) for writer in _writers(segments)]
    runs = _group(folder, writers, as_of)
    for run in runs[:1]:
        run.passed_over = [Damage(folder / name, 0, 0, "unreadable", NO_FILE) for name in sorted(others)]
    return runs


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _list(folder: Path, segments: _Segments, others: set[str]) -> None:
    files, no_files = list_files(folder)
    others.update(name for name in no_files if parse_segment_name(name) is not None)
    for name in files:
        parsed = parse_segment_name(name)
        if parsed is None:
            continue
        segment = segments.setdefault((parsed.writer, parsed.index), Segment(folder, parsed.writer, parsed.index))
        if parsed.sealed:
            segment.sealed = True
        else:
            segment.raw = True


def _writers(segments: _Segments) -> list[Writer]:
    by_id: dict[str, list[Segment]] = {}
    for key in sorted(segments):
        by_id.setdefault(key[0], []).append(segments[key])
    return [Writer(writer_id, of_writer) for writer_id, of_writer in by_id.items()]


def _group(folder: Path, writers: list[Writer], as_of: str) -> list[Run]:
    known = {_key(writer.header) for writer in writers if writer.header}
    # the only run of a folder is whose a file without a header is; among several nobody can tell
    fallback = known.pop() if len(known) == 1 else (UNKNOWN, UNKNOWN)
    runs: dict[tuple[str, str], Run] = {}
    for writer in writers:
        key = _key(writer.header) if writer.header else fallback
        runs.setdefault(key, Run(*key, folder, [], as_of)).writers.append(writer)
    return [runs[key] for key in sorted(runs)]


def _key(header: dict[str, Any]) -> tuple[str, str]:
    names = (header.get("project_name"), header.get("experiment_name"))
    project, experiment = (name if isinstance(name, str) and name else UNKNOWN for name in names)
    return project, experiment
