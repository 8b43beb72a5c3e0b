"""Runs -> one tar, or parts of a size, to be carried over an air gap and read as they are.

Span files that are still raw are compressed on the way: their whole lines, as they are at that moment. With a choice of
trajectories, the records and contents of all others are left out; headers and close records say so. A part is written
under a temporary name and published by rename; begun again after an interruption, packing goes on behind the last whole
file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..schemas.compression import segment_compressor
from ..schemas.errors import BadTarget
from ..schemas.files import ATTEMPT_PREFIX, PRUNED_PREFIX, TMP_SUFFIX, WANDB_PREFIX, segment_file_name
from .contents import side_files
from .pack_parts import Parts
from .pack_side import chosen_contents, copy_contents
from .places import NO_FILE, is_file, list_files, open_file, status
from .runs import Run, Segment
from .segments import Damage
from .some_lines import SomeLines

__all__ = ["Packed", "pack"]

# Files that say something of the run and are packed as they are.
_NOTES = (ATTEMPT_PREFIX, PRUNED_PREFIX, WANDB_PREFIX)

Chosen = Callable[[str], bool]


@dataclass
class Packed:
    """What was packed. `kept`: files that an earlier, interrupted attempt had packed already."""

    parts: list[Path] = field(default_factory=list)
    files: int = 0
    kept: int = 0
    size: int = 0
    records: int = 0
    left_out: int = 0
    damages: list[Damage] = field(default_factory=list)


def pack(
    runs: Iterable[Run],
    out: Path,
    *,
    split: int | None = None,
    chosen: Chosen | None = None,
    choice: str = "",
    progress: Callable[[Packed], None] = lambda _: None,
) -> Packed:
    """Pack all files of `runs` into `out` (X.tar) and, beyond `split` bytes, into X.part2.tar and so on.

    `chosen` says of a trace id whether it is wanted, `choice` in words what that means: an interrupted attempt goes on
    only where it was for the same. No part is larger than `split` but one with a single
    file that is.

    Raises:
        BadTarget: `out` is there already, or cannot be written.
    """
    if out.suffix != ".tar":
        raise BadTarget(f"{out}: a packed run is called *.tar", hint=f"-o {out.name}.tar")
    if out.exists():
        raise BadTarget(f"{out} is there already", hint="give another name with -o, or remove it with all its parts")
    packed = Packed()
    try:
        with Parts(out, split, choice) as parts:
            packed.kept = parts.kept
            for name, content, modified in _files(list(runs), chosen, packed, parts.has):
                if isinstance(content, bytes):
                    parts.add(name, content, modified)
                elif content.wanted is None:
                    parts.add_file(name, content.path, content.size, modified)
                else:
                    _add_some(parts, name, content, modified, packed, out.with_name(f"{out.name}.side{TMP_SUFFIX}"))
                packed.files, packed.size = parts.files, parts.size
                progress(packed)
            packed.parts = parts.publish()
            packed.files, packed.size = parts.files, parts.size
    except OSError as error:
        raise BadTarget(
            f"{error.filename or out}: {error.strerror}", hint="run the same command again to go on"
        ) from error
    return packed


class _Side(NamedTuple):
    """A side file, which may be large. `wanted`: digests of the contents that are to be packed, None for all."""

    path: Path
    size: int
    wanted: set[str] | None


def _add_some(parts: Parts, name: str, side: _Side, modified: float, packed: Packed, copy: Path) -> None:
    """Pack the wanted contents of a side file, by way of a file beside the target."""
    try:
        packed.damages += copy_contents(side.path, side.wanted or set(), copy)
        parts.add_file(name, copy, copy.stat().st_size, modified)
    finally:
        copy.unlink(missing_ok=True)


def _files(
    runs: list[Run], chosen: Chosen | None, packed: Packed, has: Callable[[str, float], bool]
) -> Iterator[tuple[str, bytes | _Side, float]]:
    """Name, content and time of every file that is not packed yet.

    Segments come before the side files that their lines refer to: what a writer adds meanwhile is in both or in the
    side file alone.
    """
    bases = _bases(runs)
    for folder, base in bases.items():
        notes, no_files = (sorted(name for name in names if name.startswith(_NOTES)) for names in list_files(folder))
        packed.damages += [Damage(folder / name, 0, 0, "unreadable", NO_FILE) for name in no_files]
        for marker in notes:
            modified = status(folder / marker).modified
            if not has(f"{base}/{marker}", modified):
                with open_file(folder / marker) as file:
                    yield f"{base}/{marker}", file.readall(), modified
    for run in runs:
        packed.damages += run.passed_over
        for writer in run.writers:
            for segment in writer.segments:
                name = f"{bases[run.folder]}/{segment_file_name(writer.id, segment.index, sealed=True)}"
                # before it is read: what a writer adds meanwhile makes it another file
                modified = segment.modified
                if not has(name, modified):
                    yield name, _content(segment, chosen, packed), modified
            wanted: set[str] | None = None
            for path in side_files(run.folder, writer.id):
                if not is_file(path):
                    packed.damages.append(Damage(path, 0, 0, "unreadable", NO_FILE))
                    continue
                found = status(path)
                if not has(f"{bases[run.folder]}/{path.name}", found.modified):
                    if chosen is not None and wanted is None:
                        wanted = chosen_contents(writer, chosen)
                    yield f"{bases[run.folder]}/{path.name}", _Side(path, found.size, wanted), found.modified


def _bases(runs: list[Run]) -> dict[Path, str]:
    """A name for every folder: its own, with a number where another one has that too."""
    bases: dict[Path, str] = {}
    for folder in sorted({run.folder for run in runs}):
        name = folder.name or "run"
        number = 1 + sum(other.name == folder.name for other in bases)
        bases[folder] = name if number == 1 else f"{name}.{number}"
    return bases


def _content(segment: Segment, chosen: Chosen | None, packed: Packed) -> bytes:
    """The sealed form of a segment; a file that is sealed and wanted whole is copied byte for byte."""
    lines = segment.lines()
    if lines.sealed and chosen is None:
        with open_file(lines.path) as file:
            return file.readall()
    out = io.BytesIO()
    compressor = segment_compressor()
    with compressor.stream_writer(out, closefd=False) as stream:
        if chosen is None:
            for _, line in lines:
                packed.records += 1
                stream.write(line)
        else:
            some = SomeLines(lines, chosen, "packed", {"chosen": True})
            for line in some:
                stream.write(line)
            packed.records += some.records
            packed.left_out += some.left_out
    # what is being written has no end yet
    packed.damages += [damage for damage in lines.damages if damage.kind != "torn"]
    return out.getvalue()
