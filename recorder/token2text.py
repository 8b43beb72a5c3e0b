"""token2text: which output carries ids to decode, and the decoding, which the traced call never waits for.

As in verl 0.9.1: prompt ids come from the output or, failing that, from the inputs; response ids from `response_ids` or
`token_ids`. Anything else is recorded as it is. The tokenizer is the instance's; failing that, one that an integration
has lent to the trajectory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from ..schemas.objects import model_fields, untagged_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["lent_tokenizer", "prepare"]

# For instances that have none of their own.
lent_tokenizer: ContextVar[Any] = ContextVar("verl_trace_lent_tokenizer", default=None)


def prepare(
    instance: Any, inputs: dict[str, Any] | None, output: Any
) -> tuple[Any, Callable[[], dict[str, str]] | None]:
    """The output as it is to be recorded, and the job that decodes its ids (None when there is nothing to decode)."""
    decode = getattr(getattr(instance, "tokenizer", None), "decode", None)
    if not callable(decode):
        decode = getattr(lent_tokenizer.get(), "decode", None)
    if not callable(decode):
        return output, None
    fields = _fields(output)
    prompt_ids = fields.get("prompt_ids") if fields is not None else None
    if prompt_ids is None and inputs is not None:
        prompt_ids = inputs.get("prompt_ids")
    response_ids = None
    if fields is not None:
        response_ids = fields.get("response_ids")
        if response_ids is None:
            response_ids = fields.get("token_ids")
    if fields is None or (prompt_ids is None and response_ids is None):
        return output, None
    # the caller may change its lists while the text is still being made
    prompt, response = _snapshot(prompt_ids), _snapshot(response_ids)

    def job() -> dict[str, str]:
        text = {}
        if prompt is not None:
            text["prompt_text"] = decode(prompt)
        if response is not None:
            text["response_text"] = decode(response)
        return text

    return untagged_fields(fields), job


def _fields(output: Any) -> dict[str, Any] | None:
    if isinstance(output, dict):
        return dict(output)
    fields = model_fields(output, type(output))
    if fields is not None:
        return fields
    stored = getattr(output, "__dict__", None)
    return dict(stored) if isinstance(stored, dict) else None


def _snapshot(ids: Any) -> Any:
    return list(ids) if isinstance(ids, list) else ids
