"""Two conversations side by side: which turns correspond, and in which words they differ."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from .conversation import Turn

__all__ = ["Pair", "aligned", "differences"]

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
# A word-by-word comparison of more takes too long; lines are compared then.
_MAX_WORDS = 2_000
# Beyond this even lines are not compared, only whether the texts are equal.
_MAX_LINES = 2_000


class Pair(NamedTuple):
    """Turns in the same place; None where one side has none."""

    left: Turn | None
    right: Turn | None


def aligned(left: Sequence[Turn], right: Sequence[Turn]) -> list[Pair]:
    """Turns of the same role and tool are paired, in order."""
    matcher = SequenceMatcher(None, [_key(turn) for turn in left], [_key(turn) for turn in right], autojunk=False)
    pairs: list[Pair] = []
    for tag, begin, end, other_begin, other_end in matcher.get_opcodes():
        if tag == "equal":
            pairs += map(Pair, left[begin:end], right[other_begin:other_end])
        else:
            pairs += [Pair(turn, None) for turn in left[begin:end]]
            pairs += [Pair(None, turn) for turn in right[other_begin:other_end]]
    return pairs


def _key(turn: Turn) -> tuple[str, str]:
    # two runs may have differently named clients of the model
    return turn.role, turn.name if turn.role == "tool" else ""


def differences(left: str, right: str) -> Iterator[tuple[str, str]]:
    """`(mark, text)`: `=` in both, `-` in the left only, `+` in the right only. By words, of long texts by lines."""
    if left == right:
        yield "=", left
        return
    parts = [_WORDS.findall(text) for text in (left, right)]
    if max(map(len, parts)) > _MAX_WORDS:
        parts = [text.splitlines(keepends=True) for text in (left, right)]
    if max(map(len, parts)) > _MAX_LINES:
        yield "-", left
        yield "+", right
        return
    matcher = SequenceMatcher(None, parts[0], parts[1], autojunk=False)
    for tag, begin, end, other_begin, other_end in matcher.get_opcodes():
        if tag == "equal":
            yield "=", "".join(parts[0][begin:end])
            continue
        if begin < end:
            yield "-", "".join(parts[0][begin:end])
        if other_begin < other_end:
            yield "+", "".join(parts[1][other_begin:other_end])
