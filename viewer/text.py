"""Text of traces on a terminal: shown, never obeyed."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

__all__ = [
    "cell_width",
    "cut_to_width",
    "human_bytes",
    "human_seconds",
    "iter_wrapped",
    "plain_table",
    "visible",
    "visible_json",
    "visible_lines",
    "wrapped",
]

_TAB = "    "
# Between the strings of JSON there are newlines beside these.
_NOT_PLAIN = re.compile(r"[^ -~\n]")


def visible(text: object) -> str:
    """`text` with control characters (escape sequences, newlines, direction marks) as visible escapes."""
    text = str(text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(char) for char in text)


def visible_json(text: str) -> str:
    """JSON in which what `visible` escapes is escaped as JSON does it: the same value."""
    return _NOT_PLAIN.sub(_escaped, text)


def visible_lines(text: str) -> list[str]:
    """The lines of a text, each `visible`; a tab is four spaces."""
    return [visible(line.removesuffix("\r")) for line in text.replace("\t", _TAB).split("\n")]


def wrapped(line: str, columns: int) -> list[str]:
    """One `visible` line in pieces of at most `columns` columns, cut between words where there are some."""
    return list(iter_wrapped(line, columns))


def iter_wrapped(line: str, columns: int) -> Iterator[str]:
    """The same piece by piece: a line may be ten million characters long."""
    if columns < 1 or (len(line) <= columns and cell_width(line) <= columns):
        yield line
        return
    at = 0
    while at < len(line):
        end = _fitting(line, columns, at)
        if end < len(line):
            space = line.rfind(" ", at, end + 1)
            if space - at > (end - at) // 2:
                yield line[at:space]
                at = space + 1
                continue
        yield line[at:end]
        at = end


def cut_to_width(line: str, columns: int) -> str:
    """One `visible` line in at most `columns` columns; what is cut off is marked by `…`."""
    if len(line) <= columns and cell_width(line) <= columns:
        return line
    return line[: _fitting(line, columns - 1)] + "…"


def _fitting(line: str, columns: int, begin: int = 0) -> int:
    """Where the part of the line from `begin` on ends that fits: behind one character at least."""
    if line[begin : begin + columns + 1].isascii():
        return max(begin + 1, min(begin + columns, len(line)))
    width = 0
    for index in range(begin, len(line)):
        width += cell_width(line[index])
        if width > columns:
            return max(begin + 1, index)
    return len(line)


def _shown(char: str) -> str:
    if char.isprintable() and unicodedata.category(char) != "Cf":
        return char
    return char.encode("unicode_escape", "backslashreplace").decode() if char != " " else char


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    if _shown(char) == char:
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def human_bytes(size: int) -> str:
    """1536 -> `1.5 KiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def human_seconds(seconds: float | None) -> str:
    """0.0123 -> `12.3 ms`; 75 -> `1m15s`; `-` where it is not known."""
    if seconds is None:
        return "-"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


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
