"""RolloutTraceConfig and rollout_trace_attr: verl's names, signatures and behaviour."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op


class Loop:
    @rollout_trace_op
    def run(self, depth: int = 0) -> int:
        return self.run(depth - 1) if depth else 0


def test_signatures_are_verls() -> None:
    """Parameter names, order and defaults equal those of verl 0.9.1."""
    assert list(inspect.signature(RolloutTraceConfig.init).parameters) == [
        "project_name",
        "experiment_name",
        "backend",
        "token2text",
        "max_samples_per_step_per_worker",
    ]
    attr = inspect.signature(rollout_trace_attr).parameters
    assert {name: p.default for name, p in attr.items()} == {
        "sample_index": None,
        "step": None,
        "rollout_n": None,
        "name": "rollout_trace",
        "validate": False,
        "trace": True,
    }


def test_config_says_what_it_was_given(unstarted: Any) -> None:
    """get_backend returns the name given, whatever it is; the first init counts; reset forgets."""
    assert RolloutTraceConfig.get_backend() is None
    RolloutTraceConfig.init("p", "exp1", "weave", token2text=True, max_samples_per_step_per_worker=2)
    RolloutTraceConfig.init("other", "other", "mlflow")

    assert RolloutTraceConfig.get_backend() == "weave"
    assert RolloutTraceConfig.enable_token2text() is True
    assert RolloutTraceConfig.get_client() is None
    assert RolloutTraceConfig.get_instance().project_name == "p"
    assert RolloutTraceConfig.get_instance().max_samples_per_step_per_worker == 2
    RolloutTraceConfig.reset()
    assert RolloutTraceConfig.get_backend() is None
    assert [r["backend"] for r in unstarted.records("header")] == ["weave"]


def test_backend_none_records_nothing(unstarted: Any) -> None:
    """As in verl, no backend means no tracing."""
    RolloutTraceConfig.init("p", "exp1", None)
    with rollout_trace_attr(step=1):
        Loop().run()
    assert not unstarted.folder.exists()


def test_disabled_by_the_environment(unstarted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """VERL_TRACE_DISABLED=1 switches everything off."""
    monkeypatch.setenv("VERL_TRACE_DISABLED", "1")
    unstarted.start()
    with rollout_trace_attr(step=1):
        Loop().run()
    assert not unstarted.folder.exists()


def test_attributes_are_on_every_record(recording: Any) -> None:
    """Both records of every call carry the five attributes, first and followed by a comma."""
    with rollout_trace_attr(sample_index=7, step=3, rollout_n=1, validate=True):
        Loop().run(1)

    records = recording.finish("start", "end")
    assert len(records) == 4
    for record in records:
        assert list(record)[2:7] == ["step", "sample_index", "rollout_n", "validate", "experiment_name"]
        assert record["attributes"] == {
            "sample_index": 7,
            "step": 3,
            "rollout_n": 1,
            "validate": True,
            "experiment_name": "exp1",
        }


def test_attributes_left_out_are_null_in_the_head_and_absent_below(recording: Any) -> None:
    """As in verl, `attributes` has only what was given; the head always has all keys."""
    with rollout_trace_attr(step=0):
        Loop().run()
    Loop().run()

    inside, outside = recording.finish("start")
    assert inside["attributes"] == {"step": 0, "validate": False, "experiment_name": "exp1"}
    assert (inside["step"], inside["sample_index"]) == (0, None)
    assert outside["attributes"] == {}
    assert (outside["step"], outside["experiment_name"]) == (None, "exp1")


@pytest.mark.parametrize(
    ("given", "written"),
    [(np.int64(3), 3), (np.int32(-1), -1), ("uuid-1", "uuid-1"), (np.str_("s"), "s"), (np.bool_(True), True)],
)
def test_attribute_types_are_kept(recording: Any, given: Any, written: Any) -> None:
    """numpy scalars become plain numbers, text stays text."""
    with rollout_trace_attr(sample_index=given, step=1):
        Loop().run()

    start = recording.finish("start")[0]
    assert start["sample_index"] == written
    assert type(start["attributes"]["sample_index"]) is type(written)


def test_a_skipped_trajectory_leaves_one_skip_record(recording: Any) -> None:
    """trace=False: no call at any depth is recorded, one `skip` says what was left out, and the count is kept."""
    with rollout_trace_attr(sample_index=1, step=2, rollout_n=3, name="agent_loop", trace=False):
        assert Loop().run(3) == 0
    with rollout_trace_attr(sample_index=2, step=2):
        Loop().run()

    records = recording.finish()
    (skip,) = [r for r in records if r["kind"] == "skip"]
    assert (skip["op"], skip["step"], skip["sample_index"], skip["rollout_n"]) == ("agent_loop", 2, 1, 3)
    assert skip["reason"] == "sampling"
    assert [r["sample_index"] for r in records if r["kind"] == "start"] == [2]
    assert records[-1]["counters"]["skipped"] == 1


def test_steps_thins_at_the_source(unstarted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """VERL_TRACE_STEPS=1:9:4 records steps 1, 5 and 9; the others leave skip records."""
    monkeypatch.setenv("VERL_TRACE_STEPS", "1:9:4")
    unstarted.start()
    for step in range(1, 12):
        with rollout_trace_attr(step=step):
            Loop().run()

    records = unstarted.finish()
    assert [r["step"] for r in records if r["kind"] == "start"] == [1, 5, 9]
    assert [r["reason"] for r in records if r["kind"] == "skip"] == ["VERL_TRACE_STEPS"] * 8


def test_dropped_fields_are_marked(unstarted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """VERL_TRACE_DROP_FIELDS leaves a field out and says so in its place."""
    monkeypatch.setenv("VERL_TRACE_DROP_FIELDS", "depth, nothing")
    unstarted.start()
    Loop().run(0)

    start = unstarted.finish("start")[0]
    assert start["inputs"]["depth"] == {"_omitted": "VERL_TRACE_DROP_FIELDS", "_type": "int"}


@pytest.mark.parametrize("text", ["inf", "nan", "1e999", "-1", "much"])
def test_a_number_that_is_none_keeps_the_default(unstarted: Any, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """One bad variable is one warning; the recording starts all the same."""
    monkeypatch.setenv("VERL_TRACE_SEGMENT_BYTES", text)
    unstarted.start()
    Loop().run()
    assert len(unstarted.finish("end")) == 1
