"""What tools that read annotations make of the public names, though the recorder loads no `typing`."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import pytest
from pydantic import BaseModel, validate_call

import verl_trace
from verl_trace import RolloutTraceConfig, TraceContext, record_score, rollout_trace_attr, rollout_trace_op

CALLABLES = [getattr(verl_trace, name) for name in verl_trace.__all__ if name != "__version__"]
CALLABLES += [getattr(RolloutTraceConfig, name) for name in ("init", "reset", "get_client", "get_instance")]


class Task(BaseModel):
    """As a request from process to process may look."""

    prompt: str
    context: TraceContext | None = None


@pytest.mark.parametrize("public", CALLABLES, ids=lambda public: public.__qualname__)
def test_annotations_can_be_resolved(public: Any) -> None:
    typing.get_type_hints(public)
    inspect.signature(public, eval_str=True)


def test_a_context_in_a_pydantic_model() -> None:
    context = TraceContext("trace", "span", head=b'"step":1,', json=b"{}", recording={"folder": "/f"})
    task = Task(prompt="hello", context=context)

    assert Task.model_validate_json(task.model_dump_json()) == task
    assert Task.model_validate(task.model_dump()).context == context


def test_public_functions_under_validate_call(recording: Any) -> None:
    @rollout_trace_op
    @validate_call
    def tool(number: int) -> int:
        validate_call(record_score)("reward", 1.5)
        return number

    with validate_call(rollout_trace_attr)(step=3, sample_index="a"):
        assert validate_call(tool)("4") == 4  # type: ignore[arg-type]
    (score,) = recording.finish("score")
    assert (score["step"], score["sample_index"], score["scores"]) == (3, "a", {"reward": 1.5})
