"""The model's turns: what hands on what another call of the model gave is no turn of its own."""

from __future__ import annotations

from typing import Any

import pytest

from verl_trace.reader.conversation import conversation
from verl_trace.reader.facts import trajectory_facts
from verl_trace.reader.kinds import MODEL, OTHER, ROOT, handing_on, kinds_of
from verl_trace.reader.outlines import iter_outlines
from verl_trace.viewer.rows import call_rows

OUTPUT = {"token_ids": [5, 6, 7], "text": "a"}


@pytest.mark.parametrize("named", ["Agent.draft", "Agent.chat"])
def test_a_wrapper_counts_once(spans: Any, named: str) -> None:
    """Its ids are those of the call inside; two drafts are two turns of three tokens."""
    lines = [spans.start(1, op="Loop.run")]
    for outer, inner in ((2, 3), (4, 5)):
        lines += [spans.start(outer, 1, op=named), spans.start(inner, outer, 1, op="Client.generate")]
        lines += [spans.end(inner, outer, 1, op="Client.generate", output=OUTPUT)]
        lines += [spans.end(outer, 1, op=named, output=OUTPUT)]
    spans.sealed(spans.header(), *lines, spans.end(1, op="Loop.run"), spans.close())

    (outline,) = iter_outlines(spans.run())
    (trajectory,), _ = spans.read()
    ops = {op.op: (op.kind, op.calls, op.tokens) for op in outline.figures.ops}
    assert (outline.figures.turns, outline.figures.tokens) == (2, 6)
    assert (ops["Client.generate"], ops[named]) == ((MODEL, 2, 6), (OTHER, 2, 0))
    assert (trajectory_facts(trajectory)["turns"], trajectory_facts(trajectory)["tokens"]) == (2, 6)
    assert [(turn.role, turn.name) for turn in conversation(trajectory)] == [("assistant", "Client.generate")] * 2


def test_a_root_that_hands_on(spans: Any) -> None:
    """A trajectory whose root returns what the model gave has that turn once."""
    spans.raw(
        spans.header(), spans.start(1, op="Loop.run"), spans.start(2, 1, op="Client.generate"),
        spans.end(2, 1, op="Client.generate", output=OUTPUT), spans.end(1, op="Loop.run", output=OUTPUT), spans.close(),
    )  # fmt: skip
    (trajectory,), _ = spans.read()

    assert [turn.name for turn in conversation(trajectory)] == ["Client.generate"]
    assert trajectory_facts(trajectory)["tokens"] == 3
    assert list(kinds_of(trajectory.calls).values()) == [ROOT, MODEL]
    (outline,) = iter_outlines(spans.run())
    assert {op.op: (op.kind, op.tokens) for op in outline.figures.ops} == {
        "Loop.run": (ROOT, 0),
        "Client.generate": (MODEL, 3),
    }
    assert [(row["kind"], row["tokens"]) for row in call_rows("r", trajectory, payloads=False)] == [
        (ROOT, None),
        (MODEL, 3),
    ]


def test_ids_may_go_in_circles() -> None:
    """Hostile files name parents as they like; a chain of thousands is walked once."""
    assert handing_on([("a", "b", MODEL), ("b", "a", MODEL), ("c", "c", MODEL)]) == {"a", "b", "c"}
    chain = [(str(n), str(n - 1) if n else None, MODEL) for n in range(50_000)]
    assert handing_on(chain) == {str(n) for n in range(49_999)}
