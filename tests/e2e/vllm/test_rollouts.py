"""An unmodified verl with a real vLLM behind its agents: recorded, uploaded, read back, and every call counted.

It is `examples/verl_vllm` that runs. What its model says is random but for the grammar, which makes the shape of every
trajectory certain.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from verl_trace.demo.server_env import Server

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]
ROLLOUTS = 2
GENERATE, PARSE = "LLMServerClient.generate", "HermesToolParser.extract_tool_calls"
# An operation, how it ended, and the same of the calls below it.
Shape = tuple[str, str, list[Any]]
WORKED: Shape = ("Calculator.execute", "success", [("Calculator.work_out", "success", [])])
FAILED: Shape = ("Calculator.execute", "error", [("Calculator.work_out", "error", [])])
SHOUT: Shape = ("shout", "success", [])
REFUSED: Shape = ("ToolAgentLoop._call_tool", "success", [])
DRAFT: Shape = ("CheckingAgent.draft", "success", [(GENERATE, "success", [])])
CHECK: Shape = ("CheckingAgent.check", "success", [])
TURN: list[Shape] = [(GENERATE, "success", []), (PARSE, "success", [])]
# What the first turn of questions 0 to 3 calls, by the grammar.
TOOLS: list[list[Shape]] = [[WORKED], [FAILED], [SHOUT], [WORKED, REFUSED]]
SHAPES: list[Shape] = [
    *[("ToolAgentLoop.run", "success", [*TURN, *tools, *TURN]) for tools in TOOLS],
    ("CheckingAgent.run", "success", [DRAFT, CHECK, DRAFT, CHECK]),
]
# Weave's rule for names of ops, which live tracing follows too, takes `._` for one separator.
SPELLED = {"ToolAgentLoop-call_tool": "ToolAgentLoop._call_tool"}


class Call(NamedTuple):
    """A call on the server; `children` in the order in which they started."""

    stored: dict[str, Any]
    children: list[Call]

    @property
    def op(self) -> str:
        """The operation as it was recorded."""
        name = self.stored["op_name"].rpartition("/")[2].partition(":")[0]
        return SPELLED.get(name, name)


class Rolled(NamedTuple):
    """One run of the example: what it says it did, its folder, its records, and the server's call trees."""

    report: dict[str, int]
    folder: Path
    records: Any
    roots: list[Call]


def trees(calls: list[dict[str, Any]]) -> list[Call]:
    """The calls of a project as trees."""
    nodes = {call["id"]: Call(call, []) for call in sorted(calls, key=lambda call: call["started_at"])}
    for node in nodes.values():
        if node.stored["parent_id"] is not None:
            nodes[node.stored["parent_id"]].children.append(node)
    return [node for node in nodes.values() if node.stored["parent_id"] is None]


