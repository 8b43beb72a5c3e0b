"""A run of any number of trajectories of which every fact is known, written fast, straight into span files.

`known_run(folder, count)` writes it and gives what was written, one `Known` a trajectory. Nothing here uses the reader
or the uploader, so that what these say of the run can be held against it.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

__all__ = ["ATTEMPTS", "PER_STEP", "Known", "KnownCall", "known_run", "stored_size"]

ATTEMPTS = ("a1aaaaaaaaaa", "b2bbbbbbbbbb", "c3cccccccccc")
# The first attempt is of verl before `uid`: its groups are the samples.
WITHOUT_UID = ATTEMPTS[0]
ROLLOUTS, GROUPS = 4, 25
PER_STEP = ROLLOUTS * GROUPS
# A restarted training repeats the last steps of the one before.
REPEATED = 3
WRITERS = 4
VERSION = "0.1.0"
ERROR = {"type": "ToolError", "message": "no", "traceback": []}
DURATIONS = (0.1, 0.499999, 0.5, 1.0, 9.999999, 10.0, 300.0)


class KnownCall(NamedTuple):
    op: str
    id: str
    status: str
    duration: float
    text: str


class Known(NamedTuple):
    """What was written of a trajectory; the first of `calls` is its root."""

    trace_id: str
    attempt: str
    writer: int
    step: int
    sample_index: Any
    rollout_n: int | None
    validate: bool
    uid: str | None
    group: tuple[Any, ...]
    reward: float | None
    correct: bool
    calls: tuple[KnownCall, ...]

    @property
    def status(self) -> str:
        found = {call.status for call in self.calls}
        return next(status for status in ("error", "unfinished", "success") if status in found)

    @property
    def attributes(self) -> dict[str, Any]:
        """As verl gives them: `rollout_n` and `uid` only where there is one."""
        given = {"sample_index": self.sample_index, "step": self.step, "rollout_n": self.rollout_n}
        given |= {"validate": self.validate, "experiment_name": "known", "uid": self.uid}
        return {name: value for name, value in given.items() if value is not None or name == "sample_index"}


def known_run(folder: Path, count: int, seed: int = 0) -> list[Known]:
    """Write `count` trajectories, a multiple of 100 for each of the three attempts, and say what they are."""
    known = list(_trajectories(count, random.Random(seed)))
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in ATTEMPTS:
        for writer in range(WRITERS):
            mine = [one for one in known if (one.attempt, one.writer) == (attempt, writer)]
            _write(folder, attempt, writer, mine)
    return known


def _trajectories(count: int, dice: random.Random) -> Iterator[Known]:
    slots = count // PER_STEP
    for slot in range(slots):
        at = len(ATTEMPTS) * slot // slots
        step, attempt, validate = slot - at * REPEATED, ATTEMPTS[at], slot % 10 == 9
        rewards = dice.sample(range(1000), PER_STEP)
        # some steps have no rewards: verl's validation without a reward function
        scored = slot % 17 != 5
        for group in range(GROUPS):
            sample = _sample(group, step, dice)
            uid = None if attempt == WITHOUT_UID else f"uid-{step}-{group}"
            name = ("uid", uid) if uid is not None else ("sample", repr(sample))
            for rollout in range(ROLLOUTS):
                place = group * ROLLOUTS + rollout
                # a step without rewards has a failure, so that it is known which of its groups comes first
                fate = 0.0 if not scored and place == 13 else dice.random()
                calls = tuple(_calls(fate, dice))
                # no two of a step, also of two attempts, have the same reward
                reward = (rewards[place] + at / 10) / 1000 if scored and dice.random() < 0.95 else None
                yield Known(
                    calls[0].id, attempt, place % WRITERS, step, sample, None if group % 7 == 6 else rollout, validate,
                    uid, (attempt, repr(step), validate, *name), reward, place % 3 == 0, calls,
                )  # fmt: skip


def _sample(group: int, step: int, dice: random.Random) -> Any:
    """Every type that verl's data sets have for an index, each once in a step."""
    number = step * GROUPS + group
    forms = (number, str(number), float(number), str(uuid.UUID(int=dice.getrandbits(128))), number)
    return None if group == GROUPS - 1 else forms[group % 5]


def _calls(fate: float, dice: random.Random) -> Iterator[KnownCall]:
    """One in 100 trajectories has a call that raises, one in 500 raises itself, one in 300 never ended."""
    root_status = "error" if 0.010 <= fate < 0.012 else "unfinished" if 0.012 <= fate < 0.0153 else "success"
    root_op = "ToolAgentLoop.run" if dice.random() < 0.8 else "SingleTurnAgentLoop.run"
    yield _call(root_op, root_status, dice)
    yield _call("LLMServerClient.generate", "unfinished" if root_status == "unfinished" else "success", dice)
    if fate < 0.010 or dice.random() < 0.25:
        yield _call("Calc.execute", "error" if fate < 0.010 else "success", dice)


