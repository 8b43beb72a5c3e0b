"""Notes that `verl-trace prune` leaves beside a run: what was there, and where it is now.

`pruned-<UTC>-<random>.jsonl`: the first line says what was deleted, when, and which project holds it; each further line
is a trajectory, with the facts that listings show. Trajectories of a note are stored in that project whole. A last line
says that the deletion has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from ..schemas.files import PRUNED_PREFIX
from ..schemas.wording import counted
from .places import folders_in, list_folder, open_file
from .records import text_of

__all__ = ["PRUNING_DONE", "Unfinished", "pruned_folders", "pruned_notes", "pruned_words", "unfinished_prunings"]

PRUNING_DONE = b'{"kind":"done"}'
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
    held = counted(count, "trajectory") if isinstance(count, int) else f"{count} trajectories"
    return f"pruned on {when} ({note['note']}): {held}, which {place} holds"


def pruned_folders(path: Path) -> list[Path]:
    """`path` and the folders right below it, as far as notes lie in them."""
    try:
        return [folder for folder in (path, *folders_in(path)) if pruned_notes(folder)]
    except OSError:
        return []


class Unfinished(NamedTuple):
    """What interrupted deletions were about. `trace_ids`: what the project holds, of which parts may be left;
    `removed`: names of files that were to go."""

    trace_ids: frozenset[str]
    removed: frozenset[str]


def unfinished_prunings(folder: Path, server: str, project_id: str) -> Unfinished:
    """What notes without a last line say that this project holds."""
    ids: set[str] = set()
    names: set[str] = set()
    for note in pruned_notes(folder):
        if (note.get("server"), note.get("project_id")) != (server, project_id):
            continue
        lines = list(_lines(folder / note["note"]))[1:]
        if not any(line.get("kind") == "done" for line in lines[-1:]):
            ids |= {text_of(line.get("trace_id")) for line in lines}
            names |= set(map(text_of, note["removed"])) if isinstance(note.get("removed"), list) else set()
    return Unfinished(frozenset(ids - {""}), frozenset(names - {""}))


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
