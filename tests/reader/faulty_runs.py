"""A healthy run as lines, and what tests of faults do with it: store it with a fault, read it, check its copy."""

from __future__ import annotations

import io
import os
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import zstandard

from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.reader.repair import repair
from verl_trace.reader.verify import RunReport, verify
from verl_trace.schemas.files import segment_file_name

SEED = random.SystemRandom().randrange(1 << 32)


class Run(NamedTuple):
    """A healthy run of one writer in two segments: the lines of both."""

    writer: str
    first: list[bytes]
    last: list[bytes]


def healthy_run() -> Run:
    """Two segments: nested calls, an error, decoded text, a sampled-out trajectory, a kind and a key of the future."""
    lines = Lines()
    first = [lines.header(0), *lines.trajectory(), *lines.trajectory(text=True), lines.future()]
    first.append(lines.close("rotated", len(first) - 1))
    last = [lines.header(1), *lines.trajectory(error=True), lines.skip(), *lines.trajectory()]
    last.append(lines.close("exit", len(last) - 1))
    return Run(Lines.writer, first, last)


class Lines:
    """Records as `docs/format.md` has them, with a clock of their own."""

    writer = "20260301T120000-node3-4711-9f3c2b7a1d04"

    def __init__(self) -> None:
        self._number = 0

    def _time(self) -> str:
        self._number += 1
        return f"2026-03-01T12:00:{self._number // 60:02d}.{self._number % 60:06d}Z"

    def _head(self, trace: str | None = None, parent: str | None = None) -> dict[str, Any]:
        self._number += 1
        own = f"019ca950-0000-7000-8000-{self._number:012x}"
        return {
            "step": 3, "sample_index": 7, "rollout_n": 0, "validate": False, "experiment_name": "exp1",
            "op": "Loop.run", "id": own, "trace_id": trace or own, "parent_id": parent,
        }  # fmt: skip

    @staticmethod
    def _line(kind: str, head: dict[str, Any], key: str, value: Any) -> bytes:
        body = orjson.dumps(value)
        return orjson.dumps({"kind": kind, "bytes": len(body), **head, key: orjson.Fragment(body)}) + b"\n"

    def header(self, segment: int) -> bytes:
        """First line."""
        return (
            orjson.dumps(
                {
                    "kind": "header", "schema": 1, "writer": self.writer, "segment": segment, "project_name": "me/proj",
                    "experiment_name": "exp1", "attempt": "5c1d0a77be02", "host": "node3", "pid": 4711, "pid_start": 1,
                    "pid_ns": 1, "boot_id": "another", "started_at": self._time(), "opened_at": self._time(),
                    "of_the_future": [1, 2],
                }
            )
            + b"\n"
        )  # fmt: skip

    def trajectory(self, *, error: bool = False, text: bool = False) -> list[bytes]:
        """A root with one child."""
        root = self._head()
        child = self._head(root["id"], root["id"])
        lines = []
        for head in (root, child):
            head["started_at"] = self._time()
            ids = list(range(self._number, self._number + 8))
            lines.append(self._line("start", {**head, "attributes": {"step": 3}}, "inputs", {"prompt_ids": ids}))
        for head in (child, root):
            has_text = text and head is root
            failed = error and head is child
            tail = {
                "ended_at": self._time(), "duration": 0.5, "text": has_text,
                "status": "error" if failed else "success",
                "exception": {"type": "ValueError", "message": "no", "traceback": []} if failed else None,
                "attributes": {"step": 3},
            }  # fmt: skip
            lines.append(self._line("end", {**head, **tail}, "output", None if failed else {"n": self._number}))
            if has_text:
                plain = {key: value for key, value in head.items() if key != "started_at"}
                lines.append(self._line("text", plain, "output", {"prompt_text": "hü", "response_text": "ja"}))
        return lines

    def skip(self) -> bytes:
        """A trajectory that sampling left out."""
        head = {**self._head(), "started_at": self._time(), "reason": "sampling"}
        return self._line("skip", head, "attributes", {"step": 3})

    def future(self) -> bytes:
        """A kind that this version does not know, in a form that no JSON library would write again."""
        return b'{"kind":"mark" , "note" : 1.50, "z":[ ]}\n'

    def close(self, reason: str, records: int) -> bytes:
        """Last line."""
        counters = {"written": records, "skipped": 0, "dropped": 0}
        record = {"kind": "close", "closed_at": self._time(), "reason": reason, "records": records}
        return orjson.dumps({**record, "counters": counters}) + b"\n"


