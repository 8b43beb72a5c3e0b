"""Which runs lie in a folder: files -> writers -> runs, and whether a writer still lives."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ..schemas.errors import NotARun
from ..schemas.files import RAW_SUFFIX, SegmentName, parse_segment_name, segment_file_name
from ..schemas.lines import Line, parse_line
from .segments import Damage, SegmentLines

__all__ = ["UNKNOWN", "Run", "Segment", "State", "Writer", "find_runs"]

# Project and experiment of files whose header is lost and whose folder does not tell.
UNKNOWN = "unknown"
# A writer on another host counts as live while its file is younger, in seconds.
LIVE_AGE = 300.0

State = Literal["live", "torn", "closed"]


@dataclass
class Segment:
    """One segment of a writer, stored raw, sealed, or both while a seal is in progress."""

    folder: Path
    name: SegmentName
    raw: bool = False
    sealed: bool = False

    @property
    def path(self) -> Path:
        """The file to read: the sealed one where there is one."""
        return self.folder / segment_file_name(self.name.writer, self.name.index, sealed=self.sealed)

    def lines(self) -> SegmentLines:
        """The segment's lines, from whichever form is there and whole.

        A raw file that was sealed since it was listed is read in its sealed form, a damaged sealed one in its raw form
        while that is still there.

        Raises:
            OSError: neither form can be read.
        """
        raw = self.folder / segment_file_name(self.name.writer, self.name.index)
        if self.sealed and self.raw and not _is_whole(self.path) and raw.exists():
            return SegmentLines(raw, sealed=False)
        if not self.sealed and not raw.exists():
            self.sealed = True
        return SegmentLines(self.path, sealed=self.sealed)

    @property
    def stored_bytes(self) -> int:
        """Size on disk; 0 when the file has just gone."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0


@dataclass
class Writer:
    """One recording process: its header and its segments in order."""

    id: str
    segments: list[Segment]
    header: dict[str, Any] = field(default_factory=dict)

    @property
    def attempt(self) -> str:
        """The training start that the process belonged to; "" when its header is lost."""
        return _text(self.header.get("attempt"))

    @property
    def host(self) -> str:
        """Host name; "" when the header is lost."""
        return _text(self.header.get("host"))

    @property
    def pid(self) -> int | None:
        """Process id on its host."""
        pid = self.header.get("pid")
        return pid if isinstance(pid, int) else None

    @property
    def version(self) -> str:
        """The verl-trace that recorded."""
        versions = self.header.get("versions")
        return _text(versions.get("verl_trace")) if isinstance(versions, dict) else ""

    @property
    def live(self) -> bool:
        """Whether the process may still write."""
        return self.state == "live"

    @cached_property
    def state(self) -> State:
        """`closed`, `live` or `torn` (ended without closing: killed), as of the first look."""
        alive = _is_alive(self.header)
        if not alive and _closed_at_exit(self.segments[-1]):
            return "closed"
        if alive is None:
            alive = time.time() - self.modified < LIVE_AGE
        return "live" if alive else "torn"

    @property
    def modified(self) -> float:
        """When the newest segment was last written, in seconds since the epoch."""
        times = [0.0]
        for segment in self.segments[-1:]:
            try:
                times.append(segment.path.stat().st_mtime)
            except OSError:
                continue
        return max(times)


@dataclass
class Run:
    """All files of one (project, experiment) in one folder."""

    project_name: str
    experiment_name: str
    folder: Path
    writers: list[Writer]
    problems: list[Damage] = field(default_factory=list)

    @property
    def state(self) -> State:
        """Live if one writer is, else torn if one is, else closed."""
        states = {writer.state for writer in self.writers}
        return "live" if "live" in states else "torn" if "torn" in states else "closed"

    @property
    def stored_bytes(self) -> int:
        """Bytes on disk."""
        return sum(segment.stored_bytes for writer in self.writers for segment in writer.segments)

    @property
    def attempts(self) -> list[str]:
        """Attempts in the order in which they started."""
        began: dict[str, str] = {}
        for writer in self.writers:
            started = _text(writer.header.get("started_at"))
            began[writer.attempt] = min(started, began.get(writer.attempt, started))
        return sorted(began, key=lambda attempt: began[attempt])


