"""In which words two texts differ: by rapidfuzz, and without it."""

from __future__ import annotations

import importlib
import random
import time
from typing import Any

import pytest

from verl_trace.viewer import alignment
from verl_trace.viewer.alignment import differences
from verl_trace.viewer.comparing import _marked
from verl_trace.viewer.text import cell_width

WORDS = ["the", " ", "answer", "is", " ", "5", "\n", "because", ",", "\t", "漢字"]


@pytest.fixture(params=["rapidfuzz", "difflib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    importlib.import_module("rapidfuzz")
    if request.param == "difflib":
        monkeypatch.setattr(alignment, "_indel", lambda: None)
    return str(request.param)


def sides(marked: list[tuple[str, str]]) -> tuple[str, str]:
    """What the parts say of the left and of the right text."""
    return tuple("".join(text for mark, text in marked if mark in ("=", side)) for side in "-+")  # type: ignore[return-value]


def test_parts_make_both_texts(library: str) -> None:
    """Whatever they are: nothing is lost, and of equal texts everything is equal."""
    chance = random.Random(1)
    for _ in range(300):
        left = "".join(chance.choices(WORDS, k=chance.randrange(40)))
        right = left if chance.random() < 0.2 else "".join(chance.choices(WORDS, k=chance.randrange(40)))
        marked = list(differences(left, right))
        assert sides(marked) == (left, right)
        assert left != right or {mark for mark, _ in marked} <= {"="}


def test_what_chance_makes_equal_is_no_part(library: str) -> None:
    """A blank or a comma between two differences belongs to them; a line's end does not."""
    assert list(differences("it is 5, so\nyes", "it is 7, thus\nyes")) == [
        ("=", "it is "), ("-", "5, so"), ("+", "7, thus"), ("=", "\nyes")
    ]  # fmt: skip
    assert [mark for mark, _ in differences("a\nb\n", "x\ny\n")] == ["-", "+", "=", "-", "+", "="]


def test_long_texts(library: str) -> None:
    """Word by word where rapidfuzz is there, else line by line."""
    lines: list[Any] = [f"{number} is the number of line {number}\n" for number in range(1500)]
    changed = [*lines[:700], "another line\n", *lines[701:]]
    marked = list(differences("".join(lines), "".join(changed)))

    assert sides(marked) == ("".join(lines), "".join(changed))
    taken = next(text for mark, text in marked if mark == "-")
    assert taken == lines[700] if library == "difflib" else taken in lines[700]


def test_a_line_of_megabytes_is_cut_as_fast_as_it_is_long() -> None:
    """A tool's result without a line break, ten times as long, takes some ten times as long."""
    seconds = []
    for size in (20_000, 200_000):
        text = "y" * (size // 2) + "\u754c" * (size // 2)
        begin = time.process_time()
        lines = _marked([("-", text)], "-", 38, colour=True)
        seconds.append(time.process_time() - begin)
        assert "".join(piece for line in lines for piece, _ in line) == text
        assert max(sum(cell_width(piece) for piece, _ in line) for line in lines) == 38
    assert seconds[1] < 40 * seconds[0]
