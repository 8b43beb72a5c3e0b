"""Which calls are a tool's: by name, or by what went into a plain function, in whatever order the records are read."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from verl_trace.reader import iter_trajectories
from verl_trace.reader.conversation import conversation
from verl_trace.reader.digest_cache import digests
from verl_trace.reader.kinds import MODEL, OTHER, PARSER, ROOT, TOOL, kind_named, kind_of
from verl_trace.reader.outlines import iter_outlines

# What verl's `@function_tool` functions are recorded with.
SENT: dict[str, Any] = {"parameters": {"city": "Oslo"}}


def records(spans: Any, op: str, inputs: Any) -> list[bytes]:
    """Start, end and text of a call, in the recorder's own form."""
    place = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False, "experiment_name": "exp1"}
    ids = {"op": op, "id": spans.id(2), "trace_id": spans.id(1), "parent_id": spans.id(1)}
    begun = {**place, **ids, "started_at": spans.time(2)}
    ended = {"ended_at": spans.time(3), "duration": 1.0, "text": True, "status": "success", "exception": None}
    return [
        spans.line("start", {**begun, "attributes": place}, "inputs", inputs),
        spans.line("end", {**begun, **ended, "attributes": place}, "output", {}),
        spans.line("text", {**place, **ids}, "output", {"prompt_text": "p"}),
    ]


@pytest.mark.parametrize(
    ("op", "inputs", "kind"),
    [
        ("compute_reward", {"solution": "42"}, OTHER),
        ("build_prompt", {}, OTHER),
        ("search", {"query": "x", "parameters": 1}, OTHER),
        ("search", SENT, TOOL),
        ("search", {"parameters": "no JSON"}, TOOL),
        ("execute", {}, TOOL),
        ("search.execute", {"query": "x"}, TOOL),
        ("tools.Search.execute", {}, TOOL),
        ("ToolAgentLoop._call_tool", {"name": "x"}, TOOL),
        ("Optimizer.step", SENT, OTHER),
        ("main.<locals>.compute_reward", {}, OTHER),
        ("generate", SENT, MODEL),
        ("Client.generate", {}, MODEL),
        ("HermesToolParser.extract_tool_calls", {}, PARSER),
    ],
)
def test_a_plain_function_is_a_tool_where_something_says_so(op: str, inputs: Any, kind: str, spans: Any) -> None:
    """By whoever reads a whole trajectory, its digest or its outline; as a root it is that."""
    spans.sealed(spans.header(), spans.start(1), *records(spans, op, inputs), spans.end(1), spans.close())
    (trajectory,), _ = spans.read()
    (light,) = iter_trajectories(spans.run(), source=digests)
    (outline,) = iter_outlines(spans.run())

    assert [kind_of(trajectory.calls[1]), kind_of(light.calls[1]), outline.calls[1].kind] == [kind] * 3
    assert outline.figures.tools == (kind == TOOL)
    assert [turn.role for turn in conversation(trajectory)].count("tool") == (kind == TOOL)
    assert kind_named(op, is_root=True, has_parameters=True) == (MODEL if kind == MODEL else ROOT)


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("files", [1, 3])
def test_in_whatever_order_its_records_come(order: tuple[int, ...], files: int, spans: Any) -> None:
    """Only the start says what went in; it may be read behind the end, or lie in another file."""
    lines = records(spans, "search", SENT)
    parts = [[lines[number]] for number in order] if files > 1 else [[lines[number] for number in order]]
    for number, part in enumerate(parts):
        first = [spans.start(1), spans.end(1)] if not number else []
        spans.sealed(spans.header(segment=number), *first, *part, segment=number)
    (trajectory,), _ = spans.read()
    (outline,) = iter_outlines(spans.run())

    assert [call.kind for call in outline.calls if call.id == spans.id(2)] == [TOOL]
    assert [kind_of(call) for call in trajectory.calls if call.id == spans.id(2)] == [TOOL]


def test_a_function_that_scores_takes_no_tool_time(spans: Any) -> None:
    """What a plain function took is the rest; what a model that is the root took is the model's."""
    spans.sealed(
        spans.header(), spans.start(1, op="Loop.run"), spans.start(2, 1, op="compute_reward"),
        spans.end(2, 1, op="compute_reward"), spans.end(1, op="Loop.run", duration=4.0),
        spans.start(5, op="generate"), spans.end(5, op="generate", duration=2.0), spans.close(),
    )  # fmt: skip
    loop, model = (outline.figures for outline in iter_outlines(spans.run()))

    assert (loop.tools, loop.tool_failures, loop.shares) == (0, 0, [0.0, 0.0, 4.0])
    assert model.shares == [2.0, 0.0, 0.0]
