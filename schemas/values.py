"""How Python values look on a line: as Weave's own client would send them where it keeps a value whole, complete
elsewhere.

| value | on the line |
| --- | --- |
| None, bool, int, float, str, list, tuple, dict | JSON |
| pydantic model, dataclass | fields with `_type`, `_class_name`, `_bases`, as Weave writes them |
| datetime | `{"_type":"CustomWeaveType","weave_type":{"type":"datetime.datetime"},"val":ISO}` |
| numpy scalar, numpy array, tensor on the CPU | number, nested list |
| tensor elsewhere, huge tensor | `{"_type":"Tensor","shape":…,"dtype":…,"device":…}` |
| named tuple, set, deque | dict of fields, list |
| Enum, UUID, date, time | value, text |
| nan, inf, int beyond 64 bits, bytes, lone surrogates, … | `{"_type":"float","value":"nan"}` and the like |
| exception | `{"_type":"ValueError","message":…}` |
| plain object | `{"_type":class name, its attributes}`, bounded |
| msgspec Struct, output of vLLM | the same, whole |
| function, class, module, handle | `<function pkg.name>` |
| torch module, tokenizer, processor, logger | `<pkg.Class>` |
| key that Weave redacts (api_key, auth_headers, authorization) | `"REDACTED"` |
| what a bound cut off | `{"_omitted":reason,"_type":…,"size":…}` |

`encode` is the hot path: orjson does the work in C, and Python code runs only for what orjson does not know. `plain`
is the careful path for everything that the fast one refuses. Neither calls a method that user code defines: attributes
are read from `__dict__`, slots and pydantic's own storage.
"""

from __future__ import annotations

import sys
from typing import Any

import orjson

from .objects import Budget, class_name, is_redacted, plain, simple_form, tagged_fields

__all__ = ["encode"]

_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_WITH_NUMPY = _OPTIONS | orjson.OPT_SERIALIZE_NUMPY
_dumps = orjson.dumps

# Above this many items or characters a field is worth its own look, so that token ids are not searched for text.
_LARGE = 256
# A walk in search of odd values ends here; the careful path takes over.
_WALK_LIMIT = 20_000
_MAX_FIELD_DEPTH = 16


def encode(value: Any) -> bytes:
    """JSON bytes of any value; never raises but for what the interpreter itself raises, such as KeyboardInterrupt."""
    try:
        return _encode(value, 0)
    except (TypeError, ValueError, RecursionError):
        return _careful(value)
    except Exception:  # noqa: BLE001
        return _careful(value)


def _encode(value: Any, depth: int) -> bytes:
    kind = type(value)
    if kind in _PLAIN:
        return _dumps(value)
    fields = value if kind is dict else tagged_fields(value, kind)
    if fields is not None and depth < _MAX_FIELD_DEPTH and _any_large(fields, depth):
        return _encode_fields(fields, depth + 1)
    # with the option orjson imports numpy by itself: up to 0.15 s of the caller's time
    out = _dumps(value, default=simple_form, option=_WITH_NUMPY if "numpy" in sys.modules else _OPTIONS)
    if _looks_clean(out, fields is None) or not _is_special(value):
        return out
    return _careful(value)


def _any_large(fields: dict[Any, Any], depth: int) -> bool:
    for value in fields.values():
        kind = type(value)
        if kind in _SIZED:
            if len(value) > _LARGE:
                return True
        elif kind is dict:
            if depth < _MAX_FIELD_DEPTH and _any_large(value, depth + 1):
                return True
        elif kind not in _SMALL:
            return True
    return False


def _encode_fields(fields: dict[Any, Any], depth: int) -> bytes:
    parts = []
    for name, value in fields.items():
        if type(name) is not str:
            raise TypeError("a key that is no text needs the careful path")
        body = b'"REDACTED"' if is_redacted(name) else _field(value, depth)
        parts.append(_dumps(name) + b":" + body)
    return b"{" + b",".join(parts) + b"}"


def _field(value: Any, depth: int) -> bytes:
    """One odd field takes the careful path alone, whatever its neighbours are."""
    try:
        return _encode(value, depth)
    except Exception:  # noqa: BLE001
        return _careful(value)


def _looks_clean(out: bytes, is_array: bool) -> bool:
    """Whether the bytes alone show that nothing was written as null and no key is a credential's."""
    # one byte is searched for at memory speed: token ids and log-probs hold neither an n nor a quote
    if is_array and b"n" not in out and b'"' not in out:
        return True
    if b"null" in out:
        return False
    low = out.lower()
    return b'api_key"' not in low and b'auth_headers"' not in low and b'authorization"' not in low


def _careful(value: Any) -> bytes:
    try:
        return _dumps(plain(value, Budget()))
    except Exception as error:  # noqa: BLE001
        return _dumps({"_omitted": f"could not be encoded: {type(error).__name__}", "_type": class_name(type(value))})


def _is_special(value: Any) -> bool:
    """Whether `value` holds a float that JSON lacks or a key to redact, which the fast path would write wrongly."""
    stack = [value]
    budget = _WALK_LIMIT
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is float:
            if item - item != 0.0:
                return True
            continue
        budget -= 1
        if budget < 0:
            return True
        if kind is dict:
            if any(type(key) is str and is_redacted(key) for key in item):
                return True
            stack.extend(x for x in item.values() if type(x) not in _PLAIN)
        elif kind is list or kind is tuple:
            stack.extend(x for x in item if type(x) not in _PLAIN)
        elif _is_special_object(item, kind, stack):
            return True
    return False


def _is_special_object(item: Any, kind: type, stack: list[Any]) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, (numpy.ndarray, numpy.generic)):
        return item.dtype.kind in "fc" and not bool(numpy.isfinite(item).all())
    try:
        stack.append(simple_form(item))
    except TypeError:
        # orjson wrote it by itself: an Enum, a UUID, a subclass of str, int, list or dict
        return issubclass(kind, (dict, list, float))
    return False


_PLAIN = frozenset({int, str, bool, type(None)})
_SMALL = _PLAIN | {float}
_SIZED = frozenset({str, list, tuple})
