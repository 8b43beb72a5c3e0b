"""A name in `--where` that no trajectory of the run has is told; one that some have is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.reader.filters import Filters
from verl_trace.reader.unknown_names import unknown_names
from verl_trace.schemas.errors import BadFilter


@pytest.fixture
def trajectories(writer: Any, tmp_path: Path) -> list[Any]:
    """Steps 1 and 2; the second has an attribute of its own."""
    return made(writer, tmp_path, {"temperature": 0.7})


def made(writer: Any, folder: Path, attributes: dict[str, Any]) -> list[Any]:
    """Steps 1 and 2; the second has these attributes."""
    recording = writer(folder, "proj")
    recording.end(recording.start("Loop.run", step=1))
    recording.end(recording.start("Loop.run", step=2, **attributes))
    recording.close()
    (run,) = find_runs(folder)
    return list(iter_trajectories(run))


def asked(trajectories: list[Any], where: str, *, ended: bool = True, **more: Any) -> str:
    """What is said of the names when all were read."""
    filters = Filters.of(where=where, **more)
    for trajectory in trajectories:
        filters.trajectory(trajectory)
    return unknown_names(filters, ended=ended)


@pytest.mark.parametrize("where", ["step > 0", "temperature > 1", "duration != null", "node == 'n' or calls"])
def test_known_names(trajectories: list[Any], where: str) -> None:
    """What one trajectory has is known, and so are the words of the expression itself."""
    assert asked(trajectories, where) == ""


def test_what_other_filters_leave_out_counts(trajectories: list[Any]) -> None:
    """The name is that of a trajectory that is not meant: the expression is no mistake."""
    assert asked(trajectories, "temperature > 0", step="1", op="Nothing") == ""


def test_mistyped(trajectories: list[Any]) -> None:
    """An error that says which, what is near, and what there is."""
    with pytest.raises(BadFilter, match="no trajectory has 'stepp' or 'temprature'") as error:
        asked(trajectories, "temprature > 0 or not stepp")

    assert error.value.hint.startswith("did you mean step or temperature? there are attempt, calls, duration, ")


EXTRA = {"extra": {"depth": 2, "tree": {"leaf": 1}, "no name": 1}}


@pytest.mark.parametrize(
    ("where", "names", "hint"),
    [
        ("extra.dpeth > 1", "'extra.dpeth'", "did you mean extra.depth? there are extra.depth, extra.tree"),
        ("step and extra.tree.leav", "'extra.tree.leav'", "did you mean extra.tree.leaf? there are extra.tree.leaf"),
        ("exrta.depth > 1", "'exrta'", "did you mean extra? there are attempt, calls, duration, "),
        ("extra.tere.leaf", "'extra.tere'", "did you mean extra.tree? there are extra.depth, extra.tree"),
        ("extra.depth.x > 1", "'extra.depth.x'", "there is nothing below it"),
        ("step.x", "'step.x'", "there is nothing below it"),
        ("extra.a or stepp", "'extra.a' or 'stepp'", "did you mean step? there are attempt, calls, duration, "),
    ],
)
def test_mistyped_within_an_attribute(writer: Any, tmp_path: Path, where: str, names: str, hint: str) -> None:
    """It is told as far as the attributes of some trajectory lead, with what there is in its place."""
    with pytest.raises(BadFilter, match=f"no trajectory has {names}$") as error:
        asked(made(writer, tmp_path, EXTRA), where)

    assert error.value.hint.startswith(hint)


@pytest.mark.parametrize("where", ["extra.depth > 1", "extra.tree.leaf == 1", "extra.tree != 3 and step", "null.x"])
def test_known_within_an_attribute(writer: Any, tmp_path: Path, where: str) -> None:
    """One trajectory that has it is enough, whatever it holds there."""
    assert asked(made(writer, tmp_path, EXTRA), where) == ""


def test_a_run_that_goes_on(trajectories: list[Any]) -> None:
    """The name may still come: a warning."""
    said = asked(trajectories, "reward_extra_acc > 0", ended=False)

    assert said.startswith("--where 'reward_extra_acc > 0': no trajectory has 'reward_extra_acc' so far")


def test_names_of_verl_trace_itself(trajectories: list[Any]) -> None:
    """A run without scores is no typing error, but it is said."""
    assert asked(trajectories, "reward > 0") == "--where 'reward > 0': no trajectory has 'reward'"
    assert asked(trajectories, "turn_scores.x") == "--where 'turn_scores.x': no trajectory has 'turn_scores'"


def test_nothing_read() -> None:
    """Of no trajectory, nothing is said of names."""
    assert asked([], "rewrad > 0") == ""
