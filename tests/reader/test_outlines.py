"""Outlines, made of segments and out of the cache, say what whole trajectories say, whatever is in the files."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from verl_trace.reader import Run, find_runs, iter_trajectories
from verl_trace.reader.facts import trajectory_facts
from verl_trace.reader.outline import Outline, outline_of
from verl_trace.reader.outline_cache import cache_folder
from verl_trace.reader.outline_lines import _Outliner
from verl_trace.reader.outlines import iter_outlines
from verl_trace.reader.trees import Reading

Spans = Any
OPS = (
    "ToolAgentLoop.run",
    "LLMServerClient.generate",
    "LLM.generate",
    "Tool.execute",
    "search",
    "a.b.c",
    'näh \\ "x"',
    "",
)
REQUESTS = [{"_type": "RequestOutput", "request_id": "0", "outputs": [
    {"_type": "CompletionOutput", "index": index, "token_ids": [1] * index} for index in range(3)]}] * 2  # fmt: skip
SAMPLES = (0, 7, "7", None, 1.5, True, "été", {"a": [1]}, [1, "x"])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("VERL_TRACE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder()


def records(spans: Spans, random: random.Random, root: int) -> list[bytes]:
    """One trace: calls below calls, some that raise, have text, lack an end, or whose clock or parent is odd."""
    step, sample = random.choice((1, 2, "s", None)), random.choice(SAMPLES)
    place = {"step": step, "sample_index": sample, "rollout_n": random.choice((0, None)), "validate": root % 2 == 0,
             "experiment_name": "exp1"}  # fmt: skip
    attributes = {**place, "uid": f"u{root % 3}"} if random.random() < 0.9 else {}
    out: list[bytes] = []
    for number in range(root, root + random.randint(1, 6)):
        parent = None if number == root else random.randrange(root, number)
        at = number + random.choice((0, 0, 0, 0, -3))
        head = {**place, "op": random.choice(OPS), "id": spans.id(number), "trace_id": spans.id(root),
                "parent_id": None if parent is None else spans.id(parent)}  # fmt: skip
        if parent is not None and random.random() < 0.1:
            head["parent_id"] = random.choice([spans.id(9999), "00000000-0000-7000-" + spans.id(parent)[19:]])
        begun = {**head, "started_at": spans.time(at)}
        out.append(spans.line("start", {**begun, "attributes": attributes}, "inputs",
                              random.choice(({"prompt_ids": [1, 2]}, {"parameters": {"x": 1}}))))  # fmt: skip
        raised = random.random() < 0.2
        exception = {"type": "E", "message": "\u202e", "traceback": []} if raised else None
        has_text = random.random() < 0.3
        outcome = {"ended_at": spans.time(at + 2), "duration": random.choice((0, 0.5, 1e-7, 3)), "text": has_text}
        status = {"status": "error" if raised else "success", "exception": exception}
        extra: dict[str, Any] = {"blobs": ["x"]} if random.random() < 0.1 else {}
        extra |= {"generator": {"yielded": 2, "ended": "exhausted"}} if random.random() < 0.1 else {}
        output: Any = random.choice(
            ({"token_ids": [1] * random.randrange(3000)}, {"token_ids": []}, {"response_ids": [4, 5, 6]}, [1], "text",
             {"long": "x" * 5000, "token_ids": [1, 2]}, {"token_ids": 12, "num_turns": 3}, None, [1, 2, 3], [],
             REQUESTS, REQUESTS[0], [{"token_ids": [1]}, {"token_ids": [1, 2]}], {"yielded": [[1], [2]], "x": 1})
        )  # fmt: skip
        out.append(
            spans.line("end", {**begun, **outcome, **status, **extra, "attributes": attributes}, "output", output)
        )
        if has_text:
            out.append(spans.line("text", head, "output", {"prompt_text": "Hi"}))
    if random.random() < 0.6:
        told = {"source": "reward_worker", "status": "scored", "id": spans.id(root + 500), "uid": f"u{root % 3}"}
        score = {**place, **told, "trace_id": spans.id(root), "group_size": 2, "recorded_at": spans.time(root)}
        out.append(spans.line("score", score, "scores", {"reward": root / 7, "reward_extra_info": {"acc": True}}))
    return [line for line in out if random.random() > 0.03]


def made(spans: Spans, seed: int) -> Run:
    """Traces over the segments of two writers, sealed and open, whole, torn and damaged."""
    chance = random.Random(seed)
    lines: list[bytes] = []
    for root in range(100, 100 + 10 * chance.randint(1, 12), 10):
        begin = chance.randint(max(0, len(lines) - 8), len(lines))
        lines[begin:] = merged(chance, lines[begin:], records(spans, chance, root))
    lines += [chance.choice(lines) for _ in range(chance.choice((0, 0, 3)))]
    odd = [b'{"kind":"end","trace_id":"t","id":"only"}\n', b"[1,2]\n", b'{"kind":"new","bytes":2,"x":{}}\n',
           b'{"kind":"start","id":7,"trace_id":"t"}\n', b'{"kind":"lost","records":3}\n', b"\0\0\0\n",
           b'{"kind":"skip","bytes":2,"step":1,"reason":"sampling","attributes":{}}\n', b'{"half'
           + b'{"kind":"score","bytes":14,"trace_id":"nobody","scores":{"reward":1.0}}\n']  # fmt: skip
    for line in odd if chance.random() < 0.5 else []:
        lines.insert(chance.randrange(len(lines) + 1), line)
    cuts = sorted(chance.randrange(len(lines) + 1) for _ in range(chance.randint(0, 5)))
    for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(lines)], strict=True)):
        writer, segment = number % 2 + 1, number // 2
        data = b"".join([spans.header(writer, segment), *lines[begin:end]])
        data += spans.close() if chance.random() < 0.5 else b""
        if chance.random() < 0.1:
            data = data[: chance.randrange(len(data))]
        if chance.random() < 0.3:
            spans.raw(data, writer=writer, segment=segment)
        else:
            path = spans.sealed(data[: len(data) // 2], data[len(data) // 2 :], writer=writer, segment=segment)
            if chance.random() < 0.1:
                path.write_bytes(path.read_bytes()[:-7])
    spans.age()
    return spans.run()  # type: ignore[no-any-return]


def merged(chance: random.Random, one: list[bytes], other: list[bytes]) -> list[bytes]:
    """Two lists as one, each in its order."""
    places = [0] * len(one) + [1] * len(other)
    chance.shuffle(places)
    sources = iter(one), iter(other)
    return [next(sources[place]) for place in places]


def told(outlines: list[Outline], reading: Reading) -> Any:
    """All that outlines say, in an order of their own, and what was beside them."""
    assert len({outline.trace_id for outline in outlines}) == len(outlines)
    every = {
        outline.trace_id: {
            "calls": [(*call[:-2], call.clock_skew, call.writer.id) for call in outline.calls],
            "figures": outline.figures,
            "facts": trajectory_facts(outline),
            **{name: getattr(outline, name) for name in (
                "attempt", "orphans", "last_seen_at", "scores", "score_status", "group", "score_expected",
                "group_awaited")},
        }
        for outline in outlines
    }  # fmt: skip
    return every, replace(reading, damages=sorted(reading.damages, key=str))


def expected(folder: Path) -> Any:
    reading = Reading()
    (run,) = find_runs(folder)
    return told([outline_of(trajectory) for trajectory in iter_trajectories(run, reading)], reading)


def found(folder: Path) -> Any:
    reading = Reading()
    (run,) = find_runs(folder)
    return told(list(iter_outlines(run, reading)), reading)


@pytest.mark.parametrize("seed", range(40))
def test_they_say_what_whole_trajectories_say(spans: Spans, seed: int, cache: Path) -> None:
    """Made of the files, and out of the cache, which has every sealed file then whose bytes are whole."""
    run = made(spans, seed)
    whole = expected(run.folder)

    assert found(run.folder) == whole
    kept = len(list(cache.iterdir())) if cache.is_dir() else 0
    broken = {damage.path for damage in whole[1].damages if damage.kind == "zstd"}
    assert kept == sum(path.suffix == ".zst" for path in run.folder.iterdir()) - len(broken)
    made_at = {path: path.stat().st_mtime_ns for path in cache.iterdir()} if kept else {}
    assert found(run.folder) == whole
    assert made_at == {path: path.stat().st_mtime_ns for path in made_at}, "what was kept was doubted"
    # whole trajectories are read with one pass less then
    assert expected(run.folder) == whole


def test_the_recorders_own_records_are_not_parsed(
    tmp_path: Path, writer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the header and the close record, which say whose file it is and that it is done."""
    made = writer(tmp_path / "runs", "p")
    for step in range(5):
        head = made.start("Loop.run", step=step, sample_index="7", rollout_n=0, validate=False)
        made.call("Client.generate", {"token_ids": [1, 2]}, parent=head)
        made.end(head, {"response_ids": [1]}, text={"response_text": "42"})
    made.close()
    made.age(3600)
    parsed = []
    slow = _Outliner.slow

    def noted(self: _Outliner, line: bytes, record: Any) -> None:
        parsed.append(record.kind)
        slow(self, line, record)

    monkeypatch.setattr(_Outliner, "slow", noted)
    (run,) = find_runs(tmp_path / "runs")

    assert len(list(iter_outlines(run))) == 5
    assert parsed == ["header", "close"]


