"""Dicts that are small but for long lists of numbers, such as token ids and log-probs, cost what orjson takes for them.

orjson writes NaN as `null`, and what else may be in a list it does not tell. Its bytes do: token ids and log-probs hold
neither an `n` nor a quote, and one byte is searched for at memory speed.
"""

from __future__ import annotations

import orjson

from .repeats import MIN_ITEMS, Repeats

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["FEW_ITEMS", "numbers", "with_long_lists"]

_dumps = orjson.dumps
# Its own form of a dataclass without public fields is `{}`, in which there is nothing to be seen.
_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS

# Above this many items a list is written by itself, so that the look at types does not cost more than writing.
FEW_ITEMS = 16
# So many numbers take more bytes than any FEW_ITEMS of them: what is this long in the whole is no list of few.
_FOUND_AGAIN = 256
_REAL = frozenset({int, float})


def numbers(items: list[Any]) -> bytes | None:
    """The JSON of a list that begins with a number and holds nothing else; None for any other list."""
    if not items or type(items[0]) not in _REAL:
        return None
    try:
        out = _dumps(items, None, _OPTIONS)
    except (TypeError, ValueError, RecursionError):
        return None
    return None if b"n" in out or b'"' in out else out


def with_long_lists(
    value: dict[str, Any], long: list[str], names: dict[str, bytes], repeats: Repeats | None
) -> bytes | list[bytes] | None:
    """The JSON, maybe in pieces, of a dict that is ordinary but for its fields `long`: lists of more than FEW_ITEMS.

    None unless these hold numbers only. `names`: keys and their JSON with a colon.
    """
    if repeats is None or not repeats.met([name for name in long if len(value[name]) >= MIN_ITEMS]):
        repeats = None
        out = _in_one_go(value, long, names)
        if out is not None:
            return out
    return _in_pieces(value, names, repeats)


def _in_one_go(value: dict[str, Any], long: list[str], names: dict[str, bytes]) -> bytes | None:
    """The whole written by one call; None where the lists cannot be found again in it, or hold more than numbers."""
    for name in long:
        if len(value[name]) < _FOUND_AGAIN or type(value[name][0]) not in _REAL:
            return None
    out = _dumps(value, None, _OPTIONS)
    keys = [*value]
    quote = 0
    for name in long:
        after = keys.index(name) + 1
        # the first that is named so may be a list of few, in a dict that comes before
        begin = out.index(names[name] + b"[", quote) + len(names[name]) + 1
        quote = out.find(b'"', begin)
        if after == len(keys):
            end = len(out) - 2
            if quote >= 0:
                return None
        else:
            end = quote - 2
            # an item of the list may be a text, but not a name of what comes after
            if not out.startswith(b"]," + names[keys[after]], end):
                return None
        if end - begin < 2 * len(value[name]) - 1 or out.find(b"n", begin, end) >= 0:
            return None
    return out


def _in_pieces(value: dict[str, Any], names: dict[str, bytes], repeats: Repeats | None) -> list[bytes] | None:
    """The JSON, in pieces, of a dict that is small but for long lists; None unless these hold numbers only."""
    parts: list[bytes] = []
    between: dict[str, Any] = {}
    comma = b"{"
    for key, item in value.items():
        if type(item) is not list or len(item) <= FEW_ITEMS:
            between[key] = item
            continue
        pieces = None
        if repeats is not None and len(item) >= MIN_ITEMS:
            pieces = repeats.pieces(key, item, numbers)
        if pieces is None:
            json = numbers(item)
            if json is None:
                return None
            pieces = [json]
        if between:
            parts += (comma, _dumps(between)[1:-1])
            between.clear()
            comma = b","
        # forgotten meanwhile where other threads meet many new ones
        parts += (comma, names.get(key) or _dumps(key) + b":", *pieces)
        comma = b","
    parts.append(b"," + _dumps(between)[1:] if between else b"}")
    return parts
