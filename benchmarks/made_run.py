"""A run as GRPO training leaves it, written fast: seeded, of any size, without a model.

python benchmarks/made_run.py FOLDER GIGABYTES
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import zstandard

from verl_trace.schemas.files import segment_file_name, writer_id

__all__ = ["make_run"]

SEGMENT = 64 << 20
WRITERS = 4
TOGETHER = 16
PROMPT, RESPONSE, TURNS = 3072, 512, (2, 8)
_TEXT = (
    "the answer is therefore since equation number apply rule divide both sides by seven hence we get let x be "
    'result check again "quoted" back\\slash naïve 漢字 step compute search query returned document page'
)
WORDS = _TEXT.split()
BEGIN = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


class Maker:
    """Makes the lines of one writer; several trajectories are under way at a time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.clock = 0
        self.ids = itertools.count(seed << 40)
        self.vocabulary = [min(151_000, int(self.random.paretovariate(0.5))) for _ in range(1 << 16)]
        self.probabilities = [round(-self.random.expovariate(2.0), 6) for _ in range(1 << 16)]

    def tick(self) -> str:
        self.clock += self.random.randrange(500, 3_000)
        return (BEGIN + timedelta(microseconds=self.clock)).isoformat(timespec="microseconds").replace("+00:00", "Z")

    def new_id(self) -> str:
        return f"0195{next(self.ids):012x}"[:8] + f"-{self.clock & 0xFFFF:04x}-7000-8000-{next(self.ids):012x}"

    def tokens(self, count: int) -> list[int]:
        at = self.random.randrange(len(self.vocabulary) - count)
        return self.vocabulary[at : at + count]

    def text(self, words: int) -> str:
        return " ".join(self.random.choices(WORDS, k=words))

    def trajectory(self, step: int, sample: int, rollout: int) -> Iterator[bytes]:
        numbers = {"step": step, "sample_index": sample, "rollout_n": rollout, "validate": False}
        attributes = {**numbers, "experiment_name": "made"}
        root = self.new_id()

        def start(op: str, call: str, parent: str | None, inputs: Any) -> bytes:
            head = {"op": op, "id": call, "trace_id": root, "parent_id": parent, "started_at": self.tick()}
            begun[call] = {**attributes, **head}
            return line("start", {**begun[call], "attributes": attributes}, "inputs", inputs)

        def end(call: str, output: Any, exception: Any = None, text: bool = False) -> bytes:
            outcome = {"ended_at": self.tick(), "duration": self.random.uniform(0.01, 9), "text": text}
            status = {"status": "error" if exception else "success", "exception": exception}
            return line("end", {**begun[call], **outcome, **status, "attributes": attributes}, "output", output)

        begun: dict[str, dict[str, Any]] = {}
        question = self.text(40)
        prompt, response = self.tokens(self.random.randrange(PROMPT // 2, PROMPT)), list[int]()
        mask = list[int]()
        yield start("ToolAgentLoop.run", root, None, {"raw_prompt": [{"role": "user", "content": question}]})
        for turn in range(self.random.randint(*TURNS)):
            call, written = self.new_id(), self.tokens(RESPONSE)
            yield start("LLMServerClient.generate", call, root, {"request_id": root, "prompt_ids": prompt + response})
            probabilities = self.probabilities[:RESPONSE]
            yield end(call, {"token_ids": written, "log_probs": probabilities, "stop_reason": "completed"}, text=True)
            said = {"prompt_text": question, "response_text": self.text(RESPONSE // 2)}
            yield line("text", begun[call], "output", said)
            call = self.new_id()
            yield start("SearchTool.execute", call, root, {"parameters": {"query": f"needle-{step}-{turn} x"}})
            failed = {"type": "TimeoutError", "message": "no answer", "traceback": []}
            yield end(call, self.text(60), failed if self.random.random() < 0.02 else None)
            response += written + self.tokens(64)
            mask += [1] * RESPONSE + [0] * 64
        yield end(root, {"prompt_ids": prompt, "response_ids": response, "response_mask": mask, "num_turns": 4})


def line(kind: str, head: dict[str, Any], key: str, payload: Any) -> bytes:
    """A record as docs/format.md has it."""
    body = orjson.dumps(payload)
    return orjson.dumps({"kind": kind, "bytes": len(body), **head})[:-1] + b',"%b":%b}\n' % (key.encode(), body)


def make_run(folder: Path, size: int) -> int:
    """Fill `folder` with a sealed run of about `size` bytes of records; how many bytes it became."""
    folder.mkdir(parents=True, exist_ok=True)
    return sum(_writer(folder, number, size // WRITERS) for number in range(1, WRITERS + 1))


def _writer(folder: Path, number: int, size: int) -> int:
    maker = Maker(number)
    name = writer_id("20260301T120000", f"node{number}", 4711, f"{number:012x}")
    places = ((step, sample, n) for step in itertools.count(1) for sample in range(8) for n in range(8))
    under_way = [maker.trajectory(*next(places)) for _ in range(TOGETHER)]
    written = index = 0
    while written < size:
        lines = [_header(name, index, number, maker)]
        held = 0
        while held < SEGMENT and written + held < size:
            slot = maker.random.randrange(TOGETHER)
            record = next(under_way[slot], None)
            if record is None:
                under_way[slot] = maker.trajectory(*next(places))
                continue
            lines.append(record)
            held += len(record)
        written += held
        lines.append(_close(len(lines) - 1, last=written >= size))
        compressed = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(b"".join(lines))
        (folder / segment_file_name(name, index, sealed=True)).write_bytes(compressed)
        index += 1
    return written


def _header(name: str, index: int, number: int, maker: Maker) -> bytes:
    fields = {
        "kind": "header", "schema": 1, "writer": name, "segment": index, "project_name": "bench/made",
        "experiment_name": "made", "attempt": "a1", "host": f"node{number}", "pid": 4711, "pid_start": 1, "pid_ns": 1,
        "boot_id": "none", "started_at": maker.tick(), "opened_at": maker.tick(), "versions": {},
    }  # fmt: skip
    return orjson.dumps(fields) + b"\n"


def _close(records: int, *, last: bool) -> bytes:
    reason = "exit" if last else "rotated"
    return orjson.dumps({"kind": "close", "reason": reason, "records": records, "counters": {}}) + b"\n"


if __name__ == "__main__":
    began = time.perf_counter()
    made = make_run(Path(sys.argv[1]), int(float(sys.argv[2]) * 1e9))
    print(f"{made / 1e9:.2f} GB in {time.perf_counter() - began:.0f} s")
