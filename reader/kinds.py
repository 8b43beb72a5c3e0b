"""What a call is in a rollout: the model's turn, a tool, the parser of tool calls, or anything else.

Names decide (verl's, which code of your own may use too), and where a call is of nobody's class, what it got and gave:
token ids come from a model, and what a model sends to a tool are `parameters`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from .answers import gives_tokens, tokens_in
from .calls import Call

__all__ = [
    "MODEL", "OTHER", "PARSER", "ROOT", "TOOL", "gets_parameters", "handing_on", "kind_joined", "kind_named", "kind_of",
    "kinds_of", "tokens_of",
]  # fmt: skip

ROOT, MODEL, TOOL, PARSER, OTHER = "root", "model", "tool", "parser", "other"

_MODEL_NAMES = frozenset({"generate", "chat", "complete", "completion", "completions"})
_TOOL_NAMES = frozenset({"execute", "_call_tool", "call_tool"})
_PARAMETERS = b'{"parameters":'


def kind_of(call: Call) -> str:
    """One of ROOT, MODEL, TOOL, PARSER, OTHER."""
    output = call.raw_output
    return kind_named(
        call.op,
        is_root=call.parent_id is None,
        has_tokens=output is not None and gives_tokens(output, 0, len(output)),
        has_parameters=call.inputs is not None and gets_parameters(call.inputs, 0),
    )


def kinds_of(calls: Sequence[Call]) -> dict[str, str]:
    """The kinds of a trajectory's calls by their ids, as `kind_of` but for those that hand on what the model said."""
    kinds = {call.id: kind_of(call) for call in calls}
    outer = handing_on((call.id, call.parent_id, kinds[call.id]) for call in calls)
    return kinds | {call.id: ROOT if call.parent_id is None else OTHER for call in calls if call.id in outer}


@functools.lru_cache(maxsize=4096)
def kind_named(op: str, *, is_root: bool, has_tokens: bool = False, has_parameters: bool = False) -> str:
    """The kind of a call of this op; `has_tokens`: it gave token ids; `has_parameters`: see `gets_parameters`."""
    scope, _, name = op.rpartition(".")
    if name in _MODEL_NAMES or has_tokens:
        return MODEL
    if is_root:
        return ROOT
    if name == "extract_tool_calls":
        return PARSER
    # a function of verl's `@function_tool` is recorded under the tool's name, with what the model sent; any other plain
    # function may be anything: scoring, building a prompt
    return TOOL if name in _TOOL_NAMES or (has_parameters and not scope) else OTHER


def gets_parameters(inputs: bytes, begin: int) -> bool:
    """Whether the inputs that begin there begin with `parameters`, as those of a function tool do."""
    return inputs.startswith(_PARAMETERS, begin)


def kind_joined(kind: str, other: str) -> str:
    """The kind of a call by two records, of which the better one says `kind`: only a start shows a function tool."""
    return TOOL if kind == OTHER and other == TOOL else kind


def tokens_of(call: Call) -> int | None:
    """How many token ids a call gave, all answers together; None where it gave none."""
    output = call.raw_output
    if output is None:
        return None
    by_name = kind_named(call.op, is_root=False) == MODEL
    return tokens_in(output, 0, len(output), by_name=by_name, streamed=call.streamed)


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
