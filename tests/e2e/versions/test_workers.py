"""Every version's agent-loop worker, driven as its manager drives it; and what Ray's workers get of the settings."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.e2e

DOCUMENT = Path(__file__).parents[3] / "docs/verl.md"
# A row of the table in docs/verl.md: its label, the agent, how its model begins, and the operation looked for.
ROWS = [
    ("`SingleTurnAgentLoop.run`", "single_turn_agent", "", "SingleTurnAgentLoop.run"),
    ("`ToolAgentLoop.run`", "tool_agent", "", "ToolAgentLoop.run"),
    ("an agent loop of yours, `run` decorated", "decorated_loop", "", "DecoratedLoop.run"),
    ("the same, not decorated", "plain_loop", "", "PlainLoop.run"),
    ("`generate` of verl's client", "tool_agent", "", "{client}"),
    ("a `BaseTool` of yours, `execute` decorated", "tool_agent", "[decorated", "Decorated.execute"),
    ("the same, not decorated", "tool_agent", "[plain {", "Plain.execute"),
    ("a function under `@function_tool`", "tool_agent", "[shout", "shout"),
    ("a call of an unknown tool", "tool_agent", "[no_such_tool", "ToolAgentLoop._call_tool"),
    ("a call with arguments that are no JSON", "tool_agent", "[plain {no JSON", "ToolAgentLoop._call_tool"),
]


class Rolled(NamedTuple):
    """One run of a worker."""

    script: list[list[str]]
    generated: list[int]
    records: list[dict[str, Any]]

    def ops(self, line: int) -> Counter[str]:
        """What was recorded of the trajectory of one line of the script."""
        return Counter(r["op"] for r in self.records if r["kind"] == "start" and r["sample_index"] == 100 + line)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the tiny model, which both generations of transformers read."""
    folder = tmp_path_factory.mktemp("model")
    program = Path(__file__).parents[1] / "tiny_model.py"
    subprocess.run([sys.executable, str(program), str(folder)], check=True, timeout=300)
    return str(folder)


def kinds(version: str) -> list[str]:
    """The workers that a version has."""
    return ["v0", "tq"] if version >= "0.8" else ["v0"]


