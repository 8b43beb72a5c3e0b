"""Which trajectories a filter means, and which expressions are understood."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.reader.durations import parse_duration
from verl_trace.reader.filters import Filters, Numbers
from verl_trace.reader.where import Where
from verl_trace.schemas.errors import BadFilter

FACTS = {"step": 10, "reward": 0.25, "validate": False, "op": "A.run", "sample_index": "x", "extra": {"deep": {"n": 1}}}


@pytest.fixture
def trajectories(writer: Any, tmp_path: Path) -> list[Any]:
    """Steps 1 to 12, samples 0 and "u-1", a failing tool in step 3, a slow one in step 4, validation in step 12."""
    recording = writer(tmp_path, "proj")
    for step in range(1, 13):
        for sample in (0, "u-1"):
            root = recording.start("Loop.run", step=step, sample_index=sample, rollout_n=0, validate=step == 12)
            tool = recording.start("tools.Calc.execute", parent=root)
            if step == 4:
                for _ in range(50):
                    recording.tick()
            recording.end(tool, exception={"type": "E", "message": "", "traceback": []} if step == 3 else None)
            recording.end(root)
    recording.close()
    (run,) = find_runs(tmp_path)
    return list(iter_trajectories(run))


def steps(trajectories: list[Any], **filters: Any) -> list[tuple[int, Any]]:
    chosen = Filters(**filters)
    heads = [t.root.head for t in trajectories if chosen.trajectory(t)]
    return [(head["step"], head["sample_index"]) for head in heads]


def test_without_a_filter_all_are_meant(trajectories: list[Any]) -> None:
    """No filter leaves nothing out."""
    assert len(steps(trajectories)) == 24


def test_facts_of_the_trajectory(trajectories: list[Any]) -> None:
    """Steps with both ends, samples of any type, validation, an expression; all of them together."""
    assert {s for s, _ in steps(trajectories, steps=Numbers("2:10:4", "--step"))} == {2, 6, 10}
    assert {x for _, x in steps(trajectories, sample_indexes=Numbers("u-1", "--sample-index", words=True))} == {"u-1"}
    assert len(steps(trajectories, sample_indexes=Numbers("0,u-1", "--sample-index", words=True))) == 24
    assert steps(trajectories, validate=True) == [(12, 0), (12, "u-1")]
    assert len(steps(trajectories, validate=False)) == 22
    assert steps(trajectories, where=Where("step > 10 and sample_index == 0")) == [(11, 0), (12, 0)]
    assert steps(trajectories, where=Where("step > 10"), validate=True, rollouts=Numbers("1", "--rollout-n")) == []


def test_what_is_said_of_calls_holds_for_the_same_call(trajectories: list[Any]) -> None:
    """A failing tool is found by its op and status; that it failed says nothing of the root."""
    assert {s for s, _ in steps(trajectories, status="error")} == {3}
    assert {s for s, _ in steps(trajectories, status="error", ops=("execute",))} == {3}
    assert steps(trajectories, status="error", ops=("Loop.run",)) == []
    assert {s for s, _ in steps(trajectories, ops=("*Calc*",), min_duration=0.3)} == {4}
    assert steps(trajectories, ops=("Calc",)) == []


def test_attempts_by_number_id_or_last() -> None:
    """An attempt is named by its number, the beginning of its id, or `last`; anything else says what there is."""
    attempts = ["5c1d0a77be02", "5cffffffffff", "9abc00000000"]
    assert Filters(attempts=("1", "last")).of_run(attempts).attempts == ("5c1d0a77be02", "9abc00000000")
    assert Filters(attempts=("9",)).of_run(attempts).attempts == ("9abc00000000",)
    for name, words in (("5c", "more than one"), ("7", "no attempt"), ("", "more than one")):
        with pytest.raises(BadFilter, match=words) as refused:
            Filters(attempts=(name,)).of_run(attempts)
        assert "2 (5cffffffffff)" in refused.value.hint


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 9), st.integers(-60, 60))
def test_ranges_include_both_ends(first: int, last: int, every: int, value: int) -> None:
    """FIRST:LAST:EVERY means FIRST, FIRST + EVERY, … up to LAST; one that ends before it begins is an error."""
    if first > last:
        with pytest.raises(BadFilter, match="ends before it begins"):
            Numbers(f"{first}:{last}:{every}", "--step")
        return
    assert (value in Numbers(f"{first}:{last}:{every}", "--step")) == (value in range(first, last + 1, every))


@pytest.mark.parametrize("text", ["", ",", "a:b", "1:2:0", "1:2:-1", "1:2:3:4", "1:x", "1-100", "last", "1,x"])
def test_no_ranges(text: str) -> None:
    """What is neither a number nor a range is an error that shows one, and not a step that no trajectory has."""
    with pytest.raises(BadFilter, match="--step"):
        Numbers(text, "--step")


@pytest.mark.parametrize(
    ("value", "is_in"), [(7, True), (7.0, True), ("7", True), (7.5, False), (None, False), (True, False), ([7], False)]
)
def test_values_of_any_type(value: object, is_in: bool) -> None:
    """A sample index recorded as text is found by its number; None and odd values never are."""
    assert (value in Numbers("5:9", "--step")) is is_in


@pytest.mark.parametrize(
    ("text", "seconds"), [("1.5", 1.5), ("500ms", 0.5), ("10s", 10.0), (" 5m ", 300.0), ("2H", 7200.0), ("0", 0.0)]
)
def test_durations(text: str, seconds: float) -> None:
    """Seconds, or with a unit."""
    assert parse_duration(text, "--min-duration") == seconds


@pytest.mark.parametrize("text", ["", "x", "-1", "inf", "nan", "1 hour", "1e999"])
def test_no_durations(text: str) -> None:
    """Anything else is an error."""
    with pytest.raises(BadFilter, match="--min-duration"):
        parse_duration(text, "--min-duration")


def test_unknown_status() -> None:
    """A misspelt status is not taken for one that no call has."""
    with pytest.raises(BadFilter, match="unfinished"):
        Filters(status="errror")


@pytest.mark.parametrize(
    ("text", "is_true"),
    [
        ("reward < 0.5 and step % 5 == 0", True),
        ("reward > 0.5 or not validate", True),
        ("0 < reward < 1", True),
        ("missing < 1", False),
        ("missing > 1", False),
        ("missing == null", True),
        ("reward is not None", True),
        ("op in ['A.run', 'B.run']", True),
        ("'run' in op", True),
        ("sample_index < 3", False),
        ("extra.deep.n == 1 and extra.no.such == None", True),
        ("step / 0 == 1", False),
        ("-step == -10", True),
        ("validate == false", True),
        ("'%s' % op == op", False),
        ("op * 999999999999 == op", False),
    ],
)
def test_expressions(text: str, is_true: bool) -> None:
    """Comparison, logic, arithmetic and membership; what is not there is None and never smaller or larger."""
    assert Where(text)(FACTS) is is_true


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step =",
        "open('/etc/passwd')",
        "op.upper()",
        "[x for x in y]",
        "lambda: 1",
        "step ** 999999",
        "step << 9",
        "f'{op}'",
        "a if b else c",
        "{1: 2}",
        "op[0]",
        "b'x'",
        "(" * 3000 + "1" + ")" * 3000,
        "1+" * 6000 + "1",
    ],
)
def test_what_is_not_understood(text: str) -> None:
    """Anything else of Python is refused before it is looked at."""
    with pytest.raises(BadFilter, match="--where"):
        Where(text)


def test_names_of_an_expression() -> None:
    """The facts that an expression asks for."""
    assert Where("reward < 1 and extra.n > 2").names == {"reward", "extra"}


@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_an_error(text: str) -> None:
    """No text makes it raise anything else."""
    with contextlib.suppress(BadFilter):
        Where(text)(FACTS)