def test_the_cache_may_be_anything(spans: Spans, cache: Path) -> None:
    """Cut, empty, garbage, of another form, not writable, not there, in the way: only the time differs."""
    run = made(spans, 5)
    whole = found(run.folder)
    files = list(cache.iterdir())
    assert files
    of_others = zstandard.ZstdCompressor(write_checksum=True).compress(b'{"form":0}')
    for file in files:
        data = file.read_bytes()
        for broken in (data[:-5], b"", b"garbage" * 10, data[:20] + bytes([data[20] ^ 1]) + data[21:], of_others):
            file.write_bytes(broken)
            assert found(run.folder) == whole
            assert file.read_bytes() != broken
    for file in files:
        file.unlink()
    cache.rmdir()
    cache.write_text("in the way")

    assert found(run.folder) == whole


def test_a_changed_file_is_read_anew(spans: Spans, cache: Path) -> None:
    """Also where size and time are those of the file before: its checksum is another."""
    for step in (1, 2):
        path = spans.sealed(spans.header(), spans.start(1, step=step), spans.end(1, step=step))
        os.utime(path, (0, 0))
        (outline,) = iter_outlines(spans.run())
        assert trajectory_facts(outline)["step"] == step
    assert len(list(cache.iterdir())) == 2


def test_an_open_file_is_read_anew(spans: Spans, cache: Path) -> None:
    """Nothing is kept of it, and what is appended is there at the next look."""
    path = spans.raw(spans.header(), spans.start(1), spans.end(1))
    assert [outline.figures.calls for outline in iter_outlines(spans.run())] == [1]
    with path.open("ab") as file:
        file.write(spans.start(2, parent=1) + spans.start(3)[:-10])

    assert [(outline.figures.calls, outline.figures.unfinished) for outline in iter_outlines(spans.run())] == [(2, 1)]
    assert not cache.exists()


def test_an_end_of_a_living_writer_is_no_damage_in_either(spans: Spans) -> None:
    """What is kept of a sealed file knows nothing of whether its writer lived."""
    spans.sealed(spans.header() + spans.start(1) + spans.end(1)[:-9])
    for age, torn in ((False, 0), (True, 1)):
        if age:
            spans.age()
        reading = Reading()
        list(iter_outlines(spans.run(), reading))
        assert len(reading.damages) == torn
        assert reading.damages == expected(spans.folder)[1].damages
