"""What lies beside the runs of a folder: folders that hold none, and runs that nobody may read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..reader.places import open_file
from ..reader.pruned import pruned_notes

if TYPE_CHECKING:
    from ..reader import Run

__all__ = ["folders_without_runs", "why_unreadable"]


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
