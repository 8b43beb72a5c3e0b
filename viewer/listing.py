"""What `verl-trace ls` says of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..reader import Run, Summary
from ..reader.losses import lost_words
from ..reader.pruned import pruned_notes, pruned_words
from ..schemas.wording import counted
from .text import cell_width, human_bytes, human_seconds, plain_table, visible

__all__ = ["as_of_facts", "as_of_note", "listing", "run_facts"]

_HEAD = ("run", "project", "state", "att", "steps", "traj", "calls", "err", "reward", "size")
_NAMES = 2
# A torn end per killed worker is ordinary; more than this of a run says nothing new.
_DAMAGES_TOLD = 5


def run_facts(run: Run, summary: Summary) -> dict[str, Any]:
    """The facts of one run as JSON values."""
    return {
        "folder": str(run.folder),
        "project_name": run.project_name,
        "experiment_name": run.experiment_name,
        "state": run.state,
        **as_of_facts(run),
        "attempts": [{"id": a, "trajectories": summary.per_attempt.get(a, 0)} for a in run.attempts],
        "writers": len(run.writers),
        "segments": sum(len(writer.segments) for writer in run.writers),
        "steps": sorted(summary.steps, key=lambda step: (isinstance(step, str), step)),
        "trajectories": summary.trajectories,
        "calls": summary.calls,
        "errors": summary.errors,
        "unfinished": summary.unfinished,
        "orphans": summary.orphans,
        "reward": {
            "trajectories": summary.rewarded,
            "mean": summary.reward_mean,
            "min": summary.reward_min,
            "max": summary.reward_max,
        },
        "unscored": summary.unscored,
        "unjoined_scores": summary.unjoined_scores,
        "skipped": summary.skipped,
        "lost": summary.lost,
        "lost_by": dict(summary.lost_by),
        "duplicates": summary.duplicates,
        "unknown_kinds": summary.unknown_kinds,
        "damages": [
            {"file": d.path.name, "offset": d.offset, "length": d.length, "kind": d.kind, "reason": d.reason}
            for d in summary.damages
        ],
        "nodes": sorted({writer.node for writer in run.writers} - {""}),
        "clock_differences": [
            {"node": node, "behind": parent, "seconds": found.seconds, "calls": found.calls}
            for (node, parent), found in sorted(summary.clocks.items())
        ],
        "bytes": run.stored_bytes,
        "content_bytes": run.content_bytes,
        "pruned": [
            {key: note.get(key) for key in ("note", "pruned_at", "project_id", "page", "trajectories", "calls")}
            for note in pruned_notes(run.folder)
            if note.get("experiment_name") == run.experiment_name and note.get("project_name") == run.project_name
        ],
        "first": summary.first or None,
        "last": summary.last or None,
    }


def as_of_facts(run: Run) -> dict[str, Any]:
    """How many processes still write, and until when all that was recorded is in the figures; None: for good."""
    writing = run.writing
    return {"as_of": run.as_of if writing else None, "writing": writing}


def as_of_note(facts: dict[str, Any]) -> str:
    """The same in words, "" for a run to which nothing is added any more."""
    if not facts["writing"]:
        return ""
    return f"as of {facts['as_of']}; {counted(facts['writing'], 'process')} still at work"


def listing(facts: Sequence[dict[str, Any]], *, columns: int | None = None, whole_run: bool = True) -> str:
    """A table, one run a row, and below it what deserves a sentence.

    Where a row would be wider than `columns`, the names get a line of their own above the numbers. `whole_run`: the
    counts are of everything in it, not of what filters left.
    """
    rows = [_row(fact) for fact in facts]
    notes = [note for fact in facts for note in _notes(fact, whole_run)]
    return "\n".join([_table(rows, columns), *notes])


def _table(rows: list[tuple[str, ...]], columns: int | None) -> str:
    table = plain_table(_HEAD, rows, right=frozenset(range(3, len(_HEAD))))
    if columns is None or all(cell_width(line) <= columns for line in table.splitlines()):
        return table
    numbers = plain_table(
        _HEAD[_NAMES:], [row[_NAMES:] for row in rows], right=frozenset(range(1, len(_HEAD) - _NAMES))
    )
    names = [f"{run}  {project}" for run, project, *_ in [_HEAD, *rows]]
    return "\n".join(f"{name}\n  {line}" for name, line in zip(names, numbers.splitlines(), strict=True))


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
        _reward(fact["reward"]),
        human_bytes(fact["bytes"]),
    )


def _steps(steps: list[Any]) -> str:
    if not steps:
        return "-"
    return visible(steps[0]) if len(steps) == 1 else f"{visible(steps[0])}..{visible(steps[-1])}"


def _reward(found: dict[str, Any]) -> str:
    """Mean, and in which range."""
    if not found["trajectories"]:
        return "-"
    mean, low, high = (f"{found[key]:.4g}" for key in ("mean", "min", "max"))
    return f"{mean} [{low}..{high}]"


def _notes(fact: dict[str, Any], whole_run: bool) -> list[str]:
    name = visible(fact["experiment_name"])
    notes = [f"{name}: {note}"] if (note := as_of_note(fact)) else []
    if not fact["calls"]:
        notes.append(f"{name}: {'no calls recorded' if whole_run else 'no trajectory is meant by these filters'}")
    counts = {
        "unfinished": ("call", f"without an end ({_why_unfinished(fact)})"),
        "orphans": ("call", "whose parent is not in the files"),
        "unscored": ("trajectory", "whose reward is not known (yet)"),
        "unjoined_scores": ("score", "of trajectories that are not in the files"),
        "skipped": ("trajectory", "left out by sampling or VERL_TRACE_STEPS"),
        "duplicates": ("record", "found twice and counted once"),
    }
    notes += [f"{name}: {counted(fact[key], noun)} {words}" for key, (noun, words) in counts.items() if fact[key]]
    if fact["lost"]:
        notes.append(f"{name}: {visible(lost_words(fact['lost'], fact['lost_by']))}")
    notes += [_clock_note(name, found) for found in fact["clock_differences"]]
    unknown = fact["unknown_kinds"].items()
    notes += [f"{name}: {counted(n, 'record')} of the unknown kind {visible(kind)!r}" for kind, n in unknown]
    for damage in fact["damages"][:_DAMAGES_TOLD]:
        where = f"{visible(damage['file'])} at byte {damage['offset']:,}, {counted(damage['length'], 'byte')}"
        notes.append(f"{name}: {damage['kind']}: {where}: {visible(damage['reason'])}")
    notes += [f"{name}: {visible(pruned_words(note))}" for note in fact["pruned"]]
    if len(fact["damages"]) > _DAMAGES_TOLD:
        more = counted(len(fact["damages"]) - _DAMAGES_TOLD, "more damaged place")
        notes.append(f"{name}: {more}; --json lists them all")
    return notes


def _why_unfinished(fact: dict[str, Any]) -> str:
    """What may have become of calls that did not end. A process that has closed its recording was not killed."""
    damaged = fact["lost_by"].get("damaged", 0)
    reasons = ["the record was not written"] if fact["lost"] > damaged else []
    reasons += ["the record was damaged"] if damaged else []
    if damaged and fact["state"] == "closed":
        # the copy is closed, whatever became of the process
        reasons.append("the process was killed")
    if fact["state"] != "closed":
        reasons.append("the process was killed, or is still at it")
    return ", or ".join(reasons) or "still at work when the recording ended"


def _clock_note(name: str, found: dict[str, Any]) -> str:
    node, behind = visible(found["node"] or "?"), visible(found["behind"] or "?")
    seconds = human_seconds(found["seconds"])
    told = (
        f"the clock of {node} was set back by"
        if node == behind
        else f"the clock of {node} is behind that of {behind} by"
    )
    return f"{name}: {told} at least {seconds} ({counted(found['calls'], 'call')} before the parent's beginning)"
