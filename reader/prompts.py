"""What a call was asked: messages, the text of a prompt, or its token ids; of a batch, of each request."""

from __future__ import annotations

from typing import Any

from .answers import Answer, Request, requests_of
from .calls import Call
from .payloads import is_numbers, parsed
from .turns import Decode, Turn, message_turn, turn_of

__all__ = ["messages_of", "prompt_of_model", "prompts_of_batch", "recorded_fields", "requests_to"]

_PROMPT_FIELDS = ("raw_prompt", "messages")
_PATHS = ((), ("kwargs",))
# Inputs that are a list of prompts, as vLLM, SGLang and others call them.
_BATCH_FIELDS = ("prompts", "messages", "prompt", "prompt_ids", "inputs", "conversations")


def messages_of(call: Call) -> list[Turn]:
    """The messages among the inputs of a call; a text that is given as such is one of the user."""
    inputs = parsed(call.inputs)
    for path in _PATHS:
        at = inputs
        for key in path:
            at = at.get(key) if isinstance(at, dict) else None
        for name in _PROMPT_FIELDS:
            messages = at.get(name) if isinstance(at, dict) else None
            if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
                return [message_turn(message) for message in messages]
            if isinstance(messages, str) and messages:
                return [Turn("user", messages)]
    return []


def recorded_fields(call: Call) -> dict[str, Any]:
    """The fields of an output, and of the text that was decoded of it, which may stand beside a list, too."""
    found = [value for value in (parsed(call.text), parsed(call.output())) if isinstance(value, dict)]
    return {key: value for fields in found for key, value in fields.items()}


def requests_to(call: Call) -> list[Request]:
    """What a call of the model was asked, and its answers: at least one request, each with at least one answer."""
    asked = requests_of(parsed(call.output()), streamed=call.streamed) or [Request([])]
    asked = [request if request.answers else request._replace(answers=[Answer(None, None)]) for request in asked]
    if len(asked) == 1 or any(request.prompt is not None or request.prompt_ids is not None for request in asked):
        return asked
    if _given(call, len(asked)):
        return asked
    # a list of answers to one prompt
    return [Request([answer for request in asked for answer in request.answers])]


def _given(call: Call, count: int) -> list[Any]:
    """The prompts among the inputs, where there are so many; [] where one prompt was given, or none is found."""
    inputs = parsed(call.inputs)
    for name in _BATCH_FIELDS if isinstance(inputs, dict) else ():
        given = inputs.get(name)
        if isinstance(given, list) and len(given) == count and not is_numbers(given) and not messages_of(call):
            return given
    return []


def prompt_of_model(call: Call, asked: Request, decode: Decode) -> list[Turn]:
    """The prompt as the model got it: its messages, or one text with the marks of the chat template in it."""
    messages = messages_of(call)
    if messages:
        return messages
    inputs = parsed(call.inputs)
    inputs = inputs if isinstance(inputs, dict) else {}
    given: Any = next(iter(_given(call, 1)), None)
    if given is None:
        # of a batch of one; else the one prompt
        given = next((text for name in ("prompt", "prompts") if isinstance(text := inputs.get(name), str)), None)
    text, ids = recorded_fields(call).get("prompt_text"), inputs.get("prompt_ids")
    if isinstance(text, str):
        asked = asked._replace(prompt=text)
    if is_numbers(ids):
        asked = asked._replace(prompt_ids=ids)
    return _prompt_of_request(given, asked, decode)


def prompts_of_batch(call: Call, asked: list[Request], decode: Decode) -> list[list[Turn]]:
    """Of each of several requests its messages, where these went in, else the prompt that output or input tells."""
    given = _given(call, len(asked)) or [None] * len(asked)
    return [_prompt_of_request(item, request, decode) for item, request in zip(given, asked, strict=True)]


def _prompt_of_request(given: Any, asked: Request, decode: Decode) -> list[Turn]:
    if isinstance(given, list) and given and all(isinstance(message, dict) for message in given):
        return [message_turn(message) for message in given]
    text, ids = asked.prompt, asked.prompt_ids
    if isinstance(given, dict):
        # vLLM's form of one prompt
        text, ids = text or given.get("prompt"), ids or given.get("prompt_token_ids")
    elif isinstance(given, str):
        text = text or given
    elif is_numbers(given):
        ids = ids or given
    if not isinstance(text, str) and not isinstance(ids, list):
        return []
    return [turn_of("prompt", text, ids, decode)]
