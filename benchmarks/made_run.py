"""A run as GRPO training leaves it, written fast: what `workload` makes, as span files, without the recorder.

python benchmarks/made_run.py FOLDER GIGABYTES [--kind S|M|L|mix] [--raw]
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from workload import KINDS, REQUEST, SAMPLING, Trajectory, trajectories

from verl_trace.recorder.sealing import seal
from verl_trace.schemas.files import segment_file_name, writer_id

__all__ = ["make_run"]

SEGMENT = 64 << 20
WRITERS = 4
TOGETHER = 32
# Bytes of an ordinary trajectory's records.
_ABOUT = 250_000
BEGIN = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


class Lines:
    """Makes the lines of one writer."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        self.clock = 0
        self.ids = itertools.count((number << 40) + 1)

    def tick(self) -> str:
        """The next moment."""
        self.clock += self.random.randrange(500, 3_000)
        return (BEGIN + timedelta(microseconds=self.clock)).isoformat(timespec="microseconds").replace("+00:00", "Z")

    def new_id(self) -> str:
        """A UUIDv7 whose time is the clock's."""
        millis = int(BEGIN.timestamp() * 1000) + self.clock // 1000
        tail = f"{next(self.ids):015x}"
        return f"{millis >> 16:08x}-{millis & 0xFFFF:04x}-7{tail[:3]}-8000-{tail[3:]}"

    def of(self, made: Trajectory) -> Iterator[bytes]:
        """The lines of a trajectory, as docs/format.md has them."""
        numbers = {"step": made.step, "sample_index": made.sample_index, "rollout_n": made.rollout_n, "validate": False}
        attributes = {**numbers, "experiment_name": "made"}
        root = self.new_id()
        begun: dict[str, dict[str, Any]] = {}

        def start(op: str, call: str, inputs: Any) -> bytes:
            parent = None if call == root else root
            head = {"op": op, "id": call, "trace_id": root, "parent_id": parent, "started_at": self.tick()}
            begun[call] = {**attributes, **head}
            return line("start", {**begun[call], "attributes": attributes}, "inputs", inputs)

        def end(call: str, output: Any, exception: Any = None) -> bytes:
            outcome = {"ended_at": self.tick(), "duration": self.random.uniform(0.01, 9), "text": False}
            status = {"status": "error" if exception else "success", "exception": exception}
            return line("end", {**begun.pop(call), **outcome, **status, "attributes": attributes}, "output", output)

        yield start("ToolAgentLoop.run", root, {"sampling_params": SAMPLING, "raw_prompt": made.messages})
        for turn, ids in zip(made.turns, made.prompts(), strict=True):
            if turn.answer is not None:
                call = self.new_id()
                inputs = {"request_id": REQUEST, "prompt_ids": ids, "sampling_params": SAMPLING}
                yield start("LLMServerClient.generate", call, inputs)
                yield end(call, turn.answer)
            if turn.parameters is not None:
                call = self.new_id()
                yield start("SearchTool.execute", call, {"instance_id": REQUEST, "parameters": turn.parameters})
                if self.random.random() < 0.02:
                    failed = {"type": "TimeoutError", "message": "no answer", "traceback": []}
                    yield end(call, None, failed)
                else:
                    yield end(call, turn.result)
        yield end(root, made.output())


def line(kind: str, head: dict[str, Any], key: str, payload: Any) -> bytes:
    """A record as docs/format.md has it."""
    body = orjson.dumps(payload)
    return orjson.dumps({"kind": kind, "bytes": len(body), **head})[:-1] + b',"%b":%b}\n' % (key.encode(), body)


def make_run(folder: Path, size: int, kind: str = "mix", *, sealed: bool = True, together: int = TOGETHER) -> int:
    """Fill `folder` with a closed run of about `size` bytes of records; how many bytes it became.

    Four writers, each with `together` trajectories under way at a time, all of which are finished. The segments are
    sealed as the recorder seals them, or left raw.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(2) as pool:
        job = partial(_writer, folder, size // WRITERS, kind, sealed, together)
        return sum(pool.map(job, range(1, WRITERS + 1)))


def _writer(folder: Path, size: int, kind: str, sealed: bool, together: int, number: int) -> int:
    lines, source = Lines(number), trajectories(kind, number)
    name = writer_id("20260301T120000", f"node{number}", 4711, f"{number:012x}")
    # a small run begins fewer at once, so that finishing what it began keeps it small
    under_way = [lines.of(next(source)) for _ in range(max(1, min(together, size // _ABOUT)))]
    written = index = 0
    while under_way:
        raw = folder / segment_file_name(name, index)
        with raw.open("wb") as file:
            file.write(_header(name, index, number, lines))
            held = records = 0
            while held < SEGMENT and under_way:
                slot = lines.random.randrange(len(under_way))
                record = next(under_way[slot], None)
                if record is None:
                    if written + held < size:
                        under_way[slot] = lines.of(next(source))
                    else:
                        del under_way[slot]
                    continue
                file.write(record)
                held += len(record)
                records += 1
            written += held
            file.write(_close(records, lines, last=not under_way))
        if sealed:
            seal(raw)
        index += 1
    return written


def _header(name: str, index: int, number: int, lines: Lines) -> bytes:
    fields = {
        "kind": "header", "schema": 1, "writer": name, "segment": index, "project_name": "bench/made",
        "experiment_name": "made", "attempt": "a1", "host": f"node{number}", "pid": 4711, "pid_start": 1, "pid_ns": 1,
        "boot_id": "none", "started_at": lines.tick(), "opened_at": lines.tick(), "versions": {},
    }  # fmt: skip
    return orjson.dumps(fields) + b"\n"


def _close(records: int, lines: Lines, *, last: bool) -> bytes:
    reason = "exit" if last else "rotated"
    fields = {"kind": "close", "closed_at": lines.tick(), "reason": reason, "records": records, "counters": {}}
    return orjson.dumps(fields) + b"\n"


def main() -> None:
    """Make a run and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("gigabytes", type=float)
    parser.add_argument("--kind", choices=sorted(KINDS), default="mix")
    parser.add_argument("--raw", action="store_true", help="leave the segments as a live recording has them")
    options = parser.parse_args()
    began = time.perf_counter()
    made = make_run(options.folder, int(options.gigabytes * 1e9), options.kind, sealed=not options.raw)
    stored = sum(path.stat().st_size for path in options.folder.iterdir())
    took = time.perf_counter() - began
    print(f"{made / 1e9:.2f} GB of records, {stored / 1e6:.0f} MB on disk, in {took:.0f} s")


if __name__ == "__main__":
    main()