@pytest.fixture(scope="session")
def rolled(
    version: str,
    model: str,
    program: Callable[..., Any],
    read: Callable[[Path], list[dict[str, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[tuple[str, str], Rolled]:
    """(worker, VERL_TRACE_EXTRA) -> its run."""
    out = {}
    for kind in kinds(version):
        for extra in ("1", "0"):
            folder = tmp_path_factory.mktemp(f"{kind}-{extra}")
            report = program(version, folder, "roll", model, kind, VERL_TRACE_EXTRA=extra)
            out[kind, extra] = Rolled(report["script"], report["generated"], read(folder / "runs/exp"))
    return out


def client(version: str) -> str:
    """The operation of a call of the model."""
    return "LLMServerClient.generate" if version >= "0.8" else "AsyncLLMServerManager.generate"


def expected(version: str, agent: str, reply: str, generated: int) -> Counter[str]:
    """All that a trajectory calls, whether verl decorates it or not."""
    run = {"single_turn_agent": "SingleTurnAgentLoop", "plain_loop": "PlainLoop", "decorated_loop": "DecoratedLoop"}
    tool = {"[decorated": "Decorated.execute", "[plain": "Plain.execute", "[shout": "shout"}.get(reply.split(" ")[0])
    refused = reply.startswith("[") and (tool is None or "no JSON" in reply)
    called = ["ToolAgentLoop._call_tool"] if refused else [tool] if tool else []
    return Counter([f"{run.get(agent, 'ToolAgentLoop')}.run", *[client(version)] * generated, *called])


def test_every_call_is_recorded_once(rolled: dict[tuple[str, str], Rolled], version: str) -> None:
    """Each agent and tool of each worker: what was called is in the files, once, with an end, below its trajectory."""
    for (_, extra), run in rolled.items():
        if extra == "0":
            continue
        assert sum(run.generated) > len(run.script)
        for line, (agent, reply) in enumerate(run.script):
            assert run.ops(line) == expected(version, agent, reply, run.generated[line]), (agent, reply)
        starts = {r["id"]: r for r in run.records if r["kind"] == "start"}
        assert starts.keys() == {r["id"] for r in run.records if r["kind"] == "end"}
        for record in starts.values():
            assert record["op"].endswith(".run") == (record["parent_id"] is None)
            assert starts[record["trace_id"]]["sample_index"] == record["sample_index"]
            assert (record["step"], record["rollout_n"], record["validate"]) == (3, 0, False)


def test_refusals_say_what_the_model_wrote(rolled: dict[tuple[str, str], Rolled], version: str) -> None:
    """An unknown name and broken arguments are recorded as the model wrote them, with what it was told."""
    for (_, extra), run in rolled.items():
        found = [r for r in run.records if r["kind"] == "start" and r["op"] == "ToolAgentLoop._call_tool"]
        wanted = [{"name": "no_such_tool", "arguments": '{"text": "c"}'}, {"name": "plain", "arguments": "{no JSON"}]
        assert sorted((r["payload"] for r in found), key=str) == (sorted(wanted, key=str) if extra == "1" else [])
        told = {r["id"]: r["payload"] for r in run.records if r["kind"] == "end"}
        assert all("no_such_tool" in str(told[r["id"]]) for r in found if r["payload"]["name"] == "no_such_tool")


def test_a_single_turn_shows_question_and_answer(rolled: dict[tuple[str, str], Rolled], version: str) -> None:
    """The prompt's ids are inputs of one call and outputs of the other: both have the text of prompt and answer."""
    for (_, extra), run in rolled.items():
        texts = {r["op"]: r["payload"] for r in run.records if r["kind"] == "text" and r["sample_index"] == 100}
        loop = extra == "1" or version >= "0.8"
        # the client of 0.5 answers with a bare list
        has_text = [(client(version), version >= "0.6"), ("SingleTurnAgentLoop.run", loop)]
        assert texts.keys() == {op for op, there in has_text if there}
        for text in texts.values():
            assert "question 00" in text["prompt_text"]
            assert text["response_text"].startswith("an answer")


def cell(rolled: dict[tuple[str, str], Rolled], kind: str, version: str, row: tuple[str, str, str, str]) -> str:
    """✓ verl's own decorator, + recorded with VERL_TRACE_EXTRA only, - this version has no such thing."""
    _, agent, reply, op = row
    found = []
    for extra in ("1", "0"):
        run = rolled[kind, extra]
        lines = [i for i, line in enumerate(run.script) if line[0] == agent and line[1].startswith(reply)]
        found.append(any(run.ops(i)[op.format(client=client(version))] for i in lines))
    return "✓" if all(found) else "+" if found[0] else "-"


def test_table_in_the_documentation(rolled: dict[tuple[str, str], Rolled], version: str) -> None:
    """The table of docs/verl.md says for this version and its workers what has just been recorded."""
    table = [re.split(r"\s*\|\s*", line.strip("| ")) for line in DOCUMENT.read_text().splitlines() if "|" in line]
    header = next(row for row in table if row[0] == "what was called")
    told = table[table.index(header) + 2 :][: len(ROWS)]
    for kind in kinds(version):
        column = header.index(f"{version} TQ" if kind == "tq" else version)
        mine = [(row[0], cell(rolled, kind, version, row)) for row in ROWS]
        assert [(row[0], row[column]) for row in told] == mine


def test_settings_and_plugin_reach_rays_workers(version: str, program: Callable[..., Any], tmp_path: Path) -> None:
    """In a worker of verl's Ray job the plugin is loaded first, with all of the driver's variables."""
    ops = "verl.protocol:DataProto.select_idxs"
    found = program(version, tmp_path, "in_workers", VERL_TRACE_OPS=ops, VERL_TRACE_STEPS="1:")

    assert found["decorator"] == "verl_trace.verl_plugin.rollout_trace"
    assert found["named method"] == "verl_trace.verl_plugin.standin"
    assert found["variables"] == {
        "VERL_TRACE_DIR": str(tmp_path / "runs"),
        "VERL_TRACE_OFFLINE": "0",
        "VERL_TRACE_OPS": ops,
        "VERL_TRACE_STEPS": "1:",
    }
