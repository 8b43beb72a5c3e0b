"""What a call is in a rollout: the model's turn, a tool, the parser of tool calls, or anything else.

verl's names decide, and where a call is of nobody's class, what it gave: token ids come from a model.
"""

from __future__ import annotations

from .calls import Call, Trajectory
from .digest import count_of

__all__ = ["MODEL", "OTHER", "PARSER", "ROOT", "TOOL", "kind_of", "tokens_of"]

ROOT, MODEL, TOOL, PARSER, OTHER = "root", "model", "tool", "parser", "other"

_MODEL_NAMES = frozenset({"generate", "chat", "complete", "completion", "completions"})
_TOOL_NAMES = frozenset({"execute", "_call_tool", "call_tool"})


def kind_of(call: Call) -> str:
    """One of ROOT, MODEL, TOOL, PARSER, OTHER."""
    scope, _, name = call.op.rpartition(".")
    if name in _MODEL_NAMES:
        return MODEL
    if call.raw_output is not None and count_of(call.raw_output[:4096], "token_ids") is not None:
        return MODEL
    if call.parent_id is None:
        return ROOT
    if name == "extract_tool_calls":
        return PARSER
    # a plain function as a tool is recorded under the tool's name
    return TOOL if name in _TOOL_NAMES or not scope else OTHER


def tokens_of(trajectory: Trajectory) -> int | None:
    """Tokens that the model wrote, or for a trajectory without turns those of its response; None where none are."""
    turns = [call.raw_output for call in trajectory.calls if call.raw_output is not None and kind_of(call) == MODEL]
    counts = [count for output in turns if (count := count_of(output, "token_ids")) is not None]
    if counts:
        return sum(counts)
    root = trajectory.root
    return None if root is None or root.raw_output is None else count_of(root.raw_output, "response_ids")
