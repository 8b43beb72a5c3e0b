"""What lies beside the runs of a folder: folders that hold none, runs that nobody may read, files that are damaged."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..reader.places import open_file
from ..reader.pruned import pruned_notes
from ..reader.scan import DAMAGED, Scan

if TYPE_CHECKING:
    from ..reader import Run, Segment, Writer
    from ..reader.segments import Damage

__all__ = ["damaged_files", "folders_without_runs", "why_unreadable"]


def folders_without_runs(path: Path, runs: Sequence[Run]) -> list[Path]:
    """Folders right below a folder of runs that hold no span file, hidden and pruned ones aside; none below a run."""
    with_runs = {run.folder for run in runs}
    if not path.is_dir() or path in with_runs:
        return []
    return sorted(
        Path(entry.path)
        for entry in os.scandir(path)
        if entry.is_dir()
        and not entry.name.startswith(".")
        and Path(entry.path) not in with_runs
        and not pruned_notes(Path(entry.path))
        and os.access(entry.path, os.R_OK | os.X_OK)
    )


def why_unreadable(run: Run) -> str:
    """What the operating system says when none of the run's files can be opened, or that none of them begins with its
    header, which names the project; "" when one does."""
    refused, headless = "", ""
    for segment in (segment for writer in run.writers for segment in writer.segments):
        try:
            with open_file(segment.path):
                headless = headless or f"{segment.path.name} does not begin with its header: it is cut off or damaged"
        except OSError as error:
            refused = f"cannot be read: {segment.path.name}: {error.strerror}"
    if any(writer.header for writer in run.writers):
        return ""
    return headless or refused


def damaged_files(run: Run, damages: Iterable[Damage]) -> list[str]:
    """Files of the run where records were, and may be missing, and those that hold none at all; not the end that a kill
    tore, whose call had not returned, nor a file that it left as soon as it was opened."""
    kinds: dict[Path, set[str]] = {}
    for damage in damages:
        kinds.setdefault(damage.path, set()).add(damage.kind)
    segments = {segment.path: (writer, segment) for writer in run.writers for segment in writer.segments}
    return sorted(
        str(path)
        for path, of_file in kinds.items()
        if of_file & {"zstd", "line"} or ("header" in of_file and path in segments and _is_garbage(*segments[path]))
    )


def _is_garbage(writer: Writer, segment: Segment) -> bool:
    path = segment.path
    scan = Scan(path, writer.id, segment.index, sealed=path.name.endswith(".zst"), alive=bool(writer.alive))
    return next(iter(scan), None) is None and scan.report.state == DAMAGED
