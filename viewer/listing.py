"""What `verl-trace ls` says of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..reader import Run, Summary
from .text import human_bytes, plain_table, visible

__all__ = ["listing", "run_facts"]


def run_facts(run: Run, summary: Summary) -> dict[str, Any]:
    """The facts of one run as JSON values."""
    return {
        "folder": str(run.folder),
        "project_name": run.project_name,
        "experiment_name": run.experiment_name,
        "state": run.state,
        "attempts": [{"id": a, "trajectories": summary.per_attempt.get(a, 0)} for a in run.attempts],
        "writers": len(run.writers),
        "segments": sum(len(writer.segments) for writer in run.writers),
        "steps": sorted(summary.steps, key=lambda step: (isinstance(step, str), step)),
        "trajectories": summary.trajectories,
        "calls": summary.calls,
        "errors": summary.errors,
        "unfinished": summary.unfinished,
        "orphans": summary.orphans,
        "skipped": summary.skipped,
        "lost": summary.lost,
        "duplicates": summary.duplicates,
        "unknown_kinds": summary.unknown_kinds,
        "damages": [
            {"file": d.path.name, "offset": d.offset, "length": d.length, "kind": d.kind, "reason": d.reason}
            for d in summary.damages
        ],
        "bytes": run.stored_bytes,
        "first": summary.first or None,
        "last": summary.last or None,
    }


def listing(facts: Sequence[dict[str, Any]]) -> str:
    """A table, one run a row, and below it what deserves a sentence."""
    head = ("run", "project", "state", "att", "steps", "traj", "calls", "err", "size")
    rows = [_row(fact) for fact in facts]
    notes = [note for fact in facts for note in _notes(fact)]
    return "\n".join([plain_table(head, rows, right=frozenset({3, 4, 5, 6, 7, 8})), *notes])


def _row(fact: dict[str, Any]) -> tuple[str, ...]:
    return (
        visible(fact["experiment_name"]),
        visible(fact["project_name"]),
        fact["state"],
        str(len(fact["attempts"])),
        _steps(fact["steps"]),
        str(fact["trajectories"]),
        str(fact["calls"]),
        str(fact["errors"]),
        human_bytes(fact["bytes"]),
    )


def _steps(steps: list[Any]) -> str:
    if not steps:
        return "-"
    return visible(steps[0]) if len(steps) == 1 else f"{visible(steps[0])}..{visible(steps[-1])}"


def _notes(fact: dict[str, Any]) -> list[str]:
    name = visible(fact["experiment_name"])
    notes = []
    if not fact["calls"]:
        notes.append(f"{name}: no calls recorded")
    counts = {
        "unfinished": "calls without an end (their process was killed, or is still at it)",
        "orphans": "calls whose parent is not in the files",
        "skipped": "trajectories left out by sampling or VERL_TRACE_STEPS",
        "lost": "records that the disk did not take",
        "duplicates": "records that were there twice and count once",
    }
    notes += [f"{name}: {fact[key]} {words}" for key, words in counts.items() if fact[key]]
    notes += [f"{name}: {n} records of the unknown kind {visible(kind)!r}" for kind, n in fact["unknown_kinds"].items()]
    for damage in fact["damages"]:
        where = f"{visible(damage['file'])} at byte {damage['offset']}, {damage['length']} bytes"
        notes.append(f"{name}: {damage['kind']}: {where}: {visible(damage['reason'])}")
    return notes
