"""One recording process as its files show it: its segments, its header, and whether it still lives."""

from __future__ import annotations

import os
import time
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import zstandard

from ..schemas.files import segment_file_name
from .contents import SideFiles, side_files
from .places import Status, open_file, status
from .records import is_exit, parse_record, text_of
from .segments import SegmentLines

__all__ = ["Segment", "State", "Writer"]

# A writer on another host counts as live while its file is younger, in seconds.
LIVE_AGE = 300.0
# A close record is far shorter: one look at the end of a raw file is enough.
_CLOSE_BYTES = 8192
# The most that the head of a zstd frame takes.
_FRAME_HEADER_BYTES = 18

State = Literal["live", "torn", "closed"]


class Segment:
    """One segment of a writer, stored raw, sealed, or both while a seal is in progress."""

    def __init__(self, folder: Path, writer: str, index: int, *, raw: bool = False, sealed: bool = False) -> None:
        self.folder = folder
        self.writer = writer
        self.index = index
        self.raw = raw
        self.sealed = sealed

    @property
    def path(self) -> Path:
        """The file to read. Where both forms are there they hold the same, unless somebody copied a younger raw one."""
        return self._file(sealed=not self._raw_serves())

    def lines(self, limit: int | None = None, kind: type[SegmentLines] = SegmentLines) -> SegmentLines:
        """The segment's lines, up to `limit` bytes of them, from whichever form is there when they are read."""
        sealed = not self._raw_serves()
        return kind(self._file(sealed=sealed), sealed=sealed, sealed_path=self._file(sealed=True), limit=limit)

    def last_line(self) -> bytes:
        """The last whole line, b"" when there is none. Of a sealed segment all is decompressed for it.

        Raises:
            OSError: the file cannot be opened or read.
        """
        lines = self.lines()
        if not lines.sealed:
            try:
                with open_file(lines.path) as file:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - _CLOSE_BYTES))
                    tail = file.readall()
                return tail[:-1].rpartition(b"\n")[2] if tail.endswith(b"\n") else b""
            except FileNotFoundError:
                # sealed since it was listed
                pass
        last = b""
        for _, line in lines:
            last = line
        return last

    def _raw_serves(self) -> bool:
        """Whether the raw file is there, and as long as the sealed one says that it was. It needs no decompression."""
        if not (self.raw and self.sealed):
            return self.raw
        try:
            with open_file(self._file(sealed=True)) as file:
                content = zstandard.frame_content_size(file.read(_FRAME_HEADER_BYTES) or b"")
            return status(self._file(sealed=False)).size >= content
        except (OSError, zstandard.ZstdError):
            return True

    def _file(self, *, sealed: bool) -> Path:
        return self.folder / segment_file_name(self.writer, self.index, sealed=sealed)

    @property
    def stored_bytes(self) -> int:
        """Size on disk; 0 when the file has just gone."""
        found = self._status()
        return found.size if found is not None else 0

    @property
    def modified(self) -> float:
        """When it was last written, in seconds since the epoch; 0 when the file has just gone."""
        found = self._status()
        return found.modified if found is not None else 0.0

    def _status(self) -> Status | None:
        for sealed in (False, True):
            try:
                return status(self._file(sealed=sealed))
            except OSError:
                continue
        return None


