"""What a call of the model gave: an answer, or of several requests at once several, as engines' own objects have them.

A generator's output is what it yielded, piece by piece or each time all so far; both are one answer here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from .counts import count_of
from .payloads import parsed, text_in

__all__ = ["Answer", "Request", "gives_tokens", "is_message", "requests_of", "tokens_in"]

# So much of an output tells whether it has token ids: they come first.
_LOOKED_AT = 4096

# vLLM's outputs as `schemas` writes them, in a list (of a batch, or of a stream) or one alone.
_ENGINE = (b'[{"_type":"RequestOutput",', b'{"_type":"RequestOutput",')
_ENGINE_PARTS = re.compile(
    rb'"_type":"(?:RequestOutput","request_id":("[^"\\]*(?:\\.[^"\\]*)*")|CompletionOutput","index":([0-9]+))'
)
_YIELDED = b'{"yielded":['
_KEY = b'"token_ids":'
_OBJECT, _LIST = ord("{"), ord("[")
# All that a list of whole numbers has, and lists of such lists.
_IDS = b"0123456789,[]"

_TEXT_FIELDS = ("response_text", "text", "content")
_Piece = TypeVar("_Piece", bytes, str, list[int])


class Answer(NamedTuple):
    """Its text and its token ids, None where they are not recorded."""

    text: str | None
    ids: list[int] | None


class Request(NamedTuple):
    """What the model was asked, where the output says so, and the answers: more than one where n > 1 was asked for."""

    answers: list[Answer]
    prompt: str | None = None
    prompt_ids: list[int] | None = None


def gives_tokens(output: bytes, begin: int, end: int) -> bool:
    """Whether the output `output[begin:end]` has token ids, as far as its beginning tells."""
    return output.startswith(_ENGINE, begin, end) or (
        count_of(output, "token_ids", begin, min(begin + _LOOKED_AT, end)) is not None
    )


def tokens_in(output: bytes, begin: int, end: int, *, by_name: bool, streamed: bool) -> int | None:
    """How many token ids the output `output[begin:end]` has, of all answers together; None where it has none.

    `by_name`: the call's name says that it is the model's, so that bare numbers are ids. `streamed`: a generator's.
    """
    if end <= begin:
        return None
    if output.startswith(_ENGINE, begin, end):
        return _tokens_of_engine(output, begin, end)
    if output[begin] == _OBJECT and not (streamed and output.startswith(_YIELDED, begin, end)):
        return count_of(output, "token_ids", begin, end)
    if output[begin] == _LIST:
        found = count_of(output, "token_ids", begin, end)
        # a list with a digest in it: the number itself
        if found is not None and output.find(_KEY + b"[", begin, end) < 0:
            return found
        if found is None and not (by_name and not output[begin:end].translate(None, _IDS)):
            return None
    elif output[begin] != _OBJECT:
        return None
    counts = [
        len(answer.ids)
        for request in requests_of(parsed(output[begin:end]), streamed=streamed)
        for answer in request.answers
        if answer.ids is not None
    ]
    if counts:
        return sum(counts)
    # a stream of pieces of no known form: as of any other object, which is what a digest of it keeps
    return count_of(output, "token_ids", begin, end) if output[begin] == _OBJECT else None


def _tokens_of_engine(output: bytes, begin: int, end: int) -> int | None:
    """Parses nothing: beside the ids there may be megabytes of log probabilities."""
    request: bytes = b""
    pieces: dict[tuple[bytes, bytes], list[bytes]] = {}
    for part in _ENGINE_PARTS.finditer(output, begin, end):
        if part[2] is None:
            request = part[1]
            continue
        at = output.find(_KEY, part.end(), end) + len(_KEY)
        close = output.find(b"]", at, end)
        if at >= len(_KEY) and close >= 0 and output.startswith(b"[", at, end):
            pieces.setdefault((request, part[2]), []).append(output[at + 1 : close])
    if not pieces:
        # fields in another order
        return count_of(output, "token_ids", begin, end)
    count = 0
    for found in pieces.values():
        last = _that_has_all(found, lambda one, other: other.startswith(one + b","))
        count += sum(piece.count(b",") + 1 for piece in (found if last is None else [last]) if piece)
    return count


def requests_of(output: Any, *, streamed: bool) -> list[Request]:
    """The requests that this output of a call of the model answers; `streamed`: a generator's.

    An output of a form that is not known is one answer of which nothing is known.
    """
    if streamed and isinstance(output, dict) and isinstance(output.get("yielded"), list):
        if output.get("returned") is not None:
            requests = requests_of(output["returned"], streamed=False)
        else:
            requests = requests_of(output["yielded"], streamed=True)
        return _with_text(requests, output.get("response_text"))
    if isinstance(output, dict):
        return [_of_engine([output], []) if _is_engine(output) else Request([_answer(output)])]
    if not isinstance(output, list):
        # a number is not what a model said
        return [Request([Answer(output if isinstance(output, str) else None, None)])]
    if _are_ids(output):
        return [Request([Answer(None, output)])]
    # of a long stream, the middle may have been left out
    cut: list[Answer | None] = [None for item in output if streamed and isinstance(item, dict) and "_omitted" in item]
    items = [item for item in output if not (isinstance(item, dict) and "_omitted" in item)] if cut else output
    if items and all(map(_is_engine, items)):
        together: dict[str, list[dict[str, Any]]] = {}
        for item in items:
            name = item.get("request_id")
            together.setdefault(name if isinstance(name, str) else "", []).append(item)
        return [_of_engine(found, cut) for found in together.values()]
    answers = list(map(_as_answer, items))
    if streamed:
        return [Request([_joined(answers + cut)])]
    known = [answer for answer in answers if answer is not None]
    if known and (len(known) == len(answers) or len(known) == 1):
        return [Request([answer]) for answer in known]
    return [Request([Answer(text_in(output) if is_message(output) else None, None)])]


def is_message(output: list[Any]) -> bool:
    """Whether these are the parts of a message: texts, pictures."""
    return all(isinstance(item, dict) and "type" in item for item in output)


def _with_text(requests: list[Request], text: Any) -> list[Request]:
    """With the text that was decoded when it was recorded."""
    if not isinstance(text, str) or len(requests) != 1 or len(requests[0].answers) != 1:
        return requests
    (answer,) = requests[0].answers
    return [requests[0]._replace(answers=[answer._replace(text=text)])]


def _answer(output: dict[str, Any]) -> Answer:
    text = next((output[name] for name in _TEXT_FIELDS if name in output), None)
    return Answer(text if isinstance(text, str) else None, _ids(output.get("token_ids")))


def _as_answer(item: Any) -> Answer | None:
    """An item of a list as an answer, or as a piece of one; None where it is none."""
    if isinstance(item, str):
        return Answer(item, None)
    if isinstance(item, list) and _are_ids(item):
        return Answer(None, item)
    # what has a type is a part of a message
    if not isinstance(item, dict) or "type" in item:
        return None
    answer = _answer(item)
    return None if answer.text is None and answer.ids is None else answer


def _joined(pieces: Sequence[Answer | None]) -> Answer:
    """The answer that a stream gave; without text where a piece of it is missing."""
    ids = [piece.ids for piece in pieces if piece is not None and piece.ids is not None]
    texts = [piece.text for piece in pieces if piece is not None and piece.text is not None]
    all_ids = _that_has_all(ids, lambda one, other: len(one) < len(other) and other[: len(one)] == one)
    all_text = _that_has_all(texts, lambda one, other: len(one) < len(other) and other.startswith(one))
    if all_ids is not None or (not ids and all_text is not None):
        return Answer(texts[-1] if texts else None, all_ids)
    whole = bool(texts) and len(texts) == len(pieces)
    return Answer("".join(texts) if whole else None, [token for part in ids for token in part] if ids else None)


def _that_has_all(pieces: Sequence[_Piece], begins: Callable[[_Piece, _Piece], bool]) -> _Piece | None:
    """The last piece, where each has what came before it, and some have more; None of pieces of which each is new."""
    told = [piece for piece in pieces if piece]
    grown = [begins(one, other) for one, other in pairwise(told)]
    if any(grown) and all(more or one == other for more, (one, other) in zip(grown, pairwise(told), strict=True)):
        return told[-1]
    return None


def _is_engine(item: Any) -> bool:
    """Whether it is vLLM's `RequestOutput`."""
    return isinstance(item, dict) and item.get("_type") == "RequestOutput" and isinstance(item.get("outputs"), list)


def _of_engine(outputs: Sequence[dict[str, Any]], cut: list[Answer | None]) -> Request:
    """One request, of which a stream has several outputs; `cut`: a None for what of it is missing."""
    pieces: dict[int, list[Answer | None]] = {}
    for output in outputs:
        for number, answer in enumerate(output["outputs"]):
            if isinstance(answer, dict):
                index = answer.get("index")
                pieces.setdefault(index if isinstance(index, int) else number, []).append(_answer(answer))
    prompt = next((output["prompt"] for output in outputs if isinstance(output.get("prompt"), str)), None)
    prompt_ids = next((ids for output in outputs if (ids := _ids(output.get("prompt_token_ids"))) is not None), None)
    return Request([_joined(found + cut) for found in pieces.values()], prompt, prompt_ids)


def _ids(value: Any) -> list[int] | None:
    return value if isinstance(value, list) else None


def _are_ids(values: list[Any]) -> bool:
    """Whether these are whole numbers and nothing else."""
    return all(type(value) is int and value >= 0 for value in values)
