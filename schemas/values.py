"""How Python values look on a line: as Weave's own client would send them where it keeps a value whole, complete
elsewhere.

| value | on the line |
| --- | --- |
| None, bool, int, float, str, list, tuple, dict | JSON |
| pydantic model, dataclass, attrs | fields with `_type`, `_class_name`, `_bases`, as Weave writes them |
| datetime | `{"_type":"CustomWeaveType","weave_type":{"type":"datetime.datetime"},"val":ISO}` |
| numpy scalar, numpy array, tensor on the CPU | number, nested list |
| array above 65,536 elements | `{"_type":"ndarray","shape":…,"dtype":…,"summary":…,"blob":…}`, in the side file |
| tensor elsewhere | `{"_type":"Tensor","shape":…,"dtype":…,"device":…}` |
| TensorDict, pandas object | `{"_type":"TensorDict","batch_size":…,"fields":…}`, `{"_type":"DataFrame",…}` |
| PIL image, long data URL, long bytes | see `media`, content in the side file |
| named tuple, set, deque | dict of fields, list |
| Enum, UUID, date, time | value, text |
| nan, inf, int beyond 64 bits, bytes, lone surrogates, … | `{"_type":"float","value":"nan"}` and the like |
| exception | `{"_type":"ValueError","message":…}` |
| plain object | `{"_type":class name, its attributes}`, bounded |
| msgspec Struct, output of vLLM | the same, whole |
| function, class, module, handle | `<function pkg.name>` |
| torch module, tokenizer, processor, logger | `<pkg.Class>` |
| key that Weave redacts (api_key, auth_headers, authorization) or VERL_TRACE_REDACT names | `"REDACTED"` |
| what a bound cut off | `{"_omitted":reason,"_type":…,"size":…}` |

`encode` is the hot path. What is small and ordinary is seen to be so by one look at each key and type, and orjson
writes it in one go. Anything else is written field by field and item by item, so that a list of token ids costs what
orjson takes for it and an odd value costs itself alone. `plain` is the careful path for what orjson refuses. None of
them calls a method that user code defines: attributes are read from `__dict__`, slots and pydantic's own storage.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import orjson

from .arrays import is_array
from .classes import class_name
from .interrupts import pass_on
from .long_lists import FEW_ITEMS, numbers, with_long_lists
from .media import is_data_url
from .objects import Budget, plain, simple_form, tagged_fields
from .redaction import REDACTED, is_redacted, key_patterns
from .repeats import Repeats
from .side import SideFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Payload", "encode", "encode_pieces"]

_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_dumps = orjson.dumps

# Above this many rows a list is looked at as a whole.
_LARGE = 256
# Above this many characters a text may be a data URL.
_LONG_TEXT = 8192
# A dict this deep inside of another is looked at again when it is written.
_LOOK_DEPTH = 4
# Below, the careful path takes over.
_MAX_DEPTH = 16
# Keys whose JSON is kept; they are names in programs. A recording of other ones must not fill the memory.
_KEYS_KEPT = 4096

_WHOLE = frozenset({int, bool, type(None)})
_SCALARS = frozenset({int, bool, type(None), str})
_NUMBERS = frozenset({int, bool, type(None), float})
_PLAIN = frozenset({int, bool, type(None), str, float})
_Names = dict[str, bytes]


class Payload(bytes):
    """Encoded bytes that refer to contents of the side file."""

    digests: tuple[str, ...]

    @classmethod
    def of(cls, data: bytes, digests: Iterable[str]) -> bytes:
        """`data` with what it refers to; plain bytes when that is nothing."""
        names = tuple(digests)
        if not names:
            return data
        payload = cls(data)
        payload.digests = names
        return payload


class _Cycle(Exception):
    """A container is inside of itself."""


def encode(value: Any, side: SideFile | None = None) -> bytes:
    """JSON bytes of any value; a `Payload` where large contents went to `side`.

    Never raises but for what has nothing to do with the value: KeyboardInterrupt, and what a signal handler raises.
    """
    out = encode_pieces(value, side)
    return b"".join(out) if isinstance(out, list) else out


def encode_pieces(value: Any, side: SideFile | None = None, repeats: Repeats | None = None) -> bytes | list[bytes]:
    """The same; a dict with long lists of numbers is left in pieces, so that their bytes are copied less often.

    `repeats`: what was encoded before in the trajectory.
    """
    is_dict = type(value) is dict
    try:
        if is_dict:
            names = key_patterns().plain_names
            long: list[str] = []
            if _is_small(value, names, 0, long):
                if not long:
                    return _dumps(value)
                out = with_long_lists(value, long, names, repeats)
                if out is not None:
                    return out
    except Exception as error:  # noqa: BLE001
        pass_on(error)
    budget = Budget(side)
    try:
        out = _fields(value, value, 0, budget) if is_dict else _encode(value, 0, budget)
    except Exception as error:  # noqa: BLE001
        pass_on(error)
        budget.open.clear()
        out = _careful(value, budget)
    return Payload.of(out, budget.digests) if budget.digests else out


def _is_small(value: dict[Any, Any], names: _Names, depth: int, long: list[str] | None = None) -> bool:
    """Whether orjson alone writes it as it should be: known keys, finite numbers, no long list, nothing odd.

    With `long`, lists that are long are allowed, and their names are put there.
    """
    for key, item in value.items():
        if type(key) is not str or (key not in names and not _know(key, names)):
            return False
        kind = type(item)
        if kind is str:
            if len(item) > _LONG_TEXT and is_data_url(item):
                return False
        elif kind in _WHOLE:
            continue
        elif kind is float:
            if item - item != 0.0:
                return False
        elif kind is list:
            if len(item) > FEW_ITEMS:
                if long is None:
                    return False
                long.append(key)
            elif not _WHOLE.issuperset(map(type, item)) and not _are_small(item, names, depth):
                return False
        elif kind is not dict or depth >= _LOOK_DEPTH or not _is_small(item, names, depth + 1):
            return False
    return True


def _are_small(items: list[Any] | tuple[Any, ...], names: _Names, depth: int) -> bool:
    """The same for a list that holds more than integers."""
    for item in items:
        kind = type(item)
        if kind is dict:
            if depth >= _LOOK_DEPTH or not _is_small(item, names, depth + 1):
                return False
        elif kind is str:
            if len(item) > _LONG_TEXT and is_data_url(item):
                return False
        elif kind not in _WHOLE and (kind is not float or item - item != 0.0):
            return False
    return True


def _know(key: str, names: _Names) -> bool:
    """Remember the JSON of a key; False when its value is to be redacted."""
    if is_redacted(key):
        return False
    if len(names) >= _KEYS_KEPT:
        names.clear()
    names[key] = _dumps(key) + b":"
    return True


def _encode(value: Any, depth: int, budget: Budget) -> bytes:
    """By pieces.

    Raises:
        TypeError, ValueError, RecursionError: the careful path is needed for this piece.
        _Cycle: it is needed for the whole.
    """
    kind = type(value)
    if kind is dict:
        return _dumps(value) if _is_small(value, budget.names, 0) else _fields(value, value, depth, budget)
    if kind is str:
        if len(value) > _LONG_TEXT and is_data_url(value):
            raise TypeError("a data URL goes to the side file")
        return _dumps(value)
    if kind is float:
        if value - value != 0.0:
            raise ValueError("JSON has no such number")
        return _dumps(value)
    if kind in _WHOLE:
        return _dumps(value)
    if kind is list or kind is tuple:
        return _items(value, depth, budget)
    fields = tagged_fields(value, kind)
    if fields is not None:
        return _fields(value, fields, depth, budget)
    out = _dumps(value, default=simple_form, option=_OPTIONS)
    if b"n" in out or b'"' in out:
        raise TypeError("a text or a null in it needs a closer look")
    return out


def _fields(value: Any, fields: dict[Any, Any], depth: int, budget: Budget) -> bytes:
    parts: list[bytes] = []
    names = budget.names
    is_open = False
    comma = b"{"
    for key, item in fields.items():
        if type(key) is not str:
            raise TypeError("a key that is no text needs the careful path")
        name = names.get(key)
        if name is None:
            if not _know(key, names):
                parts += (comma, _dumps(key), b":", _dumps(REDACTED))
                comma = b","
                continue
            name = names[key]
        kind = type(item)
        body = _dumps(item) if kind in _WHOLE else numbers(item) if kind is list else None
        if body is None:
            if not is_open:
                _enter(value, depth, budget)
                is_open = True
            body = _piece(item, depth + 1, budget)
        parts += (comma, name, body)
        comma = b","
    if is_open:
        budget.open.discard(id(value))
    parts.append(b"}")
    return b"".join(parts) if fields else b"{}"


def _items(value: list[Any] | tuple[Any, ...], depth: int, budget: Budget) -> bytes:
    if not value:
        return b"[]"
    first = type(value[0])
    if first in _PLAIN or first is list or is_array(value[0], first):
        out = _in_one_go(value)
        if out is not None and b"n" not in out and b'"' not in out:
            return out
        kinds = set(map(type, value))
        if out is not None and kinds <= _SCALARS and (len(out) <= _LONG_TEXT or not _has_data_url(value)):
            return out
        if kinds <= _NUMBERS:
            return _dumps([item if item is None or item - item == 0 else plain(item, budget) for item in value])
    elif first is dict:
        if _are_small(value, budget.names, 0) if len(value) <= _LARGE else _are_rows(value, budget.names):
            out = _in_one_go(value)
            if out is not None and (len(value) <= _LARGE or _says_all(value, out)):
                return out
    _enter(value, depth, budget)
    parts = [_piece(item, depth + 1, budget) for item in value]
    budget.open.discard(id(value))
    return b"[" + b",".join(parts) + b"]"


def _in_one_go(value: Any) -> bytes | None:
    try:
        return _dumps(value, default=simple_form, option=_OPTIONS)
    except (TypeError, ValueError, RecursionError) as error:
        pass_on(error)
        return None


def _are_rows(value: list[Any] | tuple[Any, ...], names: _Names) -> bool:
    """Whether all items are dicts of ordinary keys and scalars, such as messages: looked at without a loop in
    Python."""
    if set(map(type, value)) != {dict}:
        return False
    keys = set().union(*value)
    if set(map(type, keys)) != {str} or not all(key in names or _know(key, names) for key in keys):
        return False
    return set(map(type, chain.from_iterable(map(dict.values, value)))) <= _PLAIN


def _says_all(rows: list[Any] | tuple[Any, ...], out: bytes) -> bool:
    """Whether no number of these rows became a null, and none of their texts is a data URL."""
    if b'"data:' in out:
        return False
    nulls = out.count(b"null")
    return not nulls or nulls == list(chain.from_iterable(map(dict.values, rows))).count(None)


def _has_data_url(value: list[Any] | tuple[Any, ...]) -> bool:
    return any(type(item) is str and is_data_url(item) for item in value)


def _enter(value: Any, depth: int, budget: Budget) -> None:
    if id(value) in budget.open:
        raise _Cycle
    if depth >= _MAX_DEPTH:
        raise RecursionError
    budget.open.add(id(value))


def _piece(value: Any, depth: int, budget: Budget) -> bytes:
    """One odd piece takes the careful path alone, whatever its neighbours are."""
    try:
        return _encode(value, depth, budget)
    except _Cycle:
        raise
    except Exception as error:  # noqa: BLE001
        pass_on(error)
        return _careful(value, budget)


def _careful(value: Any, budget: Budget) -> bytes:
    budget.open.discard(id(value))
    try:
        return _dumps(plain(value, budget))
    except Exception as error:  # noqa: BLE001
        pass_on(error)
        return _dumps({"_omitted": f"could not be encoded: {type(error).__name__}", "_type": class_name(type(value))})
