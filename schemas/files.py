"""Every name on disk. Nobody else joins a path."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ATTEMPT_PREFIX",
    "PACK_CHOICE",
    "PACK_END",
    "PACK_SHA256",
    "PRUNED_PREFIX",
    "RAW_SUFFIX",
    "REPAIR_REPORT",
    "SEALED_SUFFIX",
    "SIDE_SUFFIX",
    "TMP_SUFFIX",
    "WANDB_PREFIX",
    "SegmentName",
    "pack_part",
    "parse_pack_part",
    "parse_segment_name",
    "parse_side_file_name",
    "run_folder_name",
    "segment_file_name",
    "side_file_name",
    "writer_id",
]

RAW_SUFFIX = ".jsonl"
SEALED_SUFFIX = ".jsonl.zst"
SIDE_SUFFIX = ".blobs"
TMP_SUFFIX = ".tmp"
ATTEMPT_PREFIX = ".attempt-"
# The W&B run of the trainer: .wandb-<attempt>-<run id>.json
WANDB_PREFIX = ".wandb-"
# What `prune` has deleted: pruned-<UTC>-<random>.jsonl
PRUNED_PREFIX = "pruned-"
# In a repaired copy: what was left out.
REPAIR_REPORT = "repair.json"
# In a packed run: the last member of a part, and the PAX headers with a member's checksum and with what was chosen.
PACK_END = "pack.json"
PACK_CHOICE = "VERL_TRACE.choice"
PACK_SHA256 = "VERL_TRACE.sha256"

# 100 leaves room for the hash and stays below the 255 bytes of every common file system.
_MAX_FOLDER = 100
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_SAFE_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")
_PACK_PART = re.compile(r"(?P<stem>.*)\.part(?P<number>[1-9]\d{0,5})\.tar\Z")
_SEGMENT = re.compile(r"(?P<writer>[^.]+)\.(?P<index>\d{5,})\.jsonl(?P<zst>\.zst)?\Z")
_SIDE = re.compile(r"(?P<writer>[^.]+)\.(?P<index>\d{5,})\.blobs\Z")


@dataclass(frozen=True, order=True)
class SegmentName:
    """What the name of a span file says."""

    writer: str
    index: int
    sealed: bool


def run_folder_name(experiment_name: str) -> str:
    """The folder of an experiment: its name where that is a plain file name, else a safe form with a hash."""
    if len(experiment_name) <= _MAX_FOLDER and _SAFE_FOLDER.match(experiment_name):
        return experiment_name
    digest = hashlib.sha256(experiment_name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    safe = _UNSAFE.sub("_", experiment_name)[:_MAX_FOLDER].lstrip(".-")
    return f"{safe or 'run'}-{digest}"


def writer_id(started: str, host: str, pid: int, token: str) -> str:
    """Id of a writing process: `started` as YYYYmmddTHHMMSS in UTC, `token` at least 12 random hex digits."""
    safe_host = re.sub(r"[^A-Za-z0-9_-]", "-", host)[:40] or "host"
    return f"{started}-{safe_host}-{pid}-{token}"


def segment_file_name(writer: str, index: int, *, sealed: bool = False) -> str:
    """File name of segment `index` of `writer`."""
    return f"{writer}.{index:05d}{SEALED_SUFFIX if sealed else RAW_SUFFIX}"


def parse_segment_name(path: str | Path) -> SegmentName | None:
    """The parts of a span file's name, or None for any other file (temporary ones included)."""
    match = _SEGMENT.match(Path(path).name)
    if match is None:
        return None
    return SegmentName(match["writer"], int(match["index"]), match["zst"] is not None)


def pack_part(first: Path, number: int) -> Path:
    """Part `number`, from 1, of the packed run whose first part is `first`: X.tar, X.part2.tar, …"""
    return first if number == 1 else first.with_name(f"{first.stem}.part{number}.tar")


def parse_pack_part(path: Path) -> tuple[Path, int]:
    """The first part of the packed run that `path` belongs to, and the number of `path`."""
    match = _PACK_PART.match(path.name)
    if match is None or int(match["number"]) == 1:
        return path, 1
    return path.with_name(f"{match['stem']}.tar"), int(match["number"])


def side_file_name(writer: str, index: int) -> str:
    """File name of the side file `index` of `writer`: contents too large for a line."""
    return f"{writer}.{index:05d}{SIDE_SUFFIX}"


def parse_side_file_name(path: str | Path) -> tuple[str, int] | None:
    """Writer and index of a side file, None for any other file."""
    match = _SIDE.match(Path(path).name)
    return (match["writer"], int(match["index"])) if match is not None else None
