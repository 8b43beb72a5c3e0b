"""Two conversations side by side: which turns correspond, and in which words they differ.

Words are compared by rapidfuzz where it is installed (2,000 words of which none need be the same: 1 ms, where Python's
difflib takes 700), else by difflib, and then texts of any length only line by line.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from ..reader.conversation import Turn

__all__ = ["Pair", "aligned", "differences"]

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
# What is compared word by word: more takes rapidfuzz over a second, and difflib, which knows no better, as long.
_MAX_WORDS, _MAX_WORDS_DIFFLIB = 50_000, 2_000
# Beyond this even lines are not compared, only whether the texts are equal.
_MAX_LINES, _MAX_LINES_DIFFLIB = 50_000, 2_000
# So many words between two differences are no more than chance: a mark around each side is easier to read.
_CHANCE = 3

# First and last word of a part in the left text, and in the right one.
_Part = tuple[int, int, int, int]


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
    indel = _indel()
    words, lines = (_MAX_WORDS, _MAX_LINES) if indel is not None else (_MAX_WORDS_DIFFLIB, _MAX_LINES_DIFFLIB)
    parts = [_WORDS.findall(text) for text in (left, right)]
    if max(map(len, parts)) > words:
        parts = [text.splitlines(keepends=True) for text in (left, right)]
    if max(map(len, parts)) > lines:
        yield "-", left
        yield "+", right
        return
    at = 0
    for begin, end, other_begin, other_end in [
        *_changes(parts[0], parts[1], indel),
        (len(parts[0]),) * 2 + (len(parts[1]),) * 2,
    ]:
        for mark, words_of in (
            ("=", parts[0][at:begin]), ("-", parts[0][begin:end]), ("+", parts[1][other_begin:other_end])
        ):  # fmt: skip
            if words_of:
                yield mark, "".join(words_of)
        at = end


def _changes(left: Sequence[str], right: Sequence[str], indel: Any) -> list[_Part]:
    """The parts that differ, in order; those between which little is the same are one."""
    found: list[_Part] = []
    codes = indel.opcodes(left, right) if indel is not None else _difflib(left, right)
    for tag, *part in codes:
        begin, end, other_begin, other_end = part
        if tag == "equal":
            continue
        if found:
            same = left[found[-1][1] : begin]
            if len(same) <= _CHANCE and "\n" not in "".join(same):
                found[-1] = (found[-1][0], end, found[-1][2], other_end)
                continue
        found.append((begin, end, other_begin, other_end))
    return found


def _difflib(left: Sequence[str], right: Sequence[str]) -> Any:
    return SequenceMatcher(None, left, right, autojunk=False).get_opcodes()


def _indel() -> Any:
    """rapidfuzz's comparison; None where it is not installed."""
    try:
        return importlib.import_module("rapidfuzz.distance").Indel
    except ImportError:
        return None
