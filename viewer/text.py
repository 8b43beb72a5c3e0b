"""Text of traces on a terminal: shown, never obeyed."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

__all__ = ["cell_width", "human_bytes", "plain_table", "visible"]


def visible(text: object) -> str:
    """`text` with control characters (escape sequences, newlines, direction marks) as visible escapes."""
    return "".join(_shown(char) for char in str(text))


def _shown(char: str) -> str:
    if char.isprintable() and unicodedata.category(char) != "Cf":
        return char
    return char.encode("unicode_escape", "backslashreplace").decode() if char != " " else char


def human_bytes(size: int) -> str:
    """1536 -> `1.5 KiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    """Columns two spaces apart, those in `right` aligned to the right; no markup, no lines."""
    widths = [max(cell_width(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, *rows]:
        gaps = [" " * (widths[i] - cell_width(cell)) for i, cell in enumerate(row)]
        cells = [gap + cell if i in right else cell + gap for i, (cell, gap) in enumerate(zip(row, gaps, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def cell_width(text: str) -> int:
    """How many columns of a terminal `text` takes: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)
