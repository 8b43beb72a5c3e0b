"""What lies beside the runs of a folder: folders that hold none, runs that nobody may read, files that are none."""

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

__all__ = ["files_without_records", "folders_without_runs", "why_unreadable"]


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
    """What the operating system says when none of the run's files can be opened; "" when one can."""
    reason = ""
    for writer in run.writers:
        for segment in writer.segments:
            try:
                with open_file(segment.path):
                    return ""
            except OSError as error:
                reason = f"cannot be read: {segment.path.name}: {error.strerror}"
    return reason


def files_without_records(run: Run, damages: Iterable[Damage]) -> list[str]:
    """Files of the run that are damaged, and not one record is left of, as a path and these words; but not what a kill
    leaves of a file that was just opened."""
    damaged = {damage.path for damage in damages if damage.kind in ("zstd", "line", "header")}
    return [
        f"{path}: no record of a rollout is in it"
        for writer in run.writers
        for segment in writer.segments
        if (path := segment.path) in damaged and _is_garbage(path, writer, segment)
    ]


def _is_garbage(path: Path, writer: Writer, segment: Segment) -> bool:
    scan = Scan(path, writer.id, segment.index, sealed=path.name.endswith(".zst"), alive=bool(writer.alive))
    return next(iter(scan), None) is None and scan.report.state == DAMAGED
