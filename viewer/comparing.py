"""Two or more trajectories side by side on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..reader.conversation import Turn
from ..reader.payloads import json_text
from ..schemas.wording import counted
from .alignment import Pair, aligned, differences
from .tables import place_of
from .terminal import Line, line
from .text import cell_width, cut_to_width, human_seconds, iter_wrapped, plain_table, visible, visible_lines, wrapped

__all__ = ["comparison_json", "fact_table", "side_by_side"]

_STYLES = {"=": "", "-": "red", "+": "green"}
# In plain text the marks that colours would be.
_OPEN, _CLOSE = {"-": "[-", "+": "{+"}, {"-": "-]", "+": "+}"}
_MAX_LINES = 40


def fact_table(facts: Sequence[dict[str, Any]], tools: Sequence[dict[str, int]], columns: int) -> str:
    """A row for each figure, a column for each trajectory; behind the first, differences to it."""
    names = [("run", "experiment_name"), ("attempt", "attempt"), ("status", "status")]
    rows: list[list[str]] = [["place", *(place_of(fact) for fact in facts)]]
    for title, name in names:
        if len({str(fact[name]) for fact in facts}) > 1:
            rows.append([title, *(visible(fact[name]) for fact in facts)])
    for name in ("reward", "turns", "tokens", "duration", "calls", "errors"):
        values = [fact.get(name) for fact in facts]
        if any(value is not None for value in values):
            rows.append([name, *(_delta(name, value, values[0], first=not i) for i, value in enumerate(values))])
    for tool in sorted({name for used in tools for name in used}):
        counts = [used.get(tool, 0) for used in tools]
        title = f"{cut_to_width(visible(tool), 24)} calls"
        rows.append([title, *(_delta("", value, counts[0], first=not i) for i, value in enumerate(counts))])
    head = ["", *(chr(ord("A") + i) for i in range(len(facts)))]
    table = plain_table(head, rows, right=frozenset(range(1, len(head))))
    return "\n".join(cut_to_width(row, columns) for row in table.splitlines())


def _delta(name: str, value: Any, base: Any, *, first: bool) -> str:
    if value is None:
        return "-"
    told = human_seconds(value) if name == "duration" else _told(value)
    if first or not all(isinstance(number, (int, float)) for number in (value, base)) or value == base:
        return told
    size = abs(value - base)
    change = human_seconds(size) if name == "duration" else _told(size)
    return f"{told} ({'+' if value > base else '-'}{change})"


def _told(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else visible(value)


def side_by_side(
    left: Sequence[Turn], right: Sequence[Turn], columns: int, *, names: tuple[str, str], full: bool, colour: bool
) -> Iterator[Line]:
    """The aligned turns in two columns; what differs is marked, equal turns are told in one line."""
    width = (columns - 3) // 2
    for pair in aligned(left, right):
        yield line()
        turn = pair.left or pair.right
        assert turn is not None
        texts = [_text(side) for side in pair]
        title = f"{turn.role} {visible(turn.name)}".rstrip()
        if pair.left is not None and pair.right is not None and texts[0] == texts[1]:
            yield line(("── ", "dim"), (cut_to_width(f"{title}: the same in both", columns - 4), "bold"))
            yield from (line("  ", piece) for piece in _first_lines(texts[0], columns - 2, full, short=True))
            continue
        where = "" if pair.left and pair.right else f": only in {names[0] if pair.left else names[1]}"
        yield line(("── ", "dim"), (cut_to_width(title + where, columns - 4), "bold"))
        yield from _columns(pair, texts, width, full, colour)


def _columns(pair: Pair, texts: list[str], width: int, full: bool, colour: bool) -> Iterator[Line]:
    if pair.left is None or pair.right is None:
        mark = "-" if pair.right is None else "+"
        sides = [
            _marked([(mark, texts[0])], "-", width, colour=True),
            _marked([(mark, texts[1])], "+", width, colour=True),
        ]
    else:
        marked = list(differences(*texts))
        sides = [_marked(marked, "-", width, colour), _marked(marked, "+", width, colour)]
    height = max(map(len, sides))
    shown = height if full else min(height, _MAX_LINES)
    for row in range(shown):
        left, right = (side[row] if row < len(side) else line() for side in sides)
        gap = " " * (width - sum(cell_width(text) for text, _ in left))
        yield [*left, (gap + " │ ", "dim"), *right]
    if shown < height:
        yield line((f"  … {counted(height - shown, 'more line')}; --full shows all", "bold"))


def _marked(marked: list[tuple[str, str]], side: str, width: int, colour: bool) -> list[Line]:
    """The text of one side in lines of `width`; the parts that only this side has are styled or bracketed."""
    lines: list[Line] = [[]]
    used = 0
    for mark, text in marked:
        if mark not in ("=", side):
            continue
        if mark != "=" and not colour:
            text = f"{_OPEN[mark]}{text}{_CLOSE[mark]}"
        for number, raw in enumerate(visible_lines(text)):
            if number:
                lines.append([])
                used = 0
            at = 0
            while at < len(raw):
                # a line may be ten million characters long: no more of it is looked at than can fit
                fits = cut_pieces(raw[at : at + 2 * width], width - used)
                if not fits:
                    lines.append([])
                    used = 0
                    continue
                lines[-1].append((fits, _STYLES[mark]))
                used += cell_width(fits)
                at += len(fits)
    return lines


def cut_pieces(text: str, room: int) -> str:
    """As much of a `visible` line as fits; where nothing does, "" (or one wide character in a whole line)."""
    if room <= 0:
        return ""
    return (
        next(iter_wrapped(text, room))
        if cell_width(text) > room and " " not in text[:room]
        else _whole_words(text, room)
    )


def _whole_words(text: str, room: int) -> str:
    if cell_width(text) <= room:
        return text
    end = len(next(iter_wrapped(text, room)))
    return text[: end + 1] if text[end : end + 1] == " " and cell_width(text[: end + 1]) <= room else text[:end]


def _first_lines(text: str, columns: int, full: bool, *, short: bool) -> list[str]:
    pieces = [piece for raw in visible_lines(text) for piece in wrapped(raw, columns)]
    limit = len(pieces) if full else 2 if short else _MAX_LINES
    return pieces if len(pieces) <= limit else [*pieces[:limit], "…"]


def _text(turn: Turn | None) -> str:
    """All that a turn says, in one text."""
    if turn is None:
        return ""
    parts = []
    if turn.role == "tool" and turn.arguments is not None:
        parts.append("→ " + (turn.arguments if isinstance(turn.arguments, str) else json_text(turn.arguments)))
    if turn.text is not None:
        parts.append(turn.text)
    elif turn.tokens is not None:
        parts.append(f"{counted(turn.tokens, 'token id')} and no text")
    parts += [f"→ calls {asked.name} {json_text(asked.arguments)}" for asked in turn.tool_calls]
    exception = turn.call.exception if turn.call is not None else None
    if exception is not None:
        parts.append(f"{exception.get('type')}: {exception.get('message')}")
    return "\n".join(parts)


def comparison_json(left: Sequence[Turn], right: Sequence[Turn]) -> list[dict[str, Any]]:
    """The aligned turns with their differences."""
    out = []
    for pair in aligned(left, right):
        turn = pair.left or pair.right
        assert turn is not None
        texts = [_text(side) for side in pair]
        same = pair.left is not None and pair.right is not None and texts[0] == texts[1]
        marked = list(differences(*texts))
        out.append(
            {
                "role": turn.role,
                "name": turn.name or None,
                "same": same,
                "left": texts[0] if pair.left is not None else None,
                "right": texts[1] if pair.right is not None else None,
                "differences": [] if same else [{"mark": mark, "text": text} for mark, text in marked],
            }
        )
    return out
