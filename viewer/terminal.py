"""Styled lines on a terminal, plain ones anywhere else.

A line is a list of pieces `(text, style)`, where text is data: nobody parses markup in it, and what could be an escape
sequence was made visible before. Colours are rich's business, which knows what a terminal can; without rich, with
NO_COLOR, or in a pipe, the text is the same and has none.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from typing import TextIO

__all__ = ["Line", "Pieces", "columns_of", "is_unicode", "line", "plain", "print_lines", "wants_colour"]

Pieces = list[tuple[str, str]]
Line = Pieces

# Narrower than this nothing is readable, wider than this prose is not.
_MIN_COLUMNS = 40
_DEFAULT_COLUMNS = 80


def line(*pieces: str | tuple[str, str]) -> Line:
    """A line of pieces; a text alone has no style."""
    return [(piece, "") if isinstance(piece, str) else piece for piece in pieces]


def plain(lines: Iterable[Line]) -> str:
    """The text of the lines, each ended."""
    return "".join("".join(text for text, _ in pieces).rstrip() + "\n" for pieces in lines)


def columns_of(stream: TextIO | None = None) -> int:
    """The width to fill: that of the terminal, or COLUMNS, else 80."""
    return max(_MIN_COLUMNS, shutil.get_terminal_size((_DEFAULT_COLUMNS, 24)).columns)


def is_unicode(stream: TextIO | None = None) -> bool:
    """Whether the stream can take box drawing characters."""
    encoding = (stream or sys.stdout).encoding or "ascii"
    try:
        "├─│└█…".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def print_lines(lines: Iterable[Line], stream: TextIO | None = None) -> None:
    """Print, in colours where they are wanted."""
    out = stream or sys.stdout
    if not wants_colour(out):
        for pieces in lines:
            out.write(plain([pieces]))
        return
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        for pieces in lines:
            out.write(plain([pieces]))
        return
    console = Console(file=out, markup=False, emoji=False, highlight=False, soft_wrap=True)
    for pieces in lines:
        text = Text()
        for part, style in pieces:
            text.append(part, style or None)
        console.print(text)


def wants_colour(stream: TextIO | None = None) -> bool:
    """Whether the stream is a terminal whose user has not switched colours off."""
    out = stream or sys.stdout
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
