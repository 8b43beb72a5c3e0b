"""One of a thing is called otherwise than several of it, wherever a number is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import verl_trace
from verl_trace.schemas.wording import counted, plural

PACKAGE = Path(verl_trace.__file__).resolve().parent
# A number in braces with a plural noun of its own behind it.
NOUNS = "calls|files|records|trajectories|bytes|runs|places|rewards|fields|strings|lines|steps|groups|processes|spans"
PLURAL = re.compile(rf"\{{[^{{}}]*:(>9)?,\}} (?:more )?({NOUNS})\b")


@pytest.mark.parametrize(
    ("count", "one", "words"),
    [
        (1, "call", "1 call"), (0, "call", "0 calls"), (2000, "call", "2,000 calls"), (3, "reply", "3 replies"),
        (16, "process", "16 processes"), (1, "more damaged place", "1 more damaged place"), (2, "byte", "2 bytes"),
    ],
)  # fmt: skip
def test_counted(count: int, one: str, words: str) -> None:
    """A number and what there is of it."""
    assert counted(count, one) == words


def test_more_than_a_noun() -> None:
    """A verb that goes with it is given in both forms."""
    assert counted(1, "call is", "calls are") == "1 call is"
    assert counted(2, "call is", "calls are") == "2 calls are"
    assert plural(2, "call") == "calls"


def test_no_text_makes_its_own_plural() -> None:
    """`1 calls` is said nowhere: what counts goes through `counted` or `plural`."""
    wrong = [
        f"{path.relative_to(PACKAGE)}: {found[0]}"
        for folder in ("reader", "uploader", "wandb_runs", "collector", "viewer", "commands", "demo")
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        for found in PLURAL.finditer(path.read_text(encoding="utf-8"))
    ]

    assert wrong == []
