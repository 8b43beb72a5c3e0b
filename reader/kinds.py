"""What a call is in a rollout: the model's turn, a tool, the parser of tool calls, or anything else.

verl's names decide, and where a call is of nobody's class, what it gave: token ids come from a model.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from .calls import Call
from .digest import count_of

__all__ = ["LOOKED_AT", "MODEL", "OTHER", "PARSER", "ROOT", "TOOL", "handing_on", "kind_named", "kind_of"]

ROOT, MODEL, TOOL, PARSER, OTHER = "root", "model", "tool", "parser", "other"

_MODEL_NAMES = frozenset({"generate", "chat", "complete", "completion", "completions"})
_TOOL_NAMES = frozenset({"execute", "_call_tool", "call_tool"})


# So much of an output tells whether it has token ids: they come first.
LOOKED_AT = 4096


def kind_of(call: Call) -> str:
    """One of ROOT, MODEL, TOOL, PARSER, OTHER."""
    output = call.raw_output
    tokens = output is not None and count_of(output, "token_ids", 0, LOOKED_AT) is not None
    return kind_named(call.op, is_root=call.parent_id is None, has_tokens=tokens)


@functools.lru_cache(maxsize=4096)
def kind_named(op: str, *, is_root: bool, has_tokens: bool) -> str:
    """The kind of a call of this op; `has_tokens`: it gave token ids."""
    scope, _, name = op.rpartition(".")
    if name in _MODEL_NAMES or has_tokens:
        return MODEL
    if is_root:
        return ROOT
    if name == "extract_tool_calls":
        return PARSER
    # a plain function as a tool is recorded under the tool's name
    return TOOL if name in _TOOL_NAMES or not scope else OTHER


def handing_on(calls: Iterable[tuple[str, str | None, str]]) -> set[str]:
    """Calls of the model with another one of the model inside, whose words they hand on. `calls`: id, parent, kind."""
    parents: dict[str, str | None] = {}
    models = set()
    for call_id, parent, kind in calls:
        parents[call_id] = parent
        if kind == MODEL:
            models.add(call_id)
    found: set[str] = set()
    walked: set[str] = set()
    for model in models if len(models) > 1 else ():
        above = parents[model]
        while above is not None and above not in walked:
            walked.add(above)
            if above in models:
                found.add(above)
            above = parents.get(above)
    return found
