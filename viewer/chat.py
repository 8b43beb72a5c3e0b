"""Trajectories as chat messages, the form that fine-tuning takes."""

from __future__ import annotations

from typing import Any

from ..reader import Trajectory
from ..reader.conversation import Decode, Turn, conversation
from ..reader.facts import trajectory_facts
from ..reader.payloads import json_text

__all__ = ["chat_line"]


def chat_line(trajectory: Trajectory, decode: Decode = None) -> dict[str, Any] | None:
    """`{"messages": […], "metadata": {…}}`; None where a turn has no text, since half a conversation teaches nonsense.

    What the model wrote is in `assistant` messages, what tools returned in `tool` messages. A prompt of which only the
    text with the marks of the chat template is known is one `user` message.
    """
    messages = []
    for turn in conversation(trajectory, decode):
        message = _message(turn)
        if message is None:
            return None
        messages.append(message)
    if not any(message["role"] == "assistant" for message in messages):
        return None
    return {"messages": messages, "metadata": trajectory_facts(trajectory)}


def _message(turn: Turn) -> dict[str, Any] | None:
    if turn.role == "response":
        # the model's words and the tools', not told apart
        return None
    if turn.text is None and (turn.call is None or turn.call.exception is None):
        return None
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
