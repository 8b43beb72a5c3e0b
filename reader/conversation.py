"""A trajectory as a conversation: what was asked, what the model wrote, what the tools returned.

The prompt is taken from the messages that went into the trajectory, else from the decoded prompt, else from its token
ids. Every turn of the model and every call of a tool below is a turn, in the order in which they began; what only
hands on what a model's call inside of it gave is none. A trajectory of which only the whole is recorded is cut into
turns by its `response_mask`.

A call of the model that answers several requests, or one several times, has a turn for each answer, and for each
request's prompt: they are conversations of their own (`Turn.request`, `Turn.answer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from .answers import Request, is_message
from .calls import Call, Trajectory
from .kinds import MODEL, PARSER, ROOT, TOOL, handing_on, kind_of
from .payloads import parsed, text_in
from .prompts import messages_of, prompt_of_model, prompts_of_batch, recorded_fields, requests_to
from .turns import Decode, ToolCall, Turn, arguments_of, turn_of

__all__ = ["Decode", "ToolCall", "Turn", "conversation"]

_TOKEN_FIELDS = frozenset({"prompt_ids", "prompt_text", "response_ids", "response_text"})


def conversation(trajectory: Trajectory, decode: Decode = None) -> list[Turn]:
    """The turns of a trajectory. Parses its payloads; broken ones give no turn."""
    root = trajectory.root
    prompt = messages_of(root) if root is not None else []
    by_id = {call.id: call for call in trajectory.calls}
    turns: list[Turn] = []
    kinds = [kind_of(call) for call in trajectory.calls]
    outer = handing_on((call.id, call.parent_id, kind) for call, kind in zip(trajectory.calls, kinds, strict=True))
    for call, kind in zip(trajectory.calls, kinds, strict=True):
        if call.id in outer:
            continue
        if kind == MODEL:
            asked = requests_to(call)
            if not prompt and not turns and len(asked) == 1:
                prompt = prompt_of_model(call, asked[0], decode)
            turns += _model_turns(call, asked, decode)
        elif kind == TOOL and not _is_inside_tool(call, by_id):
            turns.append(_tool_turn(call))
        elif kind == PARSER:
            _add_tool_calls(call, turns)
    if root is not None and not any(turn.role == "assistant" for turn in turns) and kind_of(root) == ROOT:
        whole = _of_the_whole(root, decode)
        prompt = prompt or [turn for turn in whole if turn.role == "prompt"]
        turns = [*turns, *(turn for turn in whole if turn.role != "prompt")]
    if root is not None:
        _take_text_of_root(root, prompt, turns)
    return prompt + turns


def _model_turns(call: Call, asked: list[Request], decode: Decode) -> Iterator[Turn]:
    """A turn for each answer; of several, behind the prompt of its request."""
    several = len(asked) > 1 or len(asked[0].answers) > 1
    prompts = prompts_of_batch(call, asked, decode) if len(asked) > 1 else [[]]
    for number, (prompt, request) in enumerate(zip(prompts, asked, strict=True)):
        for turn in prompt:
            turn.request = number
        yield from prompt
        for which, answer in enumerate(request.answers):
            text = answer.text
            if text is None and not several:
                text = recorded_fields(call).get("response_text")
            turn = turn_of("assistant", text, answer.ids, decode)
            if turn.text is None and answer.ids is None and not several:
                turn = _value_turn(call, parsed(call.output()))
            turn.call, turn.name = call, call.op
            if several:
                turn.request, turn.answer = number, which
            yield turn


def _value_turn(call: Call, output: Any) -> Turn:
    """What was given where no words were: a number, a list of whatever."""
    if output is None or isinstance(output, dict):
        return Turn("assistant", None, None, call, call.op)
    return Turn("assistant", text_in(output), None, call, call.op, value=True)


def _take_text_of_root(root: Call, prompt: list[Turn], turns: list[Turn]) -> None:
    """Give the only turn of the model, and its prompt, the text recorded with the whole, where the ids are the same."""
    models = [turn for turn in turns if turn.role == "assistant"]
    if len(models) != 1 or all(turn.text is not None for turn in [*prompt, *models]):
        return
    call, whole = models[0].call, parsed(root.output())
    if call is None or call is root or not isinstance(whole, dict):
        return
    ids = requests_to(call)[0].answers[0].ids
    if models[0].text is None and ids is not None and ids == whole.get("response_ids"):
        _take_text(models[0], whole.get("response_text"))
    inputs = parsed(call.inputs)
    ids = inputs.get("prompt_ids") if isinstance(inputs, dict) else None
    for turn in prompt:
        if turn.role == "prompt" and turn.text is None and ids is not None and ids == whole.get("prompt_ids"):
            _take_text(turn, whole.get("prompt_text"))


def _take_text(turn: Turn, text: Any) -> None:
    if isinstance(text, str):
        turn.text = text


def _tool_turn(call: Call) -> Turn:
    inputs, output = parsed(call.inputs), parsed(call.output())
    name, arguments = _tool_name(call), inputs
    if isinstance(inputs, dict):
        if "parameters" in inputs:
            arguments = inputs["parameters"]
        elif call.op.endswith("call_tool") and "name" in inputs:
            name, arguments = str(inputs["name"]), arguments_of(inputs.get("arguments"))
    # verl's tools return (response, reward, metrics)
    if isinstance(output, list) and output and len(output) <= 3 and isinstance(output[0], (dict, str)):
        output = output[0]
    return Turn("tool", None if output is None else text_in(output), None, call, name, arguments)


def _tool_name(call: Call) -> str:
    """`CalculatorTool.execute` -> `CalculatorTool`; a plain function keeps its name."""
    return call.op.rpartition(".")[0] or call.op


def _is_inside_tool(call: Call, by_id: dict[str, Call]) -> bool:
    """Whether a tool made this call for itself: what it returned is part of that tool's answer."""
    seen: set[str] = set()
    at = by_id.get(call.parent_id or "")
    while at is not None and at.id not in seen:
        if kind_of(at) == TOOL:
            return True
        seen.add(at.id)
        at = by_id.get(at.parent_id or "")
    return False