def find_runs(path: str | Path) -> list[Run]:
    """The runs at `path`: a run's folder, a folder of such folders, or one span file. Ordered by folder and names.

    Raises:
        NotARun: the path does not exist, cannot be read, or holds no span files at any of these places.
    """
    path = Path(path)
    name = parse_segment_name(path)
    if name is not None and path.is_file():
        segment = Segment(path.parent, name, raw=not name.sealed, sealed=name.sealed)
        return _group(path.parent, [segment])
    if not path.is_dir():
        raise NotARun(
            f"{path}: {'not a span file' if path.exists() else 'no such file or folder'}",
            hint="give a folder such as runs or runs/exp1; `verl-trace ls` shows what there is",
        )
    runs: list[Run] = []
    try:
        for folder in _folders(path):
            runs += _group(folder, _segments(folder))
    except OSError as error:
        raise NotARun(f"{path}: {error.strerror}") from error
    if not runs:
        raise NotARun(
            f"{path}: no span files (*{RAW_SUFFIX}, *{RAW_SUFFIX}.zst) in it or in the folders right below it",
            hint="look for the line `verl-trace: recording to …` in the training's log; it names the folder",
        )
    return runs


def _folders(path: Path) -> Iterator[Path]:
    yield path
    for entry in sorted(os.scandir(path), key=lambda e: e.name):
        if entry.is_dir():
            yield Path(entry.path)


def _segments(folder: Path) -> list[Segment]:
    """Two listings, united: a file that is renamed and removed during one of them is in the other."""
    found: dict[tuple[str, int], Segment] = {}
    for _ in range(2):
        try:
            names = os.listdir(folder)
        except PermissionError:
            return []
        for name in names:
            parsed = parse_segment_name(name)
            if parsed is None:
                continue
            segment = found.setdefault((parsed.writer, parsed.index), Segment(folder, parsed))
            if parsed.sealed:
                segment.sealed = True
            else:
                segment.raw = True
    return [found[key] for key in sorted(found)]


def _group(folder: Path, segments: list[Segment]) -> list[Run]:
    writers: dict[str, Writer] = {}
    for segment in segments:
        writers.setdefault(segment.name.writer, Writer(segment.name.writer, [])).segments.append(segment)
    problems: list[Damage] = []
    for writer in writers.values():
        _read_header(writer, problems)
    known = {_key(w) for w in writers.values() if w.header}
    # the only run of a folder is whose a file without a header is; among several nobody can tell
    fallback = known.pop() if len(known) == 1 else (UNKNOWN, UNKNOWN)
    runs: dict[tuple[str, str], Run] = {}
    for writer in writers.values():
        key = _key(writer) if writer.header else fallback
        run = runs.setdefault(key, Run(*key, folder, []))
        run.writers.append(writer)
        run.problems += [p for p in problems if parse_segment_name(p.path) in {s.name for s in writer.segments}]
    return [runs[key] for key in sorted(runs)]


def _key(writer: Writer) -> tuple[str, str]:
    header = writer.header
    return _text(header.get("project_name")) or UNKNOWN, _text(header.get("experiment_name")) or UNKNOWN


def _read_header(writer: Writer, problems: list[Damage]) -> None:
    """Find the header of the first segment that has one."""
    for segment in writer.segments:
        try:
            first = next(iter(segment.lines()), None)
        except OSError as error:
            problems.append(Damage(segment.path, 0, 0, "unreadable", error.strerror or str(error)))
            continue
        line = _parse(first[1]) if first is not None else None
        if line is not None and line.kind == "header":
            writer.header = line.head
            break
        problems.append(Damage(segment.path, 0, 0, "header", "the file does not begin with a header"))


def _closed_at_exit(segment: Segment) -> bool:
    try:
        if segment.sealed:
            # sealed by its own process at exit, or by somebody else after a kill: only the last line tells
            last = b""
            for _, line_read in segment.lines():
                last = line_read
        else:
            last = _last_line(segment.path)
    except OSError:
        return False
    line = _parse(last)
    return line is not None and line.kind == "close" and line.head.get("reason") == "exit"


def _last_line(path: Path) -> bytes:
    """The last line when it is whole, else b"". Close records are short: one look at the file's end is enough."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8192))
        tail = file.read()
    return tail[:-1].rpartition(b"\n")[2] if tail.endswith(b"\n") else b""


def _parse(line: bytes) -> Line | None:
    try:
        return parse_line(line)
    except ValueError:
        return None


def _is_whole(path: Path) -> bool:
    try:
        lines = SegmentLines(path, sealed=True)
        for _ in lines:
            pass
    except OSError:
        return False
    return not lines.damages


def _is_alive(header: dict[str, Any]) -> bool | None:
    """Whether the process of `header` runs, None when it ran on another host or in another container."""
    pid, start = header.get("pid"), header.get("pid_start")
    if not isinstance(pid, int) or not isinstance(start, int):
        return None
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            same_boot = file.read().strip() == header.get("boot_id")
        if not same_boot or os.stat("/proc/self/ns/pid").st_ino != header.get("pid_ns"):
            return None
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        # a zombie has ended: nobody has asked for its exit code yet
        return int(fields[19]) == start and fields[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
    except (OSError, ValueError, IndexError):
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