class Writer:
    """One recording process: its segments in order. What it says of the process is as of the first look."""

    def __init__(self, id: str, segments: list[Segment]) -> None:
        self.id = id
        self.segments = segments
        # sealed ones that zstd could not read whole; known once the first pass over the run is done
        self.damaged: set[Segment] = set()

    @cached_property
    def header(self) -> dict[str, Any]:
        """The header of the first segment that has one; {} when all are lost."""
        for segment in self.segments:
            try:
                first = next(iter(segment.lines()), None)
            except OSError:
                continue
            record = parse_record(first[1]) if first is not None else None
            if record is not None and record.kind == "header":
                return record.head
        return {}

    def with_segments(self, segments: list[Segment]) -> Writer:
        """This writer after a later look at the folder."""
        self.segments = segments
        self.damaged.clear()
        return self

    @cached_property
    def contents(self) -> SideFiles:
        """What is too large for lines."""
        return SideFiles(self.segments[0].folder, self.id)

    @property
    def side_files(self) -> list[Path]:
        """The files of `contents` that are there now."""
        return side_files(self.segments[0].folder, self.id)

    @property
    def attempt(self) -> str:
        """The training start that the process belonged to; "" when its header is lost."""
        return text_of(self.header.get("attempt"))

    @property
    def host(self) -> str:
        """Host name; "" when the header is lost."""
        return text_of(self.header.get("host"))

    @property
    def node(self) -> str:
        """Slurm's name of the node, else the host's; "" when the header is lost."""
        return text_of(self._said("slurm", "node_name")) or self.host

    @property
    def rank(self) -> str | None:
        """RANK of the launcher, else the number of the task in Slurm's step; None where neither is known."""
        found = self._said("rank", "RANK") or self._said("slurm", "procid")
        return found if isinstance(found, str) else None

    def _said(self, group: str, name: str) -> object:
        about = self.header.get(group)
        return about.get(name) if isinstance(about, dict) else None

    @property
    def pid(self) -> int | None:
        """Process id on its host."""
        pid = self.header.get("pid")
        return pid if isinstance(pid, int) else None

    @property
    def started_at(self) -> str:
        """When the recording began, UTC; "" when the header is lost."""
        return text_of(self.header.get("started_at"))

    @property
    def version(self) -> str:
        """The verl-trace that recorded."""
        versions = self.header.get("versions")
        return text_of(versions.get("verl_trace")) if isinstance(versions, dict) else ""

    @cached_property
    def _runs_here(self) -> bool | None:
        return _is_alive(self.header)

    @property
    def runs_here(self) -> bool | None:
        """Whether the process runs on this host; None when it was recorded on another one."""
        return self._runs_here

    @property
    def modified(self) -> float:
        """When one of the files was last written, in seconds since the epoch."""
        return max((segment.modified for segment in self.segments), default=0.0)

    @cached_property
    def alive(self) -> bool:
        """Whether the process ran; of one on another host, whether its files were young.

        `find_runs` looks before it lists the files for the last time, so that all that a dead writer wrote is known.
        """
        if self._runs_here is not None:
            return self._runs_here
        return time.time() - self.modified < LIVE_AGE

    @cached_property
    def closed(self) -> bool:
        """Whether the last record is the one that a writer ends with. A pass over the records sets it."""
        return _closed_at_exit(self.segments[-1])

    @cached_property
    def closed_itself(self) -> bool:
        """Whether the process has written that record, not whoever made a repaired copy of its files. Set like that."""
        return self.closed and _closed_at_exit(self.segments[-1], itself=True)

    @property
    def live(self) -> bool:
        """Whether the process may still write; a recording that was ended may be followed by records of open calls."""
        return self.alive and (not self.closed or self._runs_here is True)

    @property
    def state(self) -> State:
        """`closed`, `live` or `torn` (ended without closing: killed)."""
        if self.closed:
            return "closed"
        return "live" if self.alive else "torn"


def _closed_at_exit(segment: Segment, *, itself: bool = False) -> bool:
    try:
        record = parse_record(segment.last_line())
    except OSError:
        return False
    return record is not None and is_exit(record) and not (itself and "repaired" in record.head)


def _is_alive(header: dict[str, Any]) -> bool | None:
    """Whether the process of `header` runs, None when it ran on another host or in another container."""
    pid, start = header.get("pid"), header.get("pid_start")
    if not isinstance(pid, int) or not isinstance(start, int):
        return None
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        if boot_id != header.get("boot_id") or os.stat("/proc/self/ns/pid").st_ino != header.get("pid_ns"):
            return None
    except (OSError, ValueError):
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        # a zombie has ended: nobody has asked for its exit code yet
        return int(fields[19]) == start and fields[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError, IndexError):
        return None
