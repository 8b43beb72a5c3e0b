"""The number of items of a list, counted by its commas, is what parsing says, in small payloads and large ones."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from verl_trace.reader.counts import count_of

NAMES = ("token_ids", "response_ids", "num_turns")


def payload(chance: random.Random) -> dict[str, Any]:
    """Keys in any order, long lists and many short texts between them; texts name the keys, as hostile ones may."""
    texts = ['"token_ids":[1,2]', "response_ids", '\\"num_turns\\":3', "", "é" * 50]
    fields: dict[str, Any] = {
        "token_ids": [chance.randrange(150_000) for _ in range(chance.choice((0, 1, 500, 9000)))],
        "response_ids": [chance.randrange(150_000) for _ in range(chance.choice((0, 2, 7000)))],
        "num_turns": chance.randrange(100),
        "log_probs": [chance.random() for _ in range(chance.choice((0, 3000)))],
        "texts": [chance.choice(texts) for _ in range(chance.choice((0, 5, 100, 2000)))],
        "prompt_ids": list(range(chance.choice((0, 20_000)))),
    }
    names = list(fields)
    chance.shuffle(names)
    return {name: fields[name] for name in names[: chance.randint(1, 6)]}


@pytest.mark.parametrize("seed", range(10))
def test_counts_are_those_of_the_parsed_payload(seed: int) -> None:
    """Also within a line, between bytes that name the keys as well, and None of what is not there."""
    chance = random.Random(seed)
    for _ in range(20):
        made = payload(chance)
        data = orjson.dumps(made)
        around = b'"token_ids":[1,2,3],"response_ids":[1],"num_turns":7'
        for name in NAMES:
            value = made.get(name)
            expected = len(value) if isinstance(value, list) else value
            assert count_of(data, name) == expected
            assert count_of(around + data + around, name, len(around), len(around) + len(data)) == expected


def test_the_first_of_two_counts() -> None:
    """Wherever it lies: behind few quotes, many, and beyond the number that are looked at one by one."""
    for quotes in (0, 1, 39, 40, 41, 500):
        data = b'"x",' * quotes + b"1," * 20_000 + b'"token_ids":[1,2,3],"token_ids":[1]'
        assert count_of(data, "token_ids") == 3
        assert count_of(data[:-30], "token_ids") is None
