"""What the cache keeps may be whole by its checksum and still be no outline: it is made anew, and no reader fails."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from verl_trace.reader import iter_trajectories
from verl_trace.reader.facts import trajectory_facts
from verl_trace.reader.outline import Outline
from verl_trace.reader.outline_cache import cache_folder
from verl_trace.reader.stats import Stats
from verl_trace.reader.summary import summarise
from verl_trace.reader.trees import Reading

Spans = Any
ODD: tuple[Any, ...] = (None, "x", -1, 1.5, True, [], [None], {"a": 1}, 1 << 62)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VERL_TRACE_CACHE", str(tmp_path / "cache"))
    return cache_folder()


def run_in(spans: Spans) -> Path:
    """A run of one sealed file: a whole trajectory, one without an end, a score, a damaged line; its kept outline."""
    lost, torn = b'{"kind":"lost","records":1}\n', b'{"half'
    whole = spans.start(1) + spans.start(2, parent=1) + spans.end(2, parent=1) + spans.end(1)
    score = spans.line("score", {"trace_id": spans.id(1), "step": 1}, "scores", {"reward": 1.0})
    spans.sealed(spans.header() + whole + score + lost + b"[1]\n" + b'{"kind":"new"}\n' + spans.start(3) + torn)
    spans.age()
    told(spans)
    (kept,) = cache_folder().iterdir()
    return kept


def told(spans: Spans) -> Any:
    """What readers say that use outlines, all of it."""
    run, reading = spans.run(), Reading()
    stats, outlines = Stats(run.attempts), list[Outline]()
    summary = summarise(run, seen=outlines.append)
    for outline in outlines:
        stats.add(outline, trajectory_facts(outline))
    calls = [[(*call[:-2], call.writer.id) for call in outline.calls] for outline in outlines]
    trajectories = [(tree.trace_id, [call.id for call in tree.calls]) for tree in iter_trajectories(run, reading)]
    return vars(summary), stats.as_json(), calls, trajectories, reading


def read(kept: Path) -> tuple[dict[str, Any], list[bytes]]:
    head, *lines = zstandard.ZstdDecompressor().decompress(kept.read_bytes()).split(b"\n")
    return orjson.loads(head), lines


def write(kept: Path, head: Any, lines: list[bytes]) -> bytes:
    """Keep it with a checksum that holds."""
    data = b"\n".join([orjson.dumps(head), *lines])
    kept.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(data))
    return kept.read_bytes()


def changed(value: Any) -> Iterator[Any]:
    """The value with one thing in it changed: something else in its place, or missing, or there twice."""
    yield from (odd for odd in ODD if type(odd) is not type(value) or odd != value)
    if isinstance(value, dict):
        for key in value:
            yield {name: one for name, one in value.items() if name != key}
            yield from ({**value, key: one} for one in changed(value[key]))
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield value[:at] + value[at + 1 :]
            yield [*value[:at], item, *value[at:]]
            yield from ([*value[:at], one, *value[at + 1 :]] for one in changed(item))


@pytest.mark.parametrize("cases", [300, pytest.param(10_000, marks=pytest.mark.soak)])
def test_no_reader_fails(spans: Spans, cases: int) -> None:
    """Whatever stands in the place of any value: what has not the form of an outline is made anew."""
    kept = run_in(spans)
    whole, data = told(spans), kept.read_bytes()
    head, lines = read(kept)
    forged: list[tuple[Any, list[bytes]]] = [(one, lines) for one in changed(head)]
    for at in range(head["scores"], len(lines)):
        forged += [
            (head, [*lines[:at], orjson.dumps(one), *lines[at + 1 :]]) for one in changed(orjson.loads(lines[at]))
        ]
    forged = random.Random(1).sample(forged, min(cases, len(forged)))
    anew = 0
    for one, others in forged:
        written = write(kept, one, others)
        found = told(spans)
        if kept.read_bytes() != written:
            anew += 1
            assert kept.read_bytes() == data
            # by a list that is one shorter, all numbers behind it mean something else
            assert found == whole or len(one["words"]) < len(head["words"])

    # the others have the form of an outline: of other calls, or nothing in it was asked for
    assert anew > 0.7 * len(forged) > 100


@pytest.mark.parametrize("name", ["file", "size", "ended", "lost", "damages", "words", "places", "records", "unknown"])
def test_a_head_that_lacks_something_is_none(spans: Spans, name: str) -> None:
    kept = run_in(spans)
    whole = told(spans)
    head, lines = read(kept)
    forged = write(kept, {key: value for key, value in head.items() if key != name}, lines)

    assert told(spans) == whole
    assert kept.read_bytes() != forged


def test_lines_that_are_no_json_are_none(spans: Spans) -> None:
    """Also such as are JSON only together."""
    kept = run_in(spans)
    whole = told(spans)
    head, lines = read(kept)
    begin = head["scores"]
    for at in range(begin, len(lines)):
        for bad in (b"", b"garbage", b" null", b"[1", b"[],[]", b"\xff"):
            forged = write(kept, head, [*lines[:at], bad, *lines[at + 1 :]])
            assert told(spans) == whole
            assert kept.read_bytes() != forged
