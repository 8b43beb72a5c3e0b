"""One tree across processes: what `current_context` gives, and what `use_context` makes of it elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from verl_trace import TraceContext, current_context, record_score, rollout_trace_attr, rollout_trace_op, use_context
from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.recorder import counters

CHILD = """
import pickle, sys
from verl_trace import record_score, rollout_trace_op, use_context

@rollout_trace_op
def elsewhere(n):
    record_score("from_child", n)
    return n

with open(sys.argv[1], "rb") as file:
    contexts = pickle.load(file)
for n, context in enumerate(contexts):
    with use_context(context):
        elsewhere(n)
"""


@rollout_trace_op
def ask() -> TraceContext | None:
    return current_context()


@rollout_trace_op
def child(n: int = 0) -> int:
    return n


def asked(**attributes: Any) -> TraceContext:
    """The context inside of a recorded call."""
    with rollout_trace_attr(**attributes):
        context = ask()
    assert context is not None
    return context


def test_it_is_small_and_survives_a_pickle(recording: Any) -> None:
    """Also as text, and as W3C's header."""
    context = asked(step=3, sample_index=7)
    (start,) = recording.records("start")

    assert len(pickle.dumps(context)) < 1000
    assert pickle.loads(pickle.dumps(context)) == context
    assert (context.trace_id, context.span_id) == (start["id"], start["id"])
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", context.traceparent)
    assert context.traceparent.split("-")[1] == start["id"].replace("-", "")
    assert context.headers() == {"traceparent": context.traceparent}
    assert context.to_text().isascii()


@pytest.mark.parametrize("form", [lambda c: c, lambda c: c.to_text(), lambda c: pickle.loads(pickle.dumps(c))])
def test_calls_inside_are_children_with_the_attributes(recording: Any, form: Any) -> None:
    """After the place itself is long gone."""
    context = asked(step=3, sample_index=7)
    with use_context(form(context)):
        child()
    child()
    _, inside, outside = recording.finish("start")

    assert (inside["parent_id"], inside["trace_id"]) == (context.span_id, context.trace_id)
    assert (inside["step"], inside["sample_index"]) == (3, 7)
    assert (outside["parent_id"], outside["step"]) == (None, None)


def test_threads_and_tasks(recording: Any) -> None:
    """Each thread and task has the place that it was given, at the same time."""
    contexts = [asked(step=n) for n in range(8)]

    def work(context: TraceContext) -> None:
        with use_context(context):
            child()

    async def task(context: TraceContext) -> None:
        with use_context(context):
            await asyncio.sleep(0)
            child()

    async def tasks() -> None:
        await asyncio.gather(*map(task, contexts))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, contexts))
    asyncio.run(tasks())
    starts = [start for start in recording.finish("start") if start["op"] == "child"]

    assert len(starts) == 16
    assert {(start["step"], start["parent_id"]) for start in starts} == {
        (n, context.span_id) for n, context in enumerate(contexts)
    }


def test_another_process_joins_the_run_by_itself(recording: Any, tmp_path: Path) -> None:
    """It records nothing before; with the context it writes a file of its own, of the same attempt and run."""
    contexts = [asked(step=1), asked(step=2)]
    (tmp_path / "contexts").write_bytes(pickle.dumps([contexts[0], contexts[1].to_text(), None]))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VERL_TRACE_")}
    command = [sys.executable, "-c", CHILD, str(tmp_path / "contexts")]
    subprocess.run(command, env={**environment, "VERL_TRACE_MIN_FREE": "0"}, cwd=tmp_path, check=True, timeout=60)
    recording.finish()
    (run,) = find_runs(tmp_path)
    trees = {tree.trace_id: tree for tree in iter_trajectories(run)}

    assert len(run.writers) == 2
    assert len(run.attempts) == 1
    assert len(trees) == 3
    for n, context in enumerate(contexts):
        tree = trees[context.trace_id]
        assert [call.op for call in tree.calls] == ["ask", "elsewhere"]
        assert tree.calls[1].parent_id == context.span_id
        assert not any(call.orphan for call in tree.calls)
        assert tree.scores == {"from_child": n}


@pytest.mark.parametrize("form", [lambda c: c.traceparent, lambda c: {"Host": "x", "Traceparent": c.traceparent}])
def test_a_traceparent_is_enough_for_the_tree(recording: Any, tmp_path: Path, form: Any) -> None:
    """The parent, of which only half of the id is known, is found by whoever reads."""
    context = asked(step=1)
    with use_context(form(context)):
        child()
        nested = current_context()
        with use_context(nested.traceparent if nested else None):
            record_score("reward", 1.0)
    recording.finish()
    (run,) = find_runs(tmp_path)
    (tree,) = iter_trajectories(run)

    assert [(call.op, call.parent_id, call.orphan) for call in tree.calls] == [
        ("ask", None, False),
        ("child", context.span_id, False),
    ]
    assert tree.reward == 1.0


@pytest.mark.parametrize(
    "nothing",
    [
        None,
        "",
        "nonsense",
        {},
        {"other": "header"},
        7,
        "verl-trace:???",
        "verl-trace:W10=",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ],
)
def test_what_is_no_context_changes_nothing(recording: Any, nothing: Any) -> None:
    """Also another tracer's ids; whatever it is, the code inside runs."""
    with use_context(nothing):
        child()
    (start,) = recording.finish("start")
    assert start["parent_id"] is None


@pytest.mark.parametrize("damage", ["é", "\ud800", "=", "\u200b"])
def test_a_damaged_text_is_no_context(
    recording: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """It is told, and the code inside runs."""
    monkeypatch.setattr(counters, "_warned", set())
    text = asked(step=1).to_text()
    with use_context(f"{text[:30]}{damage}{text[30:]}"):
        child()

    assert [start["parent_id"] for start in recording.finish("start")] == [None, None]
    assert "not usable" in capsys.readouterr().err


def test_a_trajectory_that_was_left_out_is_left_out_elsewhere(recording: Any) -> None:
    """By flag 00 of the header, too."""
    with rollout_trace_attr(step=1, trace=False):
        context = current_context()
    assert context is not None
    assert not context.traced
    with use_context(context):
        child()
    with use_context(asked(step=1).traceparent[:-2] + "00"):
        child()
    assert [start["op"] for start in recording.finish("start")] == ["ask"]


def test_without_a_recording_there_is_none(unstarted: Any) -> None:
    """And a body that raises raises."""
    assert current_context() is None
    with pytest.raises(ZeroDivisionError), use_context(None):
        raise ZeroDivisionError
    unstarted.start()
    assert current_context() is None


def test_disabled_is_disabled_for_guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unstarted: Any) -> None:
    """VERL_TRACE_DISABLED in the other process counts there."""
    monkeypatch.setenv("VERL_TRACE_DISABLED", "1")
    told = {"project_name": "p", "experiment_name": "exp1", "backend": "jsonl", "token2text": False}
    context = TraceContext(
        "01a2291b-889c-7f0b-aec0-44b23b5e6c45",
        "01a2291b-889c-7f0b-aec0-44b23b5e6c45",
        recording={**told, "folder": str(tmp_path), "attempt": "a" * 12},
    )
    with use_context(json.loads(json.dumps(context.to_text()))):
        assert child(3) == 3
    assert list(tmp_path.iterdir()) == []
