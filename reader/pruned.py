"""Notes that `verl-trace prune` leaves beside a run: what was there, and where it is now.

`pruned-<UTC>-<random>.jsonl`: the first line says what was deleted, when, and which project holds it; each further line
is a trajectory, with the facts that listings show. Trajectories of a note are stored in that project whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from ..schemas.files import PRUNED_PREFIX
from .places import folders_in, list_folder, open_file
from .records import text_of

__all__ = ["pruned_folders", "pruned_ids", "pruned_notes", "pruned_words"]

# A first line lists the files of a run.
_MAX_LINE = 64 << 20


def pruned_notes(folder: Path) -> list[dict[str, Any]]:
    """The first lines of a folder's notes, in the order in which they were written; `note`: the file's name."""
    try:
        names = sorted(name for name in list_folder(folder) if name.startswith(PRUNED_PREFIX))
    except OSError:
        return []
    found = []
    for name in names:
        head = next(_lines(folder / name), None)
        if head is not None and head.get("kind") == "pruned":
            found.append({**head, "note": name})
    return found


def pruned_words(note: dict[str, Any]) -> str:
    """A note in a sentence."""
    when = text_of(note.get("pruned_at"))[:10]
    place = text_of(note.get("page")) or text_of(note.get("project_id"))
    count = note.get("trajectories")
    return f"pruned on {when} ({note['note']}): {count} trajectories, which {place} holds"


def pruned_folders(path: Path) -> list[Path]:
    """`path` and the folders right below it, as far as notes lie in them."""
    try:
        return [folder for folder in (path, *folders_in(path)) if pruned_notes(folder)]
    except OSError:
        return []


def pruned_ids(folder: Path, server: str, project_id: str) -> set[str]:
    """Trace ids that notes say this project holds: a deletion that was interrupted may have left parts of them."""
    found: set[str] = set()
    for note in pruned_notes(folder):
        if (note.get("server"), note.get("project_id")) == (server, project_id):
            lines = _lines(folder / note["note"])
            next(lines, None)
            found |= {text_of(line.get("trace_id")) for line in lines}
    return found - {""}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with open_file(path) as file:
            while line := file.readline(_MAX_LINE):
                try:
                    value = orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue
                if isinstance(value, dict):
                    yield value
    except OSError:
        return
