"""Any interleaving of calls, written as the format has it, gives the trees of a simple model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


class Model(NamedTuple):
    """What was done: parents, roots, and what has ended how."""

    parents: dict[int, int | None]
    roots: dict[int, int]
    status: dict[int, str]
    lines: list[tuple[int, bytes]]


@st.composite
def models(draw: st.DrawFn, spans: Any) -> Model:
    """Up to 40 steps: begin a call below any known one or none, end one, add its text; each in one of 3 writers."""
    model = Model({}, {}, {}, [])
    texts: list[int] = []
    for _ in range(draw(st.integers(0, 40))):
        writer = draw(st.integers(0, 2))
        open_calls = [n for n, status in model.status.items() if status == "unfinished"]
        action = draw(st.sampled_from(["start", "end", "text"]))
        if action == "end" and open_calls:
            number = draw(st.sampled_from(open_calls))
            model.status[number] = draw(st.sampled_from(["success", "error"]))
            has_text = draw(st.booleans())
            outcome = {"status": model.status[number], "text": has_text, "output": {"n": number}}
            line = spans.end(number, model.parents[number], model.roots[number], **outcome)
            texts += [number] * has_text
        elif action == "text" and texts:
            number = texts.pop(draw(st.integers(0, len(texts) - 1)))
            line = spans.text(number, model.parents[number], model.roots[number])
        else:
            number = len(model.parents) + 1
            parent = draw(st.sampled_from([None, *model.parents]))
            model.parents[number], model.status[number] = parent, "unfinished"
            model.roots[number] = number if parent is None else model.roots[parent]
            line = spans.start(number, parent, model.roots[number])
        model.lines.append((writer, line))
    return model


# a busy machine is no failure
@settings(deadline=None, max_examples=75, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_trees_equal_the_model(data: st.DataObject, spans_at: Any, shape: Any) -> None:
    """Trees, parents and statuses; cut into segments, some sealed, wherever hypothesis likes."""
    with tempfile.TemporaryDirectory() as folder:
        spans = spans_at(Path(folder) / "exp1")
        model = data.draw(models(spans))
        for writer in range(3):
            lines = [line for of, line in model.lines if of == writer]
            cut = data.draw(st.integers(0, len(lines)))
            for segment, part in enumerate((lines[:cut], lines[cut:])):
                write = spans.sealed if data.draw(st.booleans()) else spans.raw
                write(b"".join([spans.header(writer, segment), *part]), writer=writer, segment=segment)
        trees, reading = spans.read()

        expected: dict[int, list[tuple[int, int | None, str]]] = {}
        for number, root in model.roots.items():
            expected.setdefault(root, []).append((number, model.parents[number], model.status[number]))
        assert shape(trees) == expected
        assert (reading.damages, reading.duplicates) == ([], 0)
        assert not any(call.orphan for tree in trees for call in tree.calls)