def sealed(*parts: bytes) -> bytes:
    """One zstd frame with a checksum for each part."""
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
    return b"".join(compressor.compress(part) for part in parts)


def store(folder: Path, run: Run, *, first: bytes | None = None, last: bytes | None = None, seal: str = "") -> Path:
    """Write the run, with the stored bytes of a segment replaced; `seal` says which segments lie sealed."""
    folder.mkdir(exist_ok=True)
    for index, (name, lines, data) in enumerate((("first", run.first, first), ("last", run.last, last))):
        is_sealed = name in seal
        path = folder / segment_file_name(run.writer, index, sealed=is_sealed)
        whole = b"".join(lines)
        path.write_bytes(data if data is not None else sealed(whole) if is_sealed else whole)
        aged(path)
    return folder


def aged(path: Path) -> None:
    """A file that nobody has written to for long: its process, on another host, does not live."""
    then = time.time() - 1000
    os.utime(path, (then, then))


def verified(folder: Path) -> RunReport:
    """The one run of a folder."""
    (report,) = verify(folder)
    return report


def body(folder: Path) -> list[bytes]:
    """The lines of a healthy folder without headers, close records and what repair added."""
    lines: list[bytes] = []
    for path in sorted(folder.rglob("*.jsonl*")):
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
        lines += data.splitlines(keepends=True)
    added = (b'{"kind":"header"', b'{"kind":"close"', b'{"kind":"lost"')
    return [line for line in lines if not line.startswith(added)]


def records(lines: list[bytes]) -> list[bytes]:
    """Without header and close."""
    return [line for line in lines if not line.startswith((b'{"kind":"header"', b'{"kind":"close"'))]


def trees(folder: Path) -> list[Any]:
    """All that a reader makes of a folder."""
    return sorted(
        (call.trace_id, call.id, call.parent_id, call.op, call.status, call.inputs, call.output(), call.orphan)
        for run in find_runs(folder)
        for trajectory in iter_trajectories(run)
        for call in trajectory.calls
    )


def check_copy(folder: Path, out: Path, expected: list[bytes] | None = None, *, same_trees: bool = True) -> None:
    """The copy is whole, has the expected records byte for byte, and gives the trees of the original.

    `same_trees` is False where a broken frame may give records that reading takes and `verify` does not trust.
    """
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = repair(folder, out)

    assert result.copy == "whole"
    assert [report.state for report in verify(out)] == ["whole"]
    if expected is not None:
        assert body(out) == expected
    if same_trees:
        assert trees(out) == trees(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def touches(report: RunReport, begin: int, end: int, index: int) -> bool:
    """Whether a problem is told of that overlaps, or borders on, the bytes begin..end of segment `index`."""
    return any(
        problem.offset <= end and begin <= problem.offset + problem.length
        for file in report.files
        if file.index == index
        for problem in file.problems
    )


def outside(lines: list[bytes], begin: int, end: int) -> list[bytes]:
    """The lines of a file that have no byte in begin..end."""
    kept, offset = [], 0
    for line in lines:
        if offset + len(line) <= begin or offset >= end:
            kept.append(line)
        offset += len(line)
    return kept


def all_lines(folder: Path) -> list[bytes]:
    """Every line of a repaired copy."""
    paths = sorted(folder.rglob("*.zst"))
    stored = [zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()) for path in paths]
    return [line for data in stored for line in data.splitlines(keepends=True)]
