"""Prompts that grow: what was encoded once is used again, and every record is what was passed, whatever was done to the
list since."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from verl_trace.schemas import repeats
from verl_trace.schemas.repeats import MIN_ITEMS, Repeats
from verl_trace.schemas.values import encode_pieces

LONG = 2 * MIN_ITEMS


@pytest.fixture(autouse=True)
def ready() -> Iterator[None]:
    """Lists can be compared here, and nothing is held in the end."""
    repeats.prepare()
    assert repeats._same is not None
    before = repeats._held
    yield
    gc.collect()
    assert repeats._held == before


def written(known: Repeats, items: list[Any]) -> bytes:
    """The payload of a call with this prompt, which must be what is written without any memory."""
    value = {"request_id": "r", "prompt_ids": items, "top_p": 0.5}
    out = encode_pieces(value, None, known)
    whole = b"".join(out) if isinstance(out, list) else out
    alone = encode_pieces(value)

    assert whole == (b"".join(alone) if isinstance(alone, list) else alone)
    return whole


def grown(turns: int = 3) -> tuple[Repeats, list[Any]]:
    """A prompt that was written some times, each time longer."""
    known, items = Repeats(), list[Any]()
    for turn in range(turns):
        items += range(turn * LONG, (turn + 1) * LONG)
        written(known, items)
    return known, items


def test_a_growing_prompt_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third turn on only what is new is encoded, and the record holds all."""
    known, items = grown()
    encoded: list[int] = []
    real = orjson.dumps

    def counting(value: Any, *rest: Any, **more: Any) -> bytes:
        encoded.append(len(value) if isinstance(value, list) else 0)
        return real(value, *rest, **more)

    monkeypatch.setattr("verl_trace.schemas.long_lists._dumps", counting)
    items += range(7)
    out = encode_pieces({"prompt_ids": items}, None, known)

    assert sum(encoded) == 7
    assert isinstance(out, list)
    assert orjson.loads(b"".join(out)) == {"prompt_ids": items}


CHANGES: dict[str, Callable[[list[Any]], object]] = {
    "nothing": lambda items: None,
    "other ids in the middle": lambda items: items.__setitem__(100, 5),
    "a float of the same value": lambda items: items.__setitem__(1, 1.0),
    "a bool of the same value": lambda items: items.__setitem__(1, True),
    "equal ids of other objects": lambda items: items.__setitem__(slice(None), [int(str(i)) for i in items]),
    "not a number": lambda items: items.append(float("nan")),
    "a number, then None": lambda items: items.extend((3, None)),
    "text": lambda items: items.append("x"),
    "shorter": lambda items: items.__delitem__(slice(LONG, None)),
    "the first removed": lambda items: items.pop(0),
    "empty": lambda items: items.clear(),
    "huge": lambda items: items.append(1 << 70),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_changed_is_seen(change: Callable[[list[Any]], object]) -> None:
    """Whatever is done to the list between two turns, the next record is what the list holds then."""
    known, items = grown()
    change(items)
    written(known, items)
    items += range(10)
    written(known, items)


@pytest.mark.parametrize("inner", [[1], {}])
def test_what_may_change_inside_is_not_kept(inner: Any) -> None:
    """A list within the list is the same object when its content is another."""
    known, items = Repeats(), [*range(LONG), inner]
    for turn in range(4):
        written(known, items)
        if isinstance(inner, list):
            inner.append(turn)
        items.append(turn)


def test_random_edits() -> None:
    """Many small edits of all kinds, each followed by a record."""
    chance = random.Random(7)
    known, items = grown()
    for _ in range(200):
        at = chance.randrange(len(items))
        match chance.randrange(5):
            case 0:
                items[at] = chance.choice([True, 1.5, 7, 10**9])
            case 1:
                items.insert(at, 3)
            case 2:
                del items[at]
            case _:
                items += range(chance.randrange(20))
        written(known, items)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is encoded each time; a trajectory that ends makes room."""
    monkeypatch.setattr(repeats, "MAX_HELD", repeats._held + 50 * LONG)
    first, _ = grown(2)
    held = repeats._held
    second, items = grown(4)

    assert repeats._held == held
    first.clear()
    written(second, items)
    assert repeats._held > held - 50 * LONG
    second.clear()


def test_threads_share_a_trajectory() -> None:
    """Threads that write prompts of one trajectory at once write each its own."""
    known = Repeats()
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            items: list[Any] = []
            for turn in range(60):
                items += range(seed * 1000 + turn, seed * 1000 + turn + MIN_ITEMS)
                written(known, items)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
