"""Texts that Weave would take for references are found wherever they stand, also beside long lists of numbers."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from verl_trace.uploader.payload import TEXT_MARK, protect_references

HINTS = ("weave:///a/b/c", "weave-trace-internal:///p/call/1")
PLAIN = ("", "[", "]", "a [1] b", "[" + "x" * 2000 + "]", "weave", 'an "eave"', "see weave:///a/b/c")


def payload(chance: random.Random, depth: int = 0) -> Any:
    """Objects and lists with long and short lists of numbers, brackets in texts, and few references."""
    kind = chance.randrange(7 if depth < 3 else 4)
    if kind == 0:
        return [chance.randrange(200_000) for _ in range(chance.choice((0, 3, 150, 400, 5000)))]
    if kind == 1:
        return chance.choice(PLAIN)
    if kind == 2:
        return chance.choice(HINTS) if chance.random() < 0.3 else chance.random()
    if kind == 3:
        return [[chance.random() for _ in range(chance.choice((2, 300)))] for _ in range(3)]
    if kind == 4:
        return [payload(chance, depth + 1) for _ in range(chance.randrange(5))]
    return {chance.choice((*"abcdef", "x[", "y]")): payload(chance, depth + 1) for _ in range(chance.randrange(6))}


def marked(value: Any) -> Any:
    """What is expected, by parsing all of it."""
    if isinstance(value, str):
        return TEXT_MARK + value if value.startswith(("weave:///", "weave-trace-internal:///")) else value
    if isinstance(value, dict):
        return {key: marked(inner) for key, inner in value.items()}
    return [marked(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(10))
def test_references_beside_long_lists(seed: int) -> None:
    """The same as by parsing everything; untouched, to the byte, without one."""
    chance = random.Random(seed)
    found = 0
    for _ in range(30):
        value = {"inputs": payload(chance), "more": payload(chance), "last": payload(chance)}
        data = orjson.dumps(value)
        safe, count = protect_references(data)

        assert orjson.loads(safe) == marked(value)
        assert (safe is data) is (count == 0)
        found += count
    assert found
