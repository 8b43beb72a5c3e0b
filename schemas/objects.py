"""Objects that are not JSON: their forms, read without calling any method that user code defines.

Exceptions to that rule, each survived when it raises: `__str__` of an exception whose class defines one, and the
`tolist`, `detach` and `cpu` of numpy arrays and torch tensors (their own C code).
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import gc
import sys
import types
import uuid
from collections import deque

import orjson

from .arrays import Heavy, array_form, heavy_form, is_array, table_fields
from .classes import (
    MISSING,
    class_attribute,
    class_name,
    class_names,
    data_fields,
    instance_dict,
    is_door,
    module_name,
    mro_of,
    slot_of,
    slots_of,
)
from .interrupts import examine, pass_on
from .media import bytes_form, data_url_form, image_form, is_data_url
from .redaction import REDACTED, is_redacted, key_patterns
from .side import SideFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Budget", "plain", "simple_form", "tagged_fields", "untagged_fields"]

# orjson gives up at 254 levels; below this our own recursion stays far from the interpreter's limit too.
MAX_DEPTH = 120
# A plain object may be the door to a whole program (a client, a module): this many values are enough to recognise it.
OBJECT_NODES = 2_000
OBJECT_DEPTH = 6
TEXT_LIMIT = 256 << 20
_SCALARS = frozenset({int, float, str, bool, type(None)})


class Budget:
    """Of one value: how much more may be taken from plain objects, which containers are open (to see cycles), where
    large contents go, and which went there."""

    __slots__ = ("digests", "names", "nodes", "open", "side")

    def __init__(self, side: SideFile | None = None, nodes: int = OBJECT_NODES) -> None:
        self.nodes = nodes
        self.open: set[int] = set()
        self.side = side
        self.digests: list[str] = []
        self.names = key_patterns().plain_names


def omitted(value: Any, reason: str, size: int | None = None) -> dict[str, Any]:
    """The visible mark in place of what was not kept."""
    mark: dict[str, Any] = {"_omitted": reason, "_type": class_name(type(value))}
    if size is not None:
        mark["size"] = size
    return mark


def simple_form(value: Any) -> Any:
    """One level of an object that orjson does not know: a dict, list, str or number (orjson's `default`).

    Raises:
        TypeError: the value needs the careful path.
    """
    kind = type(value)
    try:
        fields = tagged_fields(value, kind)
        if fields is not None:
            return fields
        if kind is datetime.datetime:
            return _datetime_form(value)
        if issubclass(kind, (set, frozenset, deque)):
            return _items_of(value)
        form = array_form(value, kind)
        if form is not None:
            return form
    except Exception as error:
        examine(error)
        raise
    raise TypeError(class_name(kind))


def tagged_fields(value: Any, kind: type) -> dict[str, Any] | None:
    """Fields of a pydantic model, dataclass or attrs instance with Weave's tags, else None."""
    fields = model_fields(value, kind)
    if fields is None:
        return None
    name = class_name(kind)
    bases = [class_name(c) for c in mro_of(kind)[1:-1]]
    return {"_type": name, **fields, "_class_name": name, "_bases": bases}


def model_fields(value: Any, kind: type) -> dict[str, Any] | None:
    """Stored fields of a pydantic model, dataclass or attrs instance, else None."""
    if "__pydantic_fields__" in class_names(kind):
        fields = dict(instance_dict(value) or {})
        extra = slot_of(value, kind, "__pydantic_extra__")
        if type(extra) is dict:
            fields.update(extra)
        return fields
    if "__dataclass_fields__" in class_names(kind):
        stored = instance_dict(value) or {}
        names = class_attribute(kind, "__dataclass_fields__")
        if type(names) is not dict or "_non_tensordict" in stored:
            # a tensorclass is a dataclass by form only
            return None
        out = {}
        for name, spec in names.items():
            # ClassVar and InitVar pseudo-fields are not the instance's
            if getattr(spec, "_field_type", None) is not getattr(dataclasses, "_FIELD", None):
                continue
            if name in stored:
                out[name] = stored[name]
            else:
                slot = slot_of(value, kind, name)
                if slot is not MISSING:
                    out[name] = slot
        return out
    if "__attrs_attrs__" in class_names(kind):
        return {**slots_of(value, kind), **(instance_dict(value) or {})}
    return None


def untagged_fields(value: Any) -> Any:
    """The value with pydantic models at any depth as plain dicts, as `model_dump` gives them, without calling it."""
    return _untag(value, 0)


def _untag(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _SCALARS or depth > MAX_DEPTH:
        return value
    if kind is list or kind is tuple:
        if not value or (type(value[0]) in _SCALARS and type(value[-1]) in _SCALARS):
            return value
        return [_untag(v, depth + 1) for v in value]
    if kind is dict:
        return {k: _untag(v, depth + 1) for k, v in value.items()}
    fields = model_fields(value, kind)
    return value if fields is None else {k: _untag(v, depth + 1) for k, v in fields.items()}


def plain(value: Any, budget: Budget, depth: int = 0) -> Any:
    """Any value as dicts with string keys, lists, strings and numbers that orjson takes. Bounded; never raises."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return _text(value, budget)
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 64 else {"_type": "int", "value": _big_int(value)}
    if kind is float:
        return value if value - value == 0.0 else {"_type": "float", "value": repr(value)}
    if depth > MAX_DEPTH:
        return omitted(value, f"nested deeper than {MAX_DEPTH}")
    if id(value) in budget.open:
        return omitted(value, "cycle")
    budget.open.add(id(value))
    try:
        return _plain_container(value, kind, budget, depth + 1)
    except RecursionError:
        return omitted(value, "nested too deep for this call stack")
    except Exception as error:  # noqa: BLE001
        pass_on(error)
        return omitted(value, f"could not be read: {type(error).__name__}")
    finally:
        budget.open.discard(id(value))


def _plain_container(value: Any, kind: type, budget: Budget, depth: int) -> Any:
    if issubclass(kind, dict):
        return _plain_dict(value, budget, depth)
    if issubclass(kind, (list, tuple)):
        names = class_attribute(kind, "_fields") if issubclass(kind, tuple) else None
        items = list.__iter__(value) if issubclass(kind, list) else tuple.__iter__(value)
        if kind is list and len(value) > _MANY:
            whole = _numbers(value)
            if whole is not None:
                return whole
        if type(names) is tuple:
            return {str(n): plain(v, budget, depth) for n, v in zip(names, items, strict=False)}
        return [plain(v, budget, depth) for v in items]
    fields = tagged_fields(value, kind)
    if fields is not None:
        return {k: plain(v, budget, depth) for k, v in _redact(fields).items()}
    if issubclass(kind, (set, frozenset, deque)):
        return [plain(v, budget, depth) for v in _items_of(value)]
    inner = _inside(value, kind)
    if inner is not None:
        return plain(inner, budget, depth)
    try:
        form = array_form(value, kind)
    except Heavy:
        return plain(heavy_form(value, budget.side, budget.digests), budget, depth)
    if form is not None:
        return form if type(form) is orjson.Fragment else plain(form, budget, depth)
    if is_array(value, kind):
        # of no dimensions, and what is in it is None, or masked
        return None
    form = image_form(value, kind, budget.side, budget.digests)
    if form is not None:
        return form
    table = table_fields(value, kind, class_names(kind))
    if table is not None:
        return {k: plain(v, budget, depth) for k, v in table.items()}
    leaf = _leaf(value, kind, budget)
    if leaf is not None:
        return leaf
    return _plain_object(value, kind, budget, depth)


_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def _inside(value: Any, kind: type) -> Any:
    """What a view of a dict, a read-only mapping or an array of the standard library holds; None for any other."""
    if any(kind is view for view in _VIEWS):
        return list(value)
    if kind is types.MappingProxyType:
        # what it shows, without asking it: that may be a mapping with methods of the user's
        return gc.get_referents(value)[0]
    array = getattr(sys.modules.get("array"), "array", None)
    return value.tolist() if array is not None and kind is array else None


# Shorter lists are not worth a second look.
_MANY = 64


def _numbers(items: list[Any]) -> Any:
    """The JSON of a list that orjson can write by itself and that holds neither texts nor nulls; else None."""
    try:
        # its own form of a dataclass without public fields is `{}`
        out = orjson.dumps(items, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    except (TypeError, ValueError, RecursionError):
        return None
    return None if b"n" in out or b'"' in out else orjson.Fragment(out)


def _plain_dict(value: dict[Any, Any], budget: Budget, depth: int) -> Any:
    out: dict[str, Any] = {}
    clashes: list[Any] = []
    # items() of a subclass may be user code, dict's own is not; a list guards against growth by another thread
    for key, inner in list(dict.items(value)):
        name = _key(key)
        form = REDACTED if is_redacted(name) else plain(inner, budget, depth)
        if name in out:
            clashes.append({"key": plain(key, budget, depth), "key_type": class_name(type(key)), "value": form})
        else:
            out[name] = form
    if clashes:
        out["_colliding_keys"] = clashes
    return out


def _plain_object(value: Any, kind: type, budget: Budget, depth: int) -> Any:
    names = instance_dict(value)
    slots = slots_of(value, kind)
    if names is None and not slots:
        return f"<{module_name(kind)}.{class_name(kind)}>"
    if is_door(kind):
        return f"<{module_name(kind)}.{class_name(kind)}>"
    order = data_fields(kind)
    if order is not None:
        fields = {n: slots[n] for n in order if n in slots} | slots | (names or {})
        return {"_type": class_name(kind), **{_key(n): plain(v, budget, depth) for n, v in _redact(fields).items()}}
    if budget.nodes <= 0 or depth > OBJECT_DEPTH:
        return omitted(value, "plain objects nested too deep or too many")
    out: dict[str, Any] = {"_type": class_name(kind)}
    for name, inner in _redact({**slots, **(names or {})}).items():
        budget.nodes -= 1
        if budget.nodes <= 0:
            out["_omitted"] = "too many attributes"
            break
        out[_key(name)] = plain(inner, budget, depth)
    return out


def _redact(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: REDACTED if type(k) is str and is_redacted(k) else v for k, v in fields.items()}


def _key(key: Any) -> str:
    """A dict key as Weave writes it: `1`, `None`, `1.5`, `a,b` for a tuple."""
    kind = type(key)
    if kind is str:
        text = _text(key)
        return text if type(text) is str else str(text["backslashreplace"])
    if issubclass(kind, enum.Enum):
        return _key(key._value_)
    if key is None or kind in (bool, float):
        return repr(key)
    if issubclass(kind, int):
        return _big_int(int.__int__(key))
    if issubclass(kind, str):
        return _key(str.__str__(key))
    if issubclass(kind, bytes):
        return bytes.decode(key, "utf-8", "backslashreplace")
    if issubclass(kind, tuple):
        return ",".join(_key(k) for k in tuple.__iter__(key))
    if issubclass(kind, frozenset):
        return ",".join(_key(k) for k in _items_of(key))
    try:
        item = array_form(key, kind)
    except Heavy:
        item = None
    if isinstance(item, (int, float, str)):
        return repr(item)
    return _written(key, kind) or f"<{class_name(kind)}>"


def _leaf(value: Any, kind: type, budget: Budget) -> Any:
    if issubclass(kind, enum.Enum):
        # as orjson writes it where it meets one
        return plain(value._value_, budget)
    if issubclass(kind, str):
        return _text(str.__str__(value), budget)
    if issubclass(kind, bool):
        return bool(value)
    if issubclass(kind, int):
        return plain(int.__int__(value), budget)
    if issubclass(kind, float):
        return plain(float.__float__(value), budget)
    if issubclass(kind, (bytes, bytearray, memoryview)):
        return bytes_form(bytes(value), class_name(kind), budget.side, budget.digests)
    if kind is datetime.datetime:
        return _datetime_form(value)
    text = _written(value, kind)
    if text is not None:
        decimal = getattr(sys.modules.get("decimal"), "Decimal", None)
        return {"_type": "Decimal", "value": text} if kind is decimal else text
    if issubclass(kind, BaseException):
        return {"_type": class_name(kind), "message": exception_message(value)}
    if issubclass(kind, (type, *_NAMED)):
        # read from the object's own storage: a class may define __name__ or __qualname__ as it likes
        name = type.__dict__["__qualname__"].__get__(value) if issubclass(kind, type) else _function_name(value)
        return f"<{class_name(kind)} {name}>"
    return None


_AS_TEXT = (datetime.date, datetime.time, datetime.timedelta, uuid.UUID, range, complex)


def _written(value: Any, kind: type) -> str | None:
    """The text of a value of the standard library that is best written so; None for any other."""
    if kind is datetime.datetime:
        return datetime.datetime.isoformat(value)
    if issubclass(kind, (datetime.date, datetime.timedelta)) and module_name(kind).startswith("pandas"):
        # to the nanosecond; NaT is one of them
        return str(value)
    if any(kind is t for t in _AS_TEXT):
        return str(value)
    # there is none before somebody loaded its module, which takes longer than this one; a thread may be at it
    decimal = getattr(sys.modules.get("decimal"), "Decimal", None)
    if decimal is not None and kind is decimal:
        return str(value)
    path = getattr(sys.modules.get("pathlib"), "PurePath", None)
    if path is not None and issubclass(kind, path):
        return str(value) if module_name(kind).startswith("pathlib") else f"<{class_name(kind)}>"
    return None


_NAMED = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.CoroutineType)


def _function_name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "?")
    return name if type(name) is str else "?"


def exception_message(error: BaseException) -> str:
    """`str(error)`, or a note where that raises or is no text."""
    try:
        text = _text(str(error))
    except Exception as trouble:  # noqa: BLE001
        pass_on(trouble)
        return f"<__str__ raised {type(trouble).__name__}>"
    return text if type(text) is str else str(text["backslashreplace"])


def _text(value: str, budget: Budget | None = None) -> Any:
    if len(value) > TEXT_LIMIT:
        return omitted(value, "text too long", len(value))
    if budget is not None and is_data_url(value):
        form = data_url_form(value, budget.side, budget.digests)
        if form is not None:
            return form
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"_type": "str", "backslashreplace": value.encode("utf-8", "backslashreplace").decode()}
    return value


def _big_int(value: int) -> str:
    # Python 3.11 and later refuse decimal text of more than 4,300 digits; hexadecimal has no limit.
    return str(value) if value.bit_length() < 14_000 else hex(value)


def _datetime_form(value: datetime.datetime) -> dict[str, Any]:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.timezone.utc)
    return {
        "_type": "CustomWeaveType",
        "weave_type": {"type": "datetime.datetime"},
        "val": datetime.datetime.isoformat(aware),
    }


def _items_of(value: Any) -> list[Any]:
    base = next(b for b in (set, frozenset, deque) if issubclass(type(value), b))
    items = list(base.__iter__(value))
    try:
        # a set has no order of its own; sorted text makes equal sets equal lines
        return items if base is deque or not all(type(i) in (str, int) for i in items) else sorted(items)
    except TypeError:
        return items


# A metaclass may answer for its classes as it likes; these read what `type` itself stores.
