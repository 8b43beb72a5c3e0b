"""verl's SGLang path, `rollout.name=sglang`: its replica, its server actor, and both kinds of workers before them.

SGLang itself is a stand-in (`standins/sglang`) that answers as it does, by a script: it needs a GPU to be installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.e2e

STANDINS = Path(__file__).parent / "standins"
WORKERS = ["v0", "tq"]


class Run(NamedTuple):
    """What the driver says of each manager, what the stand-in was asked, and the records of both managers."""

    reports: dict[str, dict[str, Any]]
    requests: list[dict[str, Any]]
    records: dict[str, Any]


@pytest.fixture(scope="module")
def run(drive: Callable[..., Any], records: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One job with a manager of either kind of workers before one server."""
    folder = tmp_path_factory.mktemp("sglang")
    requests = folder / "requests"
    scenes = [{"worker": worker, "backend": "jsonl", "experiment": worker} for worker in WORKERS]
    variables = {"PYTHONPATH": str(STANDINS), "VERL_TRACE_EXTRA": "1"}
    reports = drive(folder, scenes=scenes, engine="sglang", requests_file=str(requests), variables=variables, steps=1)
    asked = [json.loads(line) for line in requests.read_text().splitlines()]
    return Run(reports, asked, {worker: records(folder / "runs" / worker) for worker in WORKERS})


def test_every_request_is_a_call(run: Run) -> None:
    """Each request that reached SGLang is a `generate` with its end, below its trajectory."""
    generated = {worker: run.records[worker].of("start", op="LLMServerClient.generate") for worker in WORKERS}

    assert len(run.requests) == sum(map(len, generated.values()))
    for worker, heads in generated.items():
        found = run.records[worker]
        starts = {head["id"]: head for head in found.of("start")}
        assert len(heads) == run.reports[worker]["model_calls"]
        assert found.ops()["ToolAgentLoop.run"] == run.reports[worker]["trajectories"]
        assert found.ops()["CalculatorTool.execute"] == run.reports[worker]["tool_calls"]
        assert starts.keys() == {head["id"] for head in found.of("end")}
        assert {starts[head["parent_id"]]["op"] for head in heads} == {"ToolAgentLoop.run"}


def test_answers_are_sglangs(run: Run) -> None:
    """Token ids, log probabilities and reason of each answer are those that SGLang gave, with the text of the ids."""
    for worker in WORKERS:
        ends = run.records[worker].of("end", op="LLMServerClient.generate")
        texts = {head["id"]: head["payload"]["response_text"] for head in run.records[worker].of("text")}
        for head in ends:
            output = head["payload"]
            assert output["stop_reason"] == "stop"
            assert output["log_probs"] == [-0.25 - position / 1000 for position in range(len(output["token_ids"]))]
            assert texts[head["id"]].endswith("<|im_end|>")
        assert any("<tool_call>" in texts[head["id"]] for head in ends)
        assert any("The answer to" in texts[head["id"]] for head in ends)


def test_functions_and_unknown_tools_too(run: Run) -> None:
    """What verl leaves undecorated is recorded with this engine as with any."""
    for worker in WORKERS:
        assert run.records[worker].ops()["shout"] > 0
        assert run.records[worker].ops()["ToolAgentLoop._call_tool"] > 0


def test_sampling_parameters_reach_the_record_as_given(run: Run) -> None:
    """verl's server rewrites the parameters for SGLang after the call; the record has what the agent loop gave."""
    for worker in WORKERS:
        for head in run.records[worker].of("start", op="LLMServerClient.generate"):
            assert head["payload"]["sampling_params"]["logprobs"] is True
            assert "max_new_tokens" not in head["payload"]["sampling_params"]
    assert all(request["sampling_params"]["max_new_tokens"] > 0 for request in run.requests)
    assert all("logprobs" not in request["sampling_params"] for request in run.requests)
