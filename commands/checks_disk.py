"""What `verl-trace doctor` finds out about disks: can they be written, how fast, how much room, who wipes them, and
does the clock of whoever keeps the files agree."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..recorder import Settings
from ..recorder.mounts import Mount, ephemeral, mount_of
from ..schemas.files import parse_segment_name
from .findings import Finding

__all__ = ["disk_findings"]

GIB = 1 << 30
# Below this much free space a long training is likely to meet the recorder's own limit.
COMFORTABLE_SPACE = 10 * GIB
# Written to learn the speed: large enough for a network file system to show itself, small enough for a full disk.
SPEED_BYTES = 16 << 20
# The measurement ends after this many seconds, however little was written.
SPEED_SECONDS = 2.0
# A busy node writes some ten MB/s of records; a traced call waits for one append.
SLOW_BYTES = 30 << 20
SLOW_APPEND = 0.002
APPENDS = 50
# Clocks that are kept by NTP differ by milliseconds; a network file system tells its time to the second at worst.
CLOCK_TOLERANCE = 2.0
# So many files of other nodes are looked at for times that have not come yet.
FILES_LOOKED_AT = 2000
_KINDS = {
    "memory": "memory",
    "network": "a network file system",
    "container": "the container's own layer",
    "nvme": "NVMe",
    "disk": "a local disk",
    "unknown": "of a kind that the system does not tell",
}


@dataclass
class _Tried:
    """What writing to a folder showed. `rate`: bytes a second with fsync; `append`: seconds; `ahead`: of its clock."""

    folder: Path
    trouble: str = ""
    rate: float | None = None
    append: float | None = None
    ahead: float | None = None
    left: list[Path] = field(default_factory=list)


def disk_findings(settings: Settings) -> Iterator[Finding]:
    """One finding each: folder, disk, speed, space, collect, clock."""
    folder = Path(settings.folder)
    mount, tried = mount_of(folder), _try(folder, settings.min_free)
    yield _folder(tried)
    yield _disk(folder, mount, settings)
    yield _speed(tried)
    yield _space(folder, settings)
    target = Path(settings.collected) if settings.collected.startswith("/") else None
    other = _try(target, 0) if target is not None else None
    yield _collect(settings, other)
    yield _clock([tried, *([other] if other is not None else [])])


def _try(folder: Path, reserve: int) -> _Tried:
    """Make a file there as the recorder would, and measure; nothing is left behind."""
    tried = _Tried(folder)
    made = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-", buffering=0) as file:
            file.write(b"x")
            os.fsync(file.fileno())
            tried.ahead = os.stat(file.name).st_mtime - time.time()
            tried.append = _append_time(file.fileno())
            if shutil.disk_usage(folder).free > reserve + 2 * SPEED_BYTES:
                tried.rate = _rate(file.fileno())
    except OSError as error:
        tried.trouble = error.strerror or str(error)
    finally:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
    return tried


def _append_time(descriptor: int) -> float:
    took = []
    for _ in range(APPENDS):
        began = time.perf_counter()
        os.write(descriptor, b"x" * 4096)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _rate(descriptor: int) -> float:
    # random bytes: some file systems compress
    piece, written, began = os.urandom(1 << 20), 0, time.perf_counter()
    while written < SPEED_BYTES and time.perf_counter() - began < SPEED_SECONDS:
        written += os.write(descriptor, piece)
    os.fsync(descriptor)
    return written / (time.perf_counter() - began)


def _folder(tried: _Tried) -> Finding:
    if tried.trouble:
        remedy = "set VERL_TRACE_DIR to a folder that every worker can write, e.g. on the node's own disk"
        return Finding("folder", "fail", f"{tried.folder}: {tried.trouble}", remedy)
    return Finding("folder", "ok", f"{tried.folder} can be written")


def _disk(folder: Path, mount: Mount | None, settings: Settings) -> Finding:
    if mount is None:
        return Finding("disk", "skip", f"what {folder} lies on is not told here: no /proc/self/mountinfo")
    text = f"{mount.point} is {_KINDS[mount.place]} ({mount.kind}, {mount.source})"
    why = ephemeral(folder, mount)
    if mount.place == "memory":
        return Finding(
            "disk",
            "warn",
            f"{text}: records take the node's memory and are gone with it",
            "set VERL_TRACE_DIR to a disk",
        )
    if settings.collected and (why or mount.place == "container"):
        return Finding("disk", "ok", f"{text}; it may go with the node, and is collected to {settings.collected}")
    if why:
        remedy = (
            "run `verl-trace collect` (--help says how) beside the training, and name its target in VERL_TRACE_COLLECT"
        )
        return Finding("disk", "warn", f"{text}; {why}, and nothing says that it is collected", remedy)
    if mount.place == "container":
        return Finding(
            "disk",
            "warn",
            f"{text}: gone with the container",
            "mount a folder of the node, and set VERL_TRACE_DIR to it",
        )
    return Finding("disk", "ok", text)


def _speed(tried: _Tried) -> Finding:
    if tried.trouble or tried.append is None:
        return Finding("speed", "skip", "not measured, since the folder cannot be written")
    rate = "" if tried.rate is None else f"{tried.rate / (1 << 20):,.0f} MiB/s with fsync, "
    text = f"{rate}{tried.append * 1e6:,.0f} µs an append of 4 KiB"
    if tried.append > SLOW_APPEND or (tried.rate is not None and tried.rate < SLOW_BYTES):
        remedy = "set VERL_TRACE_DIR to the node's own disk, or look who else is writing there"
        return Finding("speed", "warn", f"{text}: slow; records would wait in memory now and then", remedy)
    return Finding("speed", "ok", text)


def _space(folder: Path, settings: Settings) -> Finding:
    # unlike Path.exists, False also where the name is too long or the way there is closed
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Finding("space", "skip", f"{existing} does not tell its room: {error.strerror}")
    text = f"{free / GIB:.1f} GiB free at {existing}"
    remedy = "free some space, or set VERL_TRACE_DIR to another disk"
    if free <= settings.min_free:
        return Finding("space", "fail", f"{text}; nothing is recorded below {settings.min_free / GIB:.1f} GiB", remedy)
    if free < COMFORTABLE_SPACE:
        return Finding("space", "warn", f"{text}; little for a long training", remedy)
    return Finding("space", "ok", text)


def _collect(settings: Settings, tried: _Tried | None) -> Finding:
    if not settings.collected:
        return Finding(
            "collect", "skip", "VERL_TRACE_COLLECT is not set; it names where `verl-trace collect` brings the files"
        )
    if tried is None:
        return Finding(
            "collect", "ok", f"VERL_TRACE_COLLECT={settings.collected}: no folder, so that nothing was tried"
        )
    if tried.trouble:
        remedy = "set VERL_TRACE_COLLECT to a folder on shared storage that this node can write"
        return Finding("collect", "fail", f"{tried.folder}: {tried.trouble}", remedy)
    mount = mount_of(tried.folder)
    free = shutil.disk_usage(next(path for path in (tried.folder, *tried.folder.parents) if path.exists())).free
    text = f"{tried.folder} can be written, {free / GIB:.1f} GiB free"
    if mount is not None and mount.place != "network" and (why := ephemeral(tried.folder, mount)):
        return Finding("collect", "warn", f"{text}, but {why}", "set VERL_TRACE_COLLECT to a folder on shared storage")
    if free < GIB:
        return Finding("collect", "warn", f"{text}: too little", "free some space there")
    return Finding("collect", "ok", text)


def _clock(places: list[_Tried]) -> Finding:
    worst = max((tried for tried in places if tried.ahead is not None), key=lambda t: abs(t.ahead or 0.0), default=None)
    if worst is None or worst.ahead is None:
        return Finding("clock", "skip", "not compared, since no folder can be written")
    remedy = "have chronyd or ntpd set the clocks of all nodes; recorded times, not durations, follow them"
    if abs(worst.ahead) > CLOCK_TOLERANCE:
        direction = "behind" if worst.ahead > 0 else "ahead of"
        text = f"this node is {abs(worst.ahead):.1f} s {direction} whoever keeps {worst.folder}"
        return Finding("clock", "warn", text, remedy)
    future = max((found for tried in places for found in _future(tried.folder)), default=None)
    if future is not None:
        seconds, name = future
        return Finding(
            "clock", "warn", f"{name} was written {seconds:.1f} s after now: its node is ahead of this one", remedy
        )
    return Finding("clock", "ok", "agrees with the times of files in these folders")


def _future(folder: Path) -> Iterator[tuple[float, str]]:
    """Span files, of whatever node, that say that they were written later than now."""
    looked_at, now = 0, time.time()
    try:
        for run in [folder, *(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir())]:
            for entry in os.scandir(run):
                if parse_segment_name(entry.name) is None:
                    continue
                looked_at += 1
                if looked_at > FILES_LOOKED_AT:
                    return
                ahead = entry.stat().st_mtime - max(now, time.time())
                if ahead > CLOCK_TOLERANCE:
                    yield ahead, entry.name
    except OSError:
        # gone, or closed to us: nothing to learn there
        return
