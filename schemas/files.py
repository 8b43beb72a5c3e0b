"""Every name on disk. Nobody else joins a path."""

from __future__ import annotations

import os
import re

from .sha256 import sha256_hex

TYPE_CHECKING = False
if TYPE_CHECKING:
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
# Characters that need no thought in a name; regular expressions for the same would be compiled at every start.
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_PACK_PART = r"(?P<stem>.*)\.part(?P<number>[1-9]\d{0,5})\.tar\Z"


class SegmentName:
    """What the name of a span file says."""

    __slots__ = ("index", "sealed", "writer")

    def __init__(self, writer: str, index: int, sealed: bool) -> None:
        self.writer = writer
        self.index = index
        self.sealed = sealed


def run_folder_name(experiment_name: str) -> str:
    """The folder of an experiment: its name where that is a plain file name, else a safe form with a hash."""
    if 0 < len(experiment_name) <= _MAX_FOLDER and experiment_name[0] not in ".-" and _SAFE.issuperset(experiment_name):
        return experiment_name
    digest = sha256_hex(experiment_name.encode("utf-8", "surrogatepass"))[:8]
    safe = _safe(experiment_name, "_")[:_MAX_FOLDER].lstrip(".-")
    return f"{safe or 'run'}-{digest}"


def writer_id(started: str, host: str, pid: int, token: str) -> str:
    """Id of a writing process: `started` as YYYYmmddTHHMMSS in UTC, `token` at least 12 random hex digits."""
    safe_host = _safe(host, "-").replace(".", "-")[:40] or "host"
    return f"{started}-{safe_host}-{pid}-{token}"


def _safe(text: str, instead: str) -> str:
    return "".join(character if character in _SAFE else instead for character in text)


def segment_file_name(writer: str, index: int, *, sealed: bool = False) -> str:
    """File name of segment `index` of `writer`."""
    return f"{writer}.{index:05d}{SEALED_SUFFIX if sealed else RAW_SUFFIX}"


def parse_segment_name(path: str | Path) -> SegmentName | None:
    """The parts of a span file's name, or None for any other file (temporary ones included)."""
    writer, index, suffix = _parts(path)
    if not writer or suffix not in (RAW_SUFFIX, SEALED_SUFFIX):
        return None
    return SegmentName(writer, int(index), suffix == SEALED_SUFFIX)


def _parts(path: str | Path) -> tuple[str, str, str]:
    """Writer, index and suffix of a file that a writer made; ("", "", "") for any other file."""
    writer, _, rest = os.path.basename(path).partition(".")
    index, dot, suffix = rest.partition(".")
    if len(index) < 5 or not (index.isascii() and index.isdecimal()):
        return "", "", ""
    return writer, index, dot + suffix


def pack_part(first: Path, number: int) -> Path:
    """Part `number`, from 1, of the packed run whose first part is `first`: X.tar, X.part2.tar, …"""
    return first if number == 1 else first.with_name(f"{first.stem}.part{number}.tar")


def parse_pack_part(path: Path) -> tuple[Path, int]:
    """The first part of the packed run that `path` belongs to, and the number of `path`."""
    match = re.match(_PACK_PART, path.name)
    if match is None or int(match["number"]) == 1:
        return path, 1
    return path.with_name(f"{match['stem']}.tar"), int(match["number"])


def side_file_name(writer: str, index: int) -> str:
    """File name of the side file `index` of `writer`: contents too large for a line."""
    return f"{writer}.{index:05d}{SIDE_SUFFIX}"


def parse_side_file_name(path: str | Path) -> tuple[str, int] | None:
    """Writer and index of a side file, None for any other file."""
    writer, index, suffix = _parts(path)
    return (writer, int(index)) if writer and suffix == SIDE_SUFFIX else None
