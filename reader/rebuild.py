"""Records that a repaired copy needs and the original does not have: headers, close records, and what was lost."""

from __future__ import annotations

from typing import Any

import orjson

from ..schemas.lines import SCHEMA_VERSION
from .runs import Run
from .scan import FileReport
from .verify import damage_json

__all__ = ["close_record", "header_record", "lost_record"]

# Damaged places that one record names; the report file beside the copy has all.
_NAMED = 1000


def header_record(run: Run, file: FileReport, missing_before: int) -> bytes:
    """The header of a segment: its own as far as there is one, else a sibling's, else what name and run tell."""
    writer = next(writer for writer in run.writers if writer.id == file.writer)
    known = file.header if file.header is not None and file.header_fits else writer.header
    origin = "own" if known is file.header else "sibling" if known else "file name"
    head: dict[str, Any] = {**_from_name(run, file), **known, "writer": file.writer, "segment": file.index}
    head["repaired"] = {"header": origin, "missing_before": missing_before}
    return _line(head)


def lost_record(file: FileReport, counts: dict[str, int], now: str) -> bytes:
    """What was left out of a segment."""
    damages = [damage_json(problem) for problem in file.problems[:_NAMED] if problem.kind != "torn"]
    return _line(
        {
            "kind": "lost",
            "since": file.first_seen or now,
            "until": file.last_seen or now,
            "counts": counts,
            "records": sum(counts.values()),
            "repaired": {"damages": damages},
        }
    )


def close_record(file: FileReport, reason: str, records: int, now: str) -> bytes:
    """The last line of a segment; the counters are the original's where it had any."""
    close = file.close or {}
    counters = close.get("counters") or {"written": records, "skipped": 0, "dropped": 0}
    return _line(
        {
            **close,
            "kind": "close",
            "closed_at": close.get("closed_at") or now,
            "reason": reason,
            "records": records,
            "counters": counters,
            "repaired": {"close": "own" if close else "none"},
        }
    )


def _from_name(run: Run, file: FileReport) -> dict[str, Any]:
    """All that a header must say, as far as the file's name and its run tell it."""
    # <UTC start>-<host>-<pid>-<random digits>; the host may hold hyphens
    begun, _, rest = file.writer.partition("-")
    parts = rest.rsplit("-", 2)
    pid = int(parts[1]) if len(parts) == 3 and parts[1].isascii() and parts[1].isdigit() else 1
    seen = file.first_seen or _time(begun)
    return {
        "kind": "header",
        "schema": SCHEMA_VERSION,
        "writer": file.writer,
        "segment": file.index,
        "project_name": run.project_name,
        "experiment_name": run.experiment_name,
        "attempt": "unknown",
        "backend": None,
        "token2text": False,
        "max_samples_per_step_per_worker": None,
        "host": parts[0] if len(parts) == 3 else "unknown",
        "pid": pid,
        "pid_start": None,
        "pid_ns": None,
        "boot_id": None,
        "started_at": _time(begun) if len(parts) == 3 else seen,
        "opened_at": seen,
        "slurm": {},
        "ray": {},
        "rank": {},
        "versions": {},
        "wandb": {},
    }


def _time(begun: str) -> str:
    """20261129T161100 as a time of a record; the beginning of the epoch where a name has no such part."""
    if len(begun) == 15 and begun[8] == "T" and (begun[:8] + begun[9:]).isdigit():
        day, clock = begun[:8], begun[9:]
        return f"{day[:4]}-{day[4:6]}-{day[6:]}T{clock[:2]}:{clock[2:4]}:{clock[4:]}.000000Z"
    return "1970-01-01T00:00:00.000000Z"


def _line(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record) + b"\n"
