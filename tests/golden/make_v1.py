"""Writes the golden run of format version 1, from docs/format.md alone: no code of the package takes part.

    python tests/golden/make_v1.py            # into tests/golden/v1

The committed files are the promise: they are never made anew for a change of the reader. Two writers. The first has a
sealed segment of three zstd frames, one of which ends in the middle of a line, with a skippable frame between, and a
raw segment that it closed. The second was killed in the middle of a line. `expected.json` is written from what is put
in, not from what a reader makes of it.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import zstandard

Record = dict[str, Any]

# docs/format.md: every other character becomes "_", then 8 hex digits of the SHA-256 of the name
EXPERIMENT, FOLDER = "golden/one", "golden_one-b3c7166b"
WRITER_A = "20260301T120000-node3-4711-a1a1a1a1a1a1"
WRITER_B = "20260301T120000-node4-4711-b2b2b2b2b2b2"
ATTRIBUTES = {"sample_index": 7, "step": 3, "rollout_n": 0, "validate": False, "experiment_name": EXPERIMENT}
ERROR = {
    "type": "ValueError",
    "message": "no such tool: „sök“",
    "traceback": [{"filename": "agent.py", "line_number": 12, "function_name": "call_tool", "text": "raise"}],
}
# Text that looks like the format itself, and every character that JSON has to escape.
HOSTILE = '","bytes":3,"inputs":{"kind":"end"}\n\u0000\u001b[31m \U0001f600 \\'
REWARDED = {"reward": 0.25, "reward_extra_info": {"acc": True, "a.b": HOSTILE}, "num_turns": 3, "tool_rewards": [0.5]}


def uid(number: int) -> str:
    """A UUIDv7 that tells its number."""
    return f"019ca950-{number:04x}-7000-8000-{number:012x}"


def at(millis: int) -> str:
    """A moment of the run's first minute."""
    return f"2026-03-01T12:00:{millis // 1000:02d}.{millis % 1000:03d}456Z"


