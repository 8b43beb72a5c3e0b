"""Records that could not be written are counted once, whichever record of the file tells of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_trace import RolloutTraceConfig, rollout_trace_op
from verl_trace.reader import find_runs, verify
from verl_trace.reader.outlines import iter_outlines
from verl_trace.reader.summary import summarise
from verl_trace.reader.trees import Reading

Spans = Any
TIME = "2026-03-01T12:00:{:02d}.000000Z"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_TRACE_CACHE", str(tmp_path / "cache"))


def lost(records: int, **more: Any) -> bytes:
    when = {"since": TIME.format(1), "until": TIME.format(2)}
    record = {"kind": "lost", **when, "counts": {"ENOSPC": records}, "records": records, **more}
    return json.dumps(record).encode() + b"\n"


def close(dropped: Any, reason: str = "exit") -> bytes:
    counters = {"written": 2, "skipped": 0, "dropped": dropped}
    record = {"kind": "close", "closed_at": TIME.format(3), "reason": reason, "records": 2, "counters": counters}
    return json.dumps(record).encode() + b"\n"


def counted(spans: Spans) -> int:
    """As every reader counts them."""
    trees, made, kept = spans.read()[1], Reading(), Reading()
    list(iter_outlines(spans.run(), made))
    list(iter_outlines(spans.run(), kept))
    (report,) = verify.verify(spans.folder)
    counts: set[int] = {trees.lost_records, made.lost_records, kept.lost_records, report.lost_records}
    assert len(counts) == 1, counts
    reasons = [trees.lost_by, made.lost_by, kept.lost_by, report.lost_by]
    assert reasons == reasons[:1] * 4
    return counts.pop()


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        # told of in time; the close record counts the same ones
        (lost(3) + close(3), 3),
        # nothing could be written any more but the end
        (close(7), 7),
        # some were told, more came later
        (lost(3) + close(10), 10),
        # killed before it could close
        (lost(3) + lost(4), 7),
        # a repaired copy has left out two beside those
        (lost(3) + lost(2, repaired={"damages": []}) + close(5), 7),
        # written by somebody else
        (close(None) + close("7"), 0),
    ],
)
def test_each_counts_once(spans: Spans, ends: bytes, expected: int) -> None:
    """By `lost` records, by the close record, by both."""
    spans.sealed(spans.header() + spans.start(1) + spans.end(1) + ends)
    assert counted(spans) == expected


def test_counters_go_on_from_segment_to_segment(spans: Spans) -> None:
    """A close record counts since the process began; other processes count for themselves."""
    spans.sealed(spans.header() + spans.start(1) + spans.end(1) + lost(3) + close(3, "rotated"))
    spans.sealed(spans.header(segment=1) + spans.start(2) + spans.end(2) + close(5, "rotated"), segment=1)
    spans.raw(spans.header(segment=2) + spans.start(3) + spans.end(3) + close(5), segment=2)
    spans.raw(spans.header(2) + spans.start(4) + spans.end(4) + close(1), writer=2)
    assert counted(spans) == 6


def test_a_run_at_its_cap_to_the_end(
    tmp_path: Path, fresh: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the recorder left out for VERL_TRACE_MAX_BYTES is counted when the run is listed and verified."""
    monkeypatch.setenv("VERL_TRACE_MAX_BYTES", "1")
    monkeypatch.setattr("verl_trace.recorder.limits.CAP_INTERVAL", 0.0)
    made = 0

    @rollout_trace_op
    def tool() -> int:
        return made

    RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
    while "recording pauses" not in capfd.readouterr().err:
        tool()
        made += 1
    for _ in range(20):
        tool()
    RolloutTraceConfig.reset()
    (run,) = find_runs(tmp_path / "runs")
    summary, (report,) = summarise(run), verify.verify(run.folder)

    assert summary.lost == report.lost_records >= 40
    assert summary.lost_by == report.lost_by == {"MAX_BYTES": summary.lost}
    assert summary.lost + report.records == 2 * (made + 20)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VERL_TRACE_DIR", str(tmp_path / "runs"))
    # warnings are once per process
    monkeypatch.setattr("verl_trace.recorder.counters._warned", set())
    RolloutTraceConfig.reset()
    yield
    RolloutTraceConfig.reset()