def _add_tool_calls(call: Call, turns: list[Turn]) -> None:
    """What the parser found in the last turn of the model."""
    output = parsed(call.output())
    asked = output[1] if isinstance(output, list) and len(output) == 2 and isinstance(output[1], list) else []
    turn = next((turn for turn in reversed(turns) if turn.role == "assistant"), None)
    for item in asked:
        if turn is not None and isinstance(item, dict) and isinstance(item.get("name"), str):
            turn.tool_calls.append(ToolCall(item["name"], arguments_of(item.get("arguments"))))


def _of_the_whole(root: Call, decode: Decode) -> list[Turn]:
    """Prompt and response of a trajectory whose turns were not recorded."""
    output = parsed(root.output())
    if output is None:
        return []
    if not isinstance(output, dict):
        told = list(_model_turns(root, requests_to(root), decode))
        if isinstance(output, list) and not root.streamed and told[0].tokens is None and not is_message(output):
            # texts may be anything here, where those of a call of the model are its answers
            return [_value_turn(root, output)]
        return told
    text = next((output[name] for name in ("content", "text") if isinstance(output.get(name), str)), None)
    if text is not None and not _TOKEN_FIELDS & output.keys():
        # one message, or what an engine's server answers
        role = output.get("role")
        return [Turn(role if isinstance(role, str) else "assistant", text, None, root, root.op)]
    turns = []
    if "prompt_ids" in output or "prompt_text" in output:
        turns.append(turn_of("prompt", output.get("prompt_text"), output.get("prompt_ids"), decode))
    ids, mask = output.get("response_ids"), output.get("response_mask")
    if isinstance(ids, list) and isinstance(mask, list) and decode is not None and len(ids) == len(mask):
        turns += [turn_of(role, None, part, decode) for role, part in _cut_by_mask(ids, mask)]
    elif isinstance(ids, list) or isinstance(output.get("response_text"), str):
        # without a tokenizer nobody can say where in the text a tool's part begins
        role = "response" if isinstance(mask, list) and 0 in mask else "assistant"
        turns.append(turn_of(role, output.get("response_text"), ids, None))
    for turn in turns[1:] or turns:
        turn.call, turn.name = root, root.op
    return turns


def _cut_by_mask(ids: list[int], mask: list[int]) -> Iterator[tuple[str, list[int]]]:
    for written, part in groupby(zip(ids, mask, strict=True), key=lambda pair: bool(pair[1])):
        yield "assistant" if written else "tool", [token for token, _ in part]