@pytest.fixture(scope="module")
def rolled(
    run: Callable[..., str],
    model: Path,
    server: Server,
    upload: Callable[[Server, Path], None],
    stored: Callable[[Server, str], list[dict[str, Any]]],
    records: Callable[[Path], Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Rolled:
    """The example run once, and uploaded."""
    folder = tmp_path_factory.mktemp("rollouts")
    program = ROOT / "examples/verl_vllm/rollouts.py"
    report = json.loads(run(folder, program, str(model), "--rollouts", str(ROLLOUTS)))
    runs = folder / "runs/verl-vllm"
    upload(server, runs)
    return Rolled(report, runs, records(runs), trees(stored(server, "me/examples")))


def walk(call: Call) -> Iterator[Call]:
    """A call and all below it."""
    yield call
    for child in call.children:
        yield from walk(child)


def shape(call: Call) -> Shape:
    """What the server holds of a call and all below it."""
    return (call.op, "error" if call.stored["exception"] else "success", [shape(child) for child in call.children])


def tree(call: Call, first: str, rest: str) -> Iterator[str]:
    """A call tree as docs/verl.md shows it: no ids, no times."""
    error = json.loads(call.stored["exception"])["type"] if call.stored["exception"] else ""
    yield f"{first + call.op:<52}{error}".rstrip()
    for child in call.children:
        last = child is call.children[-1]
        yield from tree(child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def test_every_call_arrives_in_its_place(rolled: Rolled) -> None:
    """Each question's rollouts have exactly the calls that the grammar makes them have, in their order."""
    found = {
        number: [shape(root) for root in rolled.roots if root.stored["attributes"]["sample_index"] == number]
        for number in range(len(SHAPES))
    }

    assert rolled.report["trajectories"] == len(rolled.roots) == len(SHAPES) * ROLLOUTS
    for number, expected in enumerate(SHAPES):
        assert found[number] == [expected] * ROLLOUTS


def test_every_request_is_a_call(rolled: Rolled) -> None:
    """vLLM's own count of requests is the number of `generate` calls; files and server hold the same, all ended."""
    starts = {head["id"]: head for head in rolled.records.of("start")}
    calls = [call for root in rolled.roots for call in walk(root)]

    assert rolled.report["requests"] == rolled.records.ops()[GENERATE]
    assert Counter(call.op for call in calls) == rolled.records.ops()
    assert {call.stored["id"] for call in calls} == starts.keys() == {head["id"] for head in rolled.records.of("end")}
    assert all(call.stored["ended_at"] for call in calls)


def test_text_is_what_the_model_said(rolled: Rolled, model: Path) -> None:
    """Decoded text stands beside the ids of each request, and is the text of those ids and no others."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    generated = [call for root in rolled.roots for call in walk(root) if call.op == GENERATE]

    assert generated
    for call in generated:
        assert call.stored["output"]["response_text"] == tokenizer.decode(
            call.stored["output"]["token_ids"], skip_special_tokens=False
        )
        assert len(call.stored["output"]["log_probs"]) == len(call.stored["output"]["token_ids"])
        assert re.search(r"question \d: what is", call.stored["output"]["prompt_text"])


def test_tools_got_what_the_model_wrote(rolled: Rolled) -> None:
    """The arguments of each tool call are those in the model's text of the same trajectory."""
    texts = {head["trace_id"]: "" for head in rolled.records.of("text", op=GENERATE)}
    for head in rolled.records.of("text", op=GENERATE):
        texts[head["trace_id"]] += head["payload"]["response_text"]
    written = {
        trace: [json.loads(call) for call in re.findall(r"<tool_call>\n(.*)\n</tool_call>", text)]
        for trace, text in texts.items()
    }
    called: dict[str, list[Any]] = {trace: [] for trace in texts}
    for head in rolled.records.of("start"):
        inputs = head["payload"]
        if head["op"] == "Calculator.execute":
            called[head["trace_id"]].append({"name": "calculator", "arguments": inputs["parameters"]})
        elif head["op"] == "shout":
            called[head["trace_id"]].append({"name": "shout", "arguments": inputs["parameters"]})
        elif head["op"] == "ToolAgentLoop._call_tool":
            called[head["trace_id"]].append({"name": inputs["name"], "arguments": json.loads(inputs["arguments"])})

    assert sum(map(len, written.values())) == ROLLOUTS * sum(len(tools) for tools in TOOLS)
    assert called == written


def test_sampling_parameters_are_whole(rolled: Rolled) -> None:
    """vLLM's own object among the inputs of a request is there with every field."""
    from dataclasses import fields

    from vllm.sampling_params import StructuredOutputsParams

    starts = rolled.records.of("start", op=GENERATE)
    grammars = [head["payload"]["sampling_params"].get("structured_outputs") for head in starts]
    found = [grammar for grammar in grammars if grammar is not None]

    assert len(found) == ROLLOUTS * len(TOOLS)
    for grammar in found:
        assert {field.name for field in fields(StructuredOutputsParams)} <= grammar.keys()
        assert grammar["regex"].startswith("<tool_call>")


def test_a_second_upload_changes_nothing(
    rolled: Rolled,
    server: Server,
    upload: Callable[[Server, Path], None],
    stored: Callable[[Server, str], list[dict[str, Any]]],
) -> None:
    """The same calls, once."""
    upload(server, rolled.folder)

    assert trees(stored(server, "me/examples")) == rolled.roots


def test_tree_in_the_documentation(rolled: Rolled) -> None:
    """docs/verl.md gives the numbers of what has just been read back, and its trees, one of each question."""
    text = (ROOT / "docs/verl.md").read_text()
    calls = sum(1 for root in rolled.roots for _ in walk(root))
    shown = []
    for number in range(len(SHAPES)):
        root = next(root for root in rolled.roots if root.stored["attributes"]["sample_index"] == number)
        shown += [f"question {number}", *tree(root, "   ", "   ")]
    block = "\n".join(shown)

    assert f"{len(rolled.roots)} trajectories, {calls} calls, {rolled.report['requests']} of them `generate`" in text
    assert f"```\n{block}\n```" in text, f"docs/verl.md should hold\n{block}"
