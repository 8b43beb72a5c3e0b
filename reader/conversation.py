"""A trajectory as a conversation: what was asked, what the model wrote, what the tools returned.

The prompt is taken from the messages that went into the trajectory, else from the decoded prompt, else from its token
ids. Every turn of the model and every call of a tool below is a turn, in the order in which they began; what only
hands on what a model's call inside of it gave is none. A trajectory of which only the whole is recorded is cut into
turns by its `response_mask`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from .calls import Call, Trajectory
from .kinds import MODEL, PARSER, ROOT, TOOL, handing_on, kind_of
from .payloads import parsed, text_in

__all__ = ["Decode", "ToolCall", "Turn", "conversation"]

# Token ids -> text; None: there is no tokenizer.
Decode = Callable[[Sequence[int]], str] | None

_PROMPT_FIELDS = ("raw_prompt", "messages")
_PATHS = ((), ("kwargs",))
_TOKEN_FIELDS = frozenset({"prompt_ids", "prompt_text", "response_ids", "response_text"})


@dataclass(frozen=True)
class ToolCall:
    """What the model asked for, as the parser understood it."""

    name: str
    arguments: Any


@dataclass
class Turn:
    """One turn. `role`: system, user, assistant, tool, or what a recorded message says.

    Attributes:
        text: what was said; None where only token ids are known and no tokenizer was given.
        tokens: how many token ids it has; None where unknown.
        call: the call that it comes from; None for messages that went into the trajectory.
        name: of the tool, or the op.
        arguments: of the tool call.
        tool_calls: what an assistant's turn asks for.
        decoded: whether a tokenizer made the text when it was read, not when it was recorded.
    """

    role: str
    text: str | None
    tokens: int | None = None
    call: Call | None = None
    name: str = ""
    arguments: Any = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    decoded: bool = False


def conversation(trajectory: Trajectory, decode: Decode = None) -> list[Turn]:
    """The turns of a trajectory. Parses its payloads; broken ones give no turn."""
    root = trajectory.root
    prompt = _messages(root) if root is not None else []
    by_id = {call.id: call for call in trajectory.calls}
    turns: list[Turn] = []
    kinds = [kind_of(call) for call in trajectory.calls]
    outer = handing_on((call.id, call.parent_id, kind) for call, kind in zip(trajectory.calls, kinds, strict=True))
    for call, kind in zip(trajectory.calls, kinds, strict=True):
        if call.id in outer:
            continue
        if kind == MODEL:
            if not prompt and not turns:
                prompt = _prompt_of_model(call, decode)
            turns.append(_model_turn(call, decode))
        elif kind == TOOL and not _is_inside_tool(call, by_id):
            turns.append(_tool_turn(call))
        elif kind == PARSER:
            _add_tool_calls(call, turns)
    if root is not None and not any(turn.role == "assistant" for turn in turns) and kind_of(root) == ROOT:
        whole = _of_the_whole(root, decode)
        prompt = prompt or [turn for turn in whole if turn.role == "prompt"]
        turns = [*turns, *(turn for turn in whole if turn.role != "prompt")]
    return prompt + turns


def _messages(root: Call) -> list[Turn]:
    inputs = parsed(root.inputs)
    for path in _PATHS:
        at = inputs
        for key in path:
            at = at.get(key) if isinstance(at, dict) else None
        for name in _PROMPT_FIELDS:
            messages = at.get(name) if isinstance(at, dict) else None
            if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
                return [_message(message) for message in messages]
            if isinstance(messages, str) and messages:
                return [Turn("user", messages)]
    return []


def _message(message: dict[str, Any]) -> Turn:
    role = message.get("role")
    turn = Turn(role if isinstance(role, str) else "message", text_in(message.get("content")))
    asked = message.get("tool_calls")
    for item in asked if isinstance(asked, list) else []:
        function = item.get("function") if isinstance(item, dict) else None
        if isinstance(function, dict):
            turn.tool_calls.append(ToolCall(str(function.get("name", "")), _arguments(function.get("arguments"))))
    return turn


def _prompt_of_model(call: Call, decode: Decode) -> list[Turn]:
    """The prompt as the model got it: one text with the marks of the chat template in it."""
    inputs, output = parsed(call.inputs), parsed(call.output())
    messages = _messages(call)
    if messages:
        return messages
    ids = inputs.get("prompt_ids") if isinstance(inputs, dict) else None
    recorded = output.get("prompt_text") if isinstance(output, dict) else None
    if not isinstance(recorded, str) and not isinstance(ids, list):
        return []
    return [_turn("prompt", recorded, ids, decode)]


def _model_turn(call: Call, decode: Decode) -> Turn:
    output = parsed(call.output())
    if isinstance(output, dict):
        text = next((output[name] for name in ("response_text", "text", "content") if name in output), None)
        turn = _turn("assistant", text, output.get("token_ids"), decode)
    else:
        turn = _turn("assistant", None if output is None else text_in(output), None, decode)
    turn.call, turn.name = call, call.op
    return turn


def _turn(role: str, text: Any, ids: Any, decode: Decode) -> Turn:
    ids = ids if isinstance(ids, list) else None
    tokens = None if ids is None else len(ids)
    if isinstance(text, str):
        return Turn(role, text, tokens)
    if ids is not None and decode is not None:
        return Turn(role, decode(ids), tokens, decoded=True)
    return Turn(role, None, tokens)


def _tool_turn(call: Call) -> Turn:
    inputs, output = parsed(call.inputs), parsed(call.output())
    name, arguments = _tool_name(call), inputs
    if isinstance(inputs, dict):
        if "parameters" in inputs:
            arguments = inputs["parameters"]
        elif call.op.endswith("call_tool") and "name" in inputs:
            name, arguments = str(inputs["name"]), _arguments(inputs.get("arguments"))
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
            turn.tool_calls.append(ToolCall(item["name"], _arguments(item.get("arguments"))))


def _arguments(value: Any) -> Any:
    """Arguments come as JSON in a text; text that is none stays what the model wrote."""
    found = parsed(value.encode()) if isinstance(value, str) else value
    return value if found is None else found


def _of_the_whole(root: Call, decode: Decode) -> list[Turn]:
    """Prompt and response of a trajectory whose turns were not recorded."""
    output = parsed(root.output())
    if not isinstance(output, dict):
        return [] if output is None else [Turn("assistant", text_in(output), None, root, root.op)]
    text = next((output[name] for name in ("content", "text") if isinstance(output.get(name), str)), None)
    if text is not None and not _TOKEN_FIELDS & output.keys():
        # one message, or what an engine's server answers
        role = output.get("role")
        return [Turn(role if isinstance(role, str) else "assistant", text, None, root, root.op)]
    turns = []
    if "prompt_ids" in output or "prompt_text" in output:
        turns.append(_turn("prompt", output.get("prompt_text"), output.get("prompt_ids"), decode))
    ids, mask = output.get("response_ids"), output.get("response_mask")
    if isinstance(ids, list) and isinstance(mask, list) and decode is not None and len(ids) == len(mask):
        turns += [_turn(role, None, part, decode) for role, part in _cut_by_mask(ids, mask)]
    elif isinstance(ids, list) or isinstance(output.get("response_text"), str):
        # without a tokenizer nobody can say where in the text a tool's part begins
        role = "response" if isinstance(mask, list) and 0 in mask else "assistant"
        turns.append(_turn(role, output.get("response_text"), ids, None))
    for turn in turns[1:] or turns:
        turn.call, turn.name = root, root.op
    return turns


def _cut_by_mask(ids: list[int], mask: list[int]) -> Iterator[tuple[str, list[int]]]:
    for written, part in groupby(zip(ids, mask, strict=True), key=lambda pair: bool(pair[1])):
        yield "assistant" if written else "tool", [token for token, _ in part]
