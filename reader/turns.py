"""A turn of a conversation, and how texts, token ids and messages become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .calls import Call
from .payloads import parsed, text_in

__all__ = ["Decode", "ToolCall", "Turn", "arguments_of", "message_turn", "turn_of"]

# Token ids -> text; None: there is no tokenizer.
Decode = Callable[[Sequence[int]], str] | None


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
        value: whether the text is a value of another kind as JSON, to be shown but not to be taken for words.
        request, answer: of a call that gave several answers, which request it belongs to and which answer to it this
            is, from 0; None in all other turns (a prompt has no answer).
    """

    role: str
    text: str | None
    tokens: int | None = None
    call: Call | None = None
    name: str = ""
    arguments: Any = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    decoded: bool = False
    value: bool = False
    request: int | None = None
    answer: int | None = None


def message_turn(message: dict[str, Any]) -> Turn:
    """A message in the form that chat templates take."""
    role = message.get("role")
    turn = Turn(role if isinstance(role, str) else "message", text_in(message.get("content")))
    asked = message.get("tool_calls")
    for item in asked if isinstance(asked, list) else []:
        function = item.get("function") if isinstance(item, dict) else None
        if isinstance(function, dict):
            turn.tool_calls.append(ToolCall(str(function.get("name", "")), arguments_of(function.get("arguments"))))
    return turn


def turn_of(role: str, text: Any, ids: Any, decode: Decode) -> Turn:
    """A turn of a recorded text, else of token ids, decoded where there is a tokenizer."""
    ids = ids if isinstance(ids, list) else None
    tokens = None if ids is None else len(ids)
    if isinstance(text, str):
        return Turn(role, text, tokens)
    if ids is not None and decode is not None:
        return Turn(role, decode(ids), tokens, decoded=True)
    return Turn(role, None, tokens)


def arguments_of(value: Any) -> Any:
    """Arguments come as JSON in a text; text that is none stays what the model wrote."""
    found = parsed(value.encode()) if isinstance(value, str) else value
    return value if found is None else found
