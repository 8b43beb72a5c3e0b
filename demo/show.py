"""The call trees of the demo as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .read_back import ServerCall

__all__ = ["tree_lines"]

# The rest of a line after op, status and time; what is longer is cut, the files hold all of it.
_MAX_TEXT = 60


def tree_lines(roots: list[ServerCall]) -> Iterator[str]:
    """One line a call: where it belongs, op, status, milliseconds, and what it said."""
    place = None
    for root in roots:
        found = root.attributes.get
        if found("step") != place:
            place = found("step")
            yield f"step {place}"
        yield f"  sample {found('sample_index')}, rollout {found('rollout_n')}"
        yield from _call_lines(root, "    ", "")


def _call_lines(call: ServerCall, indent: str, branch: str) -> Iterator[str]:
    head = f"{indent}{branch}{call.op}"
    time = "" if call.seconds is None else f"{call.seconds * 1000:.1f} ms"
    yield f"{head:<36} {call.status:<17} {time:>9}  {_said(call)}".rstrip()
    below = indent + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
    for child in call.children:
        yield from _call_lines(child, below, "└─ " if child is call.children[-1] else "├─ ")


def _said(call: ServerCall) -> str:
    """The exception, the decoded text, or the output itself, in one short line."""
    text = " ".join((_error(call.exception) or _text_of(call.output)).split())
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def _error(exception: str | None) -> str:
    """`Type: message` of an exception as Weave keeps it: JSON in a string."""
    if not exception:
        return ""
    try:
        said = json.loads(exception)
        return f"{said['type']}: {said['message']}"
    except (ValueError, KeyError, TypeError):
        return exception


def _text_of(output: Any) -> str:
    if isinstance(output, dict):
        return str(output.get("response_text", ""))
    return "" if output is None else str(output)
