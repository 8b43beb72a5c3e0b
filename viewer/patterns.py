"""What `grep` looks for: a pattern, and bytes that must be in a record before it is worth parsing.

A text stands in a file as JSON, with escapes. Of what is looked for, the longest part that no JSON writer escapes must
be in the file as it is; only records that have it are parsed, and the pattern is held against the decoded text.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from typing import Any

from ..schemas.errors import BadQuery

__all__ = ["Pattern"]

# Letters that other letters equal when case is ignored: dotless i, long s, the Kelvin sign.
_FOLDED = "iIkKsS"
_ESCAPED = '"\\'

Span = tuple[int, int]


class Pattern:
    """A compiled pattern. `^` and `$` are the ends of a line, as in grep.

    `needles`: bytes of which one is in every record with a match; empty where that cannot be said.

    Raises:
        BadQuery: the pattern is no regular expression.
    """

    def __init__(self, text: str, *, fixed: bool = False, ignore_case: bool = False) -> None:
        self.text = text
        self.find: Callable[[str], Span | None]
        self.ignores_case = ignore_case
        if fixed and not ignore_case:
            self.find = _finder(text)
            literals: list[str] | None = [text]
        else:
            source = re.escape(text) if fixed else text
            self.find = _compiled(source, ignore_case)
            literals, self.ignores_case = _literals(source, ignore_case)
        self.needles = _needles(literals, self.ignores_case)

    def searcher(self, more: Iterable[bytes] = ()) -> Callable[[bytes, int, int], int] | None:
        """`f(data, begin, end)`: the first place of a needle, or of one of `more`, -1 for none; None: no needles."""
        needles = [*self.needles, *more]
        if not self.needles:
            return None
        joined = b"|".join(re.escape(needle) for needle in needles)
        search = _bytes_pattern(joined, self.ignores_case)
        if search is None and len(needles) == 1 and not self.ignores_case:
            needle = needles[0]
            return lambda data, begin, end: data.find(needle, begin, end)
        search = search or re.compile(joined, re.IGNORECASE if self.ignores_case else 0).search

        def first(data: bytes, begin: int, end: int) -> int:
            found = search(data, begin, end)
            return found.start() if found is not None else -1

        return first


def _finder(text: str) -> Callable[[str], Span | None]:
    def find(within: str) -> Span | None:
        at = within.find(text)
        return (at, at + len(text)) if at >= 0 else None

    return find


def _compiled(source: str, ignore_case: bool) -> Callable[[str], Span | None]:
    """By re2, whose time is linear in the text, where it is installed and knows the pattern; else by Python's re."""
    search: Callable[[str], Any]
    try:
        import re2

        options = re2.Options()
        options.log_errors = False
        search = re2.compile(f"(?m{'i' if ignore_case else ''}){source}", options).search
    except Exception:  # noqa: BLE001
        # not installed; or a look-around, a back-reference: re2.error is no class of its own in every release
        try:
            search = re.compile(source, re.MULTILINE | (re.IGNORECASE if ignore_case else 0)).search
        except (re.error, OverflowError, RecursionError) as error:
            raise BadQuery(f"{source!r} is no regular expression: {error}", hint="-F takes it as it is") from None

    def find(within: str) -> Span | None:
        found = search(within)
        return found.span() if found is not None else None

    return find


def _bytes_pattern(source: bytes, ignore_case: bool) -> Callable[[bytes, int, int], Any] | None:
    """By re2, which looks for a literal several times faster than bytes.find; None where it is not installed."""
    try:
        import re2
    except ImportError:
        return None
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = not ignore_case
    return re2.compile(source, options).search  # type: ignore[no-any-return]


def _needles(literals: list[str] | None, ignore_case: bool) -> list[bytes]:
    needles: list[bytes] = []
    for literal in literals or []:
        stops = _ESCAPED + (_FOLDED if ignore_case else "")
        plain = re.split(rf"[^\x20-\x7e]|[{re.escape(stops)}]", literal)
        best = max(plain, key=len)
        if best:
            needles.append(best.encode("ascii"))
            continue
        other = max(re.split(rf"[\x00-\x7f]|[{re.escape(stops)}]", literal), key=len)
        if not other or ignore_case:
            return []
        # as UTF-8, or by a writer that escapes what is not ASCII
        needles += [other.encode("utf-8", "surrogatepass"), b"\\u"]
    return needles


def _literals(source: str, ignore_case: bool) -> tuple[list[str] | None, bool]:
    """Texts of which one is in every match, None where that cannot be said; and whether case is ignored."""
    try:
        try:
            parser = importlib.import_module("re._parser")
        except ModuleNotFoundError:
            parser = importlib.import_module("sre_parse")
        tree = parser.parse(source, re.MULTILINE | (re.IGNORECASE if ignore_case else 0))
    except Exception:  # noqa: BLE001
        # re2 knows forms that Python's parser does not
        return None, ignore_case
    ignore_case = ignore_case or bool(tree.state.flags & re.IGNORECASE) or "(?i" in source
    try:
        return _of_sequence(list(tree)), ignore_case
    except RecursionError:
        return None, ignore_case


def _of_sequence(items: list[Any]) -> list[str] | None:
    """The longest literal of a sequence, or one of each branch of its best alternative."""
    best: list[str] | None = None
    run = ""
    for item in [*items, (None, None)]:
        name, value = str(item[0]), item[1]
        if name == "LITERAL":
            run += chr(value)
            continue
        if name == "AT":
            continue
        best = _better(best, [run])
        run = ""
        if name == "SUBPATTERN":
            best = _better(best, _of_sequence(list(value[-1])))
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and value[0] >= 1:
            best = _better(best, _of_sequence(list(value[2])))
        elif name == "BRANCH":
            parts = [_of_sequence(list(branch)) for branch in value[1]]
            if all(parts):
                best = _better(best, [literal for part in parts for literal in part or []])
    return best


def _better(one: list[str] | None, other: list[str] | None) -> list[str] | None:
    """Of two sets of literals, that whose shortest is longer."""
    if not other or not all(other):
        return one
    if not one:
        return other
    return other if min(map(len, other)) > min(map(len, one)) else one