def _call(op: str, status: str, dice: random.Random) -> KnownCall:
    bits = dice.getrandbits(74)
    key = f"0195{bits:018x}0"[:22] + f"{bits >> 10:010x}"[:10]
    words = 'Frage № 漢字 "quoted" \\ x '[: dice.randrange(4, 24)] * dice.randrange(1, 6)
    name = f"{key[:8]}-{key[8:12]}-7{key[13:16]}-8{key[17:20]}-{key[20:32]}"
    return KnownCall(op, name, status, dice.choice(DURATIONS), words)


def stored_size(one: Known) -> int:
    """Bytes that W&B's server counts for the calls of a trajectory: what Python's `json.dumps` makes of them."""
    failed = sum(call.status != "success" for call in one.calls)
    total = 0
    for call in one.calls:
        origin: dict[str, Any] = {"attempt": one.attempt, "host": "node", "pid": 100 + one.writer, "version": VERSION}
        origin |= {"interrupted": True} if call.status == "unfinished" else {}
        scores = {} if one.reward is None else {"reward": one.reward, "reward_extra_acc": one.correct}
        attributes = {**one.attributes, **(scores if call is one.calls[0] else {}), "verl_trace": origin}
        bad = failed if call is one.calls[0] else int(call.status != "success")
        good = (len(one.calls) if call is one.calls[0] else 1) - bad
        summary = {"status_counts": {"success": good, "error": bad}}
        output = None if call.status == "unfinished" else {"text": call.text}
        total += sum(len(json.dumps(part)) for part in (attributes, {"text": call.text}, output, summary))
    return total


def _write(folder: Path, attempt: str, writer: int, known: list[Known]) -> None:
    """The span files of one process: a sealed segment, and one that was left raw."""
    name = f"20260301T120000-node-{100 + writer}-{attempt[:2]}{writer:010x}"
    half = len(known) // 2
    for index, part in enumerate((known[:half], known[half:])):
        lines = [line for one in part for line in _lines(one)]
        head = {
            "kind": "header", "schema": 1, "writer": name, "segment": index, "project_name": "bench/known",
            "experiment_name": "known", "attempt": attempt, "host": "node", "pid": 100 + writer, "pid_start": 1,
            "pid_ns": 1, "boot_id": "none", "started_at": f"2026-03-0{1 + ATTEMPTS.index(attempt)}T12:00:00.000000Z",
            "versions": {"verl_trace": VERSION},
        }  # fmt: skip
        close: dict[str, Any] = {"kind": "close", "closed_at": "2026-03-09T12:00:00.000000Z"}
        close |= {"reason": "exit" if index else "rotated"}
        close |= {"records": len(lines), "counters": {"written": len(lines), "skipped": 0, "dropped": 0}}
        data = "\n".join([_json(head), *lines, _json(close), ""]).encode()
        path = folder / f"{name}.{index:05}.jsonl"
        if index:
            path.write_bytes(data)
        else:
            path.with_name(path.name + ".zst").write_bytes(zstandard.ZstdCompressor(level=1).compress(data))


def _lines(one: Known) -> Iterable[str]:
    """Records in the form of docs/format.md: the root begins first and ends last."""
    attributes = _json(one.attributes)
    numbers = {"step": one.step, "sample_index": one.sample_index, "rollout_n": one.rollout_n}
    fields = _json({**numbers, "validate": one.validate, "experiment_name": "known"})[1:-1]
    ends: list[str] = []
    for call in one.calls:
        parent = "null" if call is one.calls[0] else f'"{one.trace_id}"'
        ids = f'{fields},"op":"{call.op}","id":"{call.id}","trace_id":"{one.trace_id}","parent_id":{parent}'
        text = _json({"text": call.text})
        size = len(text.encode())
        began = '"started_at":"2026-03-01T12:00:00.123456Z"'
        yield f'{{"kind":"start","bytes":{size},{ids},{began},"attributes":{attributes},"inputs":{text}}}'
        if call.status == "unfinished":
            continue
        status = f'"status":"{call.status}","exception":{_json(ERROR) if call.status == "error" else "null"}'
        times = f'{began},"ended_at":"2026-03-01T12:09:59.123456Z","duration":{call.duration!r},"text":false'
        ends.append(f'{{"kind":"end","bytes":{size},{ids},{times},{status},"attributes":{attributes},"output":{text}}}')
    yield from reversed(ends)
    if one.reward is not None:
        scores = _json({"reward": one.reward, "reward_extra_info": {"acc": one.correct}})
        ids = f'"source":"reward_worker","status":"scored","id":"{one.trace_id[:-4]}feed","trace_id":"{one.trace_id}"'
        rest = '"uid":null,"session":null,"row":null,"response":null,"group_size":null'
        times = '"recorded_at":"2026-03-01T12:10:00.123456Z","exception":null'
        yield f'{{"kind":"score","bytes":{len(scores)},{fields},{ids},{rest},{times},"scores":{scores}}}'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
