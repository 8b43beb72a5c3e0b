"""`record_score`: which trajectory it belongs to, odd values, and that it never disturbs the caller."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from verl_trace import current_context, record_score, rollout_trace_attr, rollout_trace_op, with_context
from verl_trace.recorder import session as sessions


@rollout_trace_op
def run(score: Any = None) -> str:
    if score is not None:
        record_score("reward", score)
    return "done"


def test_inside_of_a_call_it_belongs_to_its_trajectory(recording: Any) -> None:
    """With the trajectory's attributes in the head, so that they are found by the same text search."""
    with rollout_trace_attr(step=3, sample_index=7, rollout_n=1):
        run(0.5)
    *_, line = recording.finish("start", "score")
    root = recording.records("start")[0]

    assert (line["kind"], line["trace_id"], line["scores"]) == ("score", root["id"], {"reward": 0.5})
    assert (line["step"], line["sample_index"], line["rollout_n"], line["source"]) == (3, 7, 1, "user")
    assert line["status"] == "scored"
    assert list(line)[:7] == list(root)[:7]


def test_after_the_root_it_belongs_to_the_last_one_of_the_block(recording: Any) -> None:
    """The usual place: the reward is computed from what the call returned."""
    with rollout_trace_attr(step=1):
        run()
        record_score("first", 1)
        run()
        record_score("second", 2)
    starts, scores = recording.finish("start"), recording.records("score")

    assert [score["trace_id"] for score in scores] == [start["id"] for start in starts]
    assert [score["status"] for score in scores] == ["partial", "partial"]


def test_by_trajectory_id_and_context(recording: Any) -> None:
    """From anywhere, in every form in which a trajectory is named."""
    with rollout_trace_attr(step=2, sample_index=1):
        run()
        context = current_context()
    assert context is not None
    for form in (context.trace_id, context.trace_id.upper(), context.traceparent, context):
        record_score("reward", 1.0, trajectory=form)
    scores = recording.finish("score")

    assert {score["trace_id"] for score in scores} == {context.trace_id}
    assert [score["step"] for score in scores] == [None, None, None, 2]


def test_in_threads(recording: Any) -> None:
    """`with_context` carries a score's trajectory, too."""
    with rollout_trace_attr(step=1):
        run()
        thread = threading.Thread(target=with_context(record_score), args=("reward", 1))
        thread.start()
        thread.join()
    assert [score["scores"] for score in recording.finish("score")] == [{"reward": 1}]


@pytest.mark.parametrize("trajectory", [None, "", "no id", "0193", 7, "00-" + "f" * 32 + "-" + "1" * 16 + "-01"])
def test_of_no_trajectory_it_is_counted_and_said_once(
    recording: Any, capsys: pytest.CaptureFixture[str], trajectory: Any
) -> None:
    """Outside of any trajectory, or with what is no id."""
    record_score("reward", 1.0, trajectory=trajectory)
    session = sessions.current()
    assert session is not None
    assert session.counters.dropped == {"score of no trajectory": 1}
    assert recording.finish("score") == []


class Hostile:
    """Raises wherever it is looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_odd_values_cost_themselves_alone(recording: Any) -> None:
    """A function, an open file, an object that raises, nan, a cycle."""
    cycle: list[Any] = []
    cycle.append(cycle)
    extras = {"ok": 1, "lambda": lambda: 0, "hostile": Hostile(), "nan": float("nan"), "cycle": cycle, 5: 6, "b": b"x"}
    with rollout_trace_attr(step=1), open(__file__) as file:
        run()
        record_score("reward_extra_info", {**extras, "file": file})
        record_score("reward", 1.0)
    first, second = recording.finish("score")

    assert second["scores"] == {"reward": 1.0}
    assert first["scores"]["reward_extra_info"].keys() == {str(name) for name in extras} | {"file"}
    assert first["scores"]["reward_extra_info"]["ok"] == 1
    assert first["scores"]["reward_extra_info"]["nan"] == {"_type": "float", "value": "nan"}


def test_nothing_without_a_recording_or_where_sampling_left_it_out(unstarted: Any) -> None:
    """No error, no record."""
    record_score("reward", 1.0)
    unstarted.start()
    with rollout_trace_attr(step=1, trace=False):
        run(1.0)
        context = current_context()
        record_score("reward", 1.0)
        record_score("reward", 1.0, trajectory=context)
    assert unstarted.finish("score") == []


def test_dropped_fields_are_dropped_here_too(unstarted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """VERL_TRACE_DROP_FIELDS names fields wherever they occur."""
    monkeypatch.setenv("VERL_TRACE_DROP_FIELDS", "secret")
    unstarted.start()
    with rollout_trace_attr(step=1):
        run()
        record_score("reward_extra_info", {"secret": "hidden", "acc": 1})
    (score,) = unstarted.finish("score")
    assert "hidden" not in json.dumps(score)
    assert score["scores"]["reward_extra_info"]["acc"] == 1


def test_a_root_around_run_and_scoring(unstarted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """VERL_TRACE_TREE=trajectory: one root per block, named by it, that ends with it and has the scores as output."""
    monkeypatch.setenv("VERL_TRACE_TREE", "trajectory")
    unstarted.start()
    with rollout_trace_attr(step=1, name="agent_loop"):
        run()
        record_score("reward", 0.5)
    with pytest.raises(KeyError), rollout_trace_attr(step=2, name="agent_loop"):
        raise KeyError("x")
    ends = unstarted.finish("end")

    assert [end["op"] for end in ends] == ["run", "agent_loop", "agent_loop"]
    assert ends[0]["parent_id"] == ends[1]["id"] == ends[1]["trace_id"]
    assert ends[1]["output"] == {"reward": 0.5}
    assert [end["status"] for end in ends] == ["success", "success", "error"]
    assert unstarted.records("score")[0]["trace_id"] == ends[1]["id"]
