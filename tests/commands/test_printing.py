"""JSON on a terminal: nothing in it is obeyed, and it is the same value as in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.viewer.text import visible_json

from .conftest import trajectory

Cli = Callable[..., Any]
# A C1 control character that begins an escape sequence, DEL, a direction mark, one beyond the first plane; and text.
HOSTILE = "\x9b31m \x7f \u202e \U000e0001 größer 東京 😀"

COMMANDS = (
    "ls {run} --json", "ls -t {run} --json", "show {run} 1:0:0 --json", "show {run} 1:0:0 --raw",
    "grep --json It {run}", "compare {run} 1:0:0 1:0:0 --json", "stats {run} --json", "cat {run}",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_obeys_nothing(
    cli: Cli, writer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Every character can be seen, text stays readable, and parsed it is what a file would hold."""
    made = writer(tmp_path / "runs", "p", HOSTILE)
    trajectory(made, 1, 0, 0, answer=HOSTILE)
    made.close()
    words = command.format(run=tmp_path / "runs").split()
    plain = cli(*words)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = cli(*words)

    assert (plain.code, shown.code) == (0, 0), shown.err
    assert HOSTILE in plain.out
    assert "größer 東京 😀" in shown.out
    assert not [char for char in shown.out if char != "\n" and not char.isprintable()]
    assert values(shown.out) == values(plain.out)


def values(text: str) -> list[Any]:
    """All JSON in a text."""
    decoder, found = json.JSONDecoder(), []
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def test_every_character() -> None:
    """Whatever a string holds, it parses to itself."""
    for start in range(0, 0x110000, 0x8000):
        text = "".join(chr(code) for code in range(start, start + 0x8000) if not 0xD800 <= code < 0xE000)

        assert json.loads(visible_json(json.dumps(text, ensure_ascii=False))) == text
