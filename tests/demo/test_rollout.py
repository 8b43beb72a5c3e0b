"""The demo's rollout records what it says: several processes, one of them killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from zstandard import ZstdDecompressor

from verl_trace.demo.rollout import Plan, Tokenizer
from verl_trace.demo.run import Recorded, make_plan, record
from verl_trace.schemas.files import parse_segment_name
from verl_trace.schemas.lines import Line, parse_line


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan in a folder of its own."""
    return make_plan(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def recorded(plan: Plan) -> Recorded:
    """One recorded rollout for all tests of this module."""
    return record(plan)


@pytest.fixture(scope="module")
def records(recorded: Recorded) -> list[Line]:
    """All records of all files."""
    return [parse_line(line) for path in recorded.files for line in read(path).splitlines()]


def read(path: Path) -> bytes:
    """The JSON lines of a span file, sealed or not."""
    data = path.read_bytes()
    return ZstdDecompressor().stream_reader(data).read() if path.suffix == ".zst" else data


def test_every_process_writes_a_file_of_its_own(plan: Plan, recorded: Recorded) -> None:
    """Workers that end by themselves close and seal their file; the killed one's says nothing of an end."""
    last = {}
    for path in recorded.files:
        lines = [parse_line(line) for line in read(path).splitlines()]
        last[lines[0].head["pid"]] = (lines[-1].kind, parse_segment_name(path))
    killed, _ = last.pop(recorded.killed_pid)

    # whether the killed one's file is sealed depends on who lives longest: a living worker seals what dead ones left
    assert killed != "close"
    assert len(last) == plan.workers
    assert [(kind, name.sealed) for kind, name in last.values() if name] == [("close", True)] * plan.workers
    assert recorded.bytes == sum(path.stat().st_size for path in recorded.files)


def test_every_trajectory_is_recorded(plan: Plan, records: list[Line]) -> None:
    """Each rollout of each sample of each step has a root, two turns of the model and one tool call."""
    starts = [
        record.head for record in records if record.kind == "start" and record.head["sample_index"] < plan.samples
    ]
    per_place = Counter((head["step"], head["sample_index"], head["rollout_n"]) for head in starts)

    assert len(per_place) == plan.steps * plan.samples * plan.rollouts
    assert set(per_place.values()) == {4}
    assert Counter(head["op"] for head in starts if head["parent_id"] is None) == {"ToolAgentLoop.run": len(per_place)}


def test_one_tool_call_raises(records: list[Line]) -> None:
    """The error is recorded once, with its type, and the trajectory around it ends well."""
    errors = [record.head for record in records if record.kind == "end" and record.head["status"] == "error"]

    assert [(head["op"], head["exception"]["type"]) for head in errors] == [("Calculator.execute", "ZeroDivisionError")]
    assert (errors[0]["step"], errors[0]["sample_index"], errors[0]["rollout_n"]) == (1, 0, 0)


def test_killed_worker_shows_what_it_was_doing(plan: Plan, records: list[Line]) -> None:
    """The calls that were open at SIGKILL have a start and no end; the one that had ended has both."""
    killed = [record for record in records if record.head.get("sample_index") == plan.samples]
    ended = {record.head["id"] for record in killed if record.kind == "end"}
    open_ops = [r.head["op"] for r in killed if r.kind == "start" and r.head["id"] not in ended]

    assert open_ops == ["ToolAgentLoop.run", "Calculator.execute"]
    assert len(ended) == 1


def test_processes_belong_to_one_attempt(records: list[Line]) -> None:
    """All workers of a start are one attempt, whatever VERL_TRACE_ variables the caller's shell holds."""
    headers = [record.head for record in records if record.kind == "header"]

    assert len({head["attempt"] for head in headers}) == 1
    assert len({head["pid"] for head in headers}) == len(headers) == 3


def test_tokens_are_shown_as_text(records: list[Line]) -> None:
    """token2text decodes the ids with the rollout's own tokenizer."""
    texts = [record.payload for record in records if record.kind == "text"]

    assert any(b'"response_text":"<calculator>12/0</calculator>"' in text for text in texts)
    assert Tokenizer().decode(Tokenizer().encode("12/5 ≠ 2")) == "12/5 ≠ 2"