def text_of(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def line(record: Record) -> bytes:
    """One line with its newline."""
    return text_of(record).encode() + b"\n"


def payload_line(kind: str, head: Record, key: str, payload: Any) -> bytes:
    """A line whose head tells the length of its last value."""
    return line({"kind": kind, "bytes": len(text_of(payload).encode()), **head, key: payload})


class Call:
    """One call of the run: its records, and what is expected of a reader."""

    def __init__(self, number: int, op: str, begin: int, *, parent: int | None, trace: int, **fields: Any) -> None:
        self.attributes = {**ATTRIBUTES, **fields}
        self.begin = begin
        names = ("step", "sample_index", "rollout_n", "validate", "experiment_name")
        self.head: Record = {name: self.attributes.get(name) for name in names}
        self.head |= {"op": op, "id": uid(number), "trace_id": uid(trace)}
        self.head |= {"parent_id": None if parent is None else uid(parent)}
        self.expected: Record = {
            "id": uid(number), "op": op, "parent_id": self.head["parent_id"], "started_at": at(begin), "ended_at": None,
            "duration": None, "status": "unfinished", "exception": None, "attributes": self.attributes, "inputs": None,
            "output": None, "orphan": False, "last_seen_at": "",
        }  # fmt: skip

    def start(self, inputs: Any) -> bytes:
        """The start record."""
        self.expected["inputs"] = inputs
        head = {**self.head, "started_at": at(self.begin), "attributes": self.attributes}
        return payload_line("start", head, "inputs", inputs)

    def end(self, end: int, output: Any, *, exception: Record | None = None, text: bool = False) -> bytes:
        """The end record."""
        result = {"ended_at": at(end), "duration": (end - self.begin) / 1000}
        outcome = {"status": "success" if exception is None else "error", "exception": exception}
        self.expected |= {**result, **outcome, "output": output}
        head = {**self.head, "started_at": at(self.begin), **result, "text": text, **outcome}
        return payload_line("end", {**head, "attributes": self.attributes}, "output", output)

    def text(self, prompt: str, response: str) -> bytes:
        """The text record, to be merged into the output."""
        texts = {"prompt_text": prompt, "response_text": response}
        self.expected["output"] = {**self.expected["output"], **texts}
        return payload_line("text", self.head, "output", texts)


def score(trace: int | None, millis: int, number: int, scores: Record, **fields: Any) -> bytes:
    """A score record; what is not given is null."""
    head = {
        "step": 3, "sample_index": 7, "rollout_n": 0, "validate": False, "experiment_name": EXPERIMENT,
        "source": "agent_loop", "status": "scored", "id": uid(number),
        "trace_id": None if trace is None else uid(trace),
        "uid": None, "session": None, "row": None, "response": None, "group_size": None, "recorded_at": at(millis),
        "exception": None,
    }  # fmt: skip
    return payload_line("score", {**head, **fields}, "scores", scores)


def header(writer: str, segment: int, host: str) -> bytes:
    """First line of a segment."""
    return line(
        {
            "kind": "header", "schema": 1, "writer": writer, "segment": segment, "project_name": "me/golden",
            "experiment_name": EXPERIMENT, "attempt": "5c1d0a77be02", "backend": "jsonl", "token2text": True,
            "max_samples_per_step_per_worker": 4, "host": host, "pid": 4711, "pid_start": 123456, "pid_ns": 4026531836,
            "boot_id": "00000000-0000-4000-8000-000000000000", "started_at": at(0), "opened_at": at(segment),
            "slurm": {"job_id": "12", "restart_count": "0"}, "ray": {"session": "session_1", "job_id": "01000000"},
            "rank": {}, "versions": {"verl_trace": "0.1.0", "python": "3.11.7", "verl": "0.9.1"}, "wandb": {},
        }
    )  # fmt: skip


def close(millis: int, reason: str, records: int, written: int) -> bytes:
    """Last line of a segment."""
    counters = {"written": written, "skipped": 1, "dropped": 12, "reasons": {"ENOSPC": 12}}
    return line({"kind": "close", "closed_at": at(millis), "reason": reason, "records": records, "counters": counters})


def make(target: Path) -> None:
    """Write the run below `target`, and `expected.json` beside it."""
    root = Call(1, "ToolAgentLoop.run", 100, parent=None, trace=1, uid="g-7")
    generate = Call(2, "LLMServer.generate", 110, parent=1, trace=1, uid="g-7")
    tool = Call(3, "ToolAgentLoop._call_tool", 210, parent=1, trace=1, uid="g-7")
    bare = Call(4, "SingleTurnAgentLoop.run", 500, parent=None, trace=4, sample_index=8, rollout_n=None)
    del bare.attributes["rollout_n"]
    killed = Call(16, "ToolAgentLoop.run", 1000, parent=None, trace=16, step=4)
    child = Call(17, "LLMServer.generate", 1010, parent=16, trace=16, step=4)
    orphan = Call(19, "BaseTool.execute", 1100, parent=18, trace=18, step=4)

    first = [
        header(WRITER_A, 0, "node3"),
        root.start({"self": "<ToolAgentLoop>", "prompt": HOSTILE}),
        generate.start({"prompt_ids": list(range(40))}),
        generate.end(200, {"token_ids": [5, 6, 7], "log_probs": [-0.5, -1e-07, 0.0]}, text=True),
        line({"kind": "note", "about": "a kind that version 1 does not know"}),
        tool.start({"name": "sök"}),
        tool.end(260, None, exception=ERROR),
        generate.text("2 + 2 = ?", "4"),
        root.end(900, {"reward": 0.5}),
        score(1, 905, 30, REWARDED, uid="g-7", session=0, group_size=1),
        close(906, "rotated", 9, 9),
    ]
    second = [
        header(WRITER_A, 1, "node3"),
        bare.start({}),
        line({"kind": "lost", "since": at(600), "until": at(1600), "counts": {"ENOSPC": 12}, "records": 12}),
        payload_line("skip", {**Call(5, "agent_loop", 1700, parent=None, trace=5).head, "started_at": at(1700),
                              "reason": "sampling"}, "attributes", ATTRIBUTES),
        bare.end(1800, ["a list"])[:-2] + b',"added_later":1}\n',
        score(4, 1800, 31, {"reward": None, "num_turns": 2}, uid="g-8", session=1, group_size=2, status="partial",
              sample_index=8, rollout_n=None),
        score(None, 1850, 32, {"reward": -1.5}, source="trainer", uid="g-8", session=1, sample_index=None,
              rollout_n=None),
        close(1801, "exit", 6, 14),
    ]  # fmt: skip
    third = [header(WRITER_B, 0, "node4"), killed.start({"n": 1}), child.start({"n": 2}), orphan.start({"n": 3})]
    third.append(orphan.end(1200, {"text": "42"}))
    torn = child.end(1300, {"token_ids": [1, 2, 3]})[:-9]

    child.expected |= {"ended_at": None, "duration": None, "status": "unfinished", "output": None}
    for call in (killed, child):
        call.expected["last_seen_at"] = at(1200)
    orphan.expected["orphan"] = True

    folder = target / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{WRITER_A}.00000.jsonl.zst").write_bytes(sealed(b"".join(first)))
    (folder / f"{WRITER_A}.00001.jsonl").write_bytes(b"".join(second))
    (folder / f"{WRITER_B}.00000.jsonl").write_bytes(b"".join(third) + torn)
    (folder / ".attempt-5c1d0a77be02").touch()
    trees = {1: [root, generate, tool], 4: [bare], 16: [killed, child], 18: [orphan]}
    facts = {
        "project_name": "me/golden", "experiment_name": EXPERIMENT, "attempts": ["5c1d0a77be02"], "steps": [3, 4],
        "trajectories": 4, "calls": 7, "errors": 1, "unfinished": 2, "orphans": 1, "skipped": 1, "lost": 12,
        "duplicates": 0, "unknown_kinds": {"note": 1}, "first": at(100), "last": at(1800),
    }  # fmt: skip
    damages = [[f"{WRITER_B}.00000.jsonl", len(b"".join(third)), len(torn), "torn"]]
    scores = {
        uid(1): [REWARDED, "scored", [1, 0.25, 0.0, 0.25, 1]],
        uid(4): [{"reward": -1.5, "num_turns": 2}, "scored", None],
        uid(16): [{}, None, None],
        uid(18): [{}, None, None],
    }
    trajectories = {uid(number): [call.expected for call in calls] for number, calls in trees.items()}
    expected = {"facts": facts, "damages": damages, "trajectories": trajectories, "scores": scores}
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def sealed(data: bytes) -> bytes:
    """Three frames, the first of which ends in the middle of a line, and a skippable one between."""
    cuts = (0, data.index(b"log_probs"), data.index(b'{"kind":"close"'), len(data))
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
    frames = [compressor.compress(data[start:stop]) for start, stop in pairwise(cuts)]
    skippable = (0x184D2A50).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"index"
    return frames[0] + skippable + frames[1] + frames[2]


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("v1"))
