"""Trajectories as chat messages, the form that fine-tuning takes."""

from __future__ import annotations

from typing import Any

from ..reader import Trajectory
from ..reader.conversation import Decode, Turn, conversation
from ..reader.facts import trajectory_facts
from ..reader.payloads import json_text

__all__ = ["LACKS_TEXT", "SEVERAL_ANSWERS", "NoChat", "chat_lines"]

# Why a trajectory is left out.
LACKS_TEXT = "left out for lack of text"
SEVERAL_ANSWERS = "left out for several answers between other turns"


class NoChat(Exception):
    """This trajectory is no conversation; says why, in one of the words above."""


def chat_lines(trajectory: Trajectory, decode: Decode = None) -> list[dict[str, Any]]:
    """`{"messages": […], "metadata": {…}}` of each conversation: one, but of a call that gave several answers as many.

    What the model wrote is in `assistant` messages, what tools returned in `tool` messages. A prompt of which only the
    text with the marks of the chat template is known is one `user` message. Of a call that answered several requests,
    or one several times, each answer is a conversation with its prompt; `metadata` numbers them by `request` and
    `answer`, from 0.

    Raises:
        NoChat: a turn has no text, since half a conversation teaches nonsense; or a call gave several answers and there
            are other turns of the model or of tools, of which nothing says to which answer they belong.
    """
    turns = conversation(trajectory, decode)
    if not any(turn.role == "assistant" for turn in turns):
        raise NoChat(LACKS_TEXT)
    lead = [turn for turn in turns if turn.request is None]
    several = [turn for turn in turns if turn.request is not None]
    if not several:
        return [_line(trajectory, turns)]
    if len({id(turn.call) for turn in several if turn.answer is not None}) > 1 or any(turn.call for turn in lead):
        raise NoChat(SEVERAL_ANSWERS)
    return [
        {**row, "metadata": {**row["metadata"], "request": answer.request, "answer": answer.answer}}
        for answer in several
        if answer.answer is not None
        for row in [_line(trajectory, [*_prompt(answer, lead, several), answer])]
    ]


def _prompt(answer: Turn, lead: list[Turn], several: list[Turn]) -> list[Turn]:
    """Of several requests each has its own; what went into the trajectory is that of the only one."""
    return [turn for turn in several if turn.request == answer.request and turn.answer is None] or (
        lead if all(turn.request == answer.request for turn in several) else []
    )


def _line(trajectory: Trajectory, turns: list[Turn]) -> dict[str, Any]:
    return {"messages": list(map(_message, turns)), "metadata": trajectory_facts(trajectory)}


def _message(turn: Turn) -> dict[str, Any]:
    # `response`: the model's words and the tools', not told apart
    lacks_text = turn.text is None and (turn.call is None or turn.call.exception is None)
    if turn.role == "response" or turn.value or lacks_text:
        raise NoChat(LACKS_TEXT)
    message: dict[str, Any] = {"role": "user" if turn.role == "prompt" else turn.role, "content": _content(turn)}
    if turn.role == "tool" and turn.name:
        message["name"] = turn.name
    if turn.tool_calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": asked.name, "arguments": _arguments(asked.arguments)}}
            for asked in turn.tool_calls
        ]
    return message


def _content(turn: Turn) -> str:
    """What was said; a tool that failed said its error."""
    if turn.text is not None or turn.call is None or turn.call.exception is None:
        return turn.text or ""
    return f"{turn.call.exception.get('type')}: {turn.call.exception.get('message')}"


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)
