"""What a class is and what an object holds, read without running code of theirs: metaclasses, properties and
`__getattr__` are passed by.
"""

from __future__ import annotations

import functools
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "MISSING",
    "class_attribute",
    "class_name",
    "class_names",
    "data_fields",
    "instance_dict",
    "is_door",
    "module_name",
    "mro_of",
    "slot_of",
    "slots_of",
]

_type_name = type.__dict__["__name__"].__get__
_type_module = type.__dict__["__module__"].__get__
mro_of = type.__dict__["__mro__"].__get__
namespace_of = type.__dict__["__dict__"].__get__


def class_name(kind: type) -> str:
    """The name that the class was given, whatever its metaclass says."""
    return str(_type_name(kind))


def module_name(kind: type) -> str:
    """The module that it says it is of; `?` where that is no text."""
    module = _type_module(kind)
    return module if type(module) is str else "?"


MISSING = object()
_class_cache: dict[type, frozenset[str]] = {}


def class_names(kind: type) -> frozenset[str]:
    """Names that a class and its bases define, from their own dictionaries; cached, since classes are few."""
    names = _class_cache.get(kind)
    if names is None:
        if len(_class_cache) > 10_000:
            _class_cache.clear()
        names = frozenset(n for c in mro_of(kind) for n in namespace_of(c))
        _class_cache[kind] = names
    return names


def class_attribute(kind: type, name: str) -> Any:
    """What a class or the first of its bases has under a name, unbound; None where none has it."""
    for c in mro_of(kind):
        names = namespace_of(c)
        if name in names:
            return names[name]
    return None


def instance_dict(value: Any) -> dict[str, Any] | None:
    """The `__dict__` of an object; None where it has none."""
    try:
        names = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return names if isinstance(names, dict) else None


def slot_of(value: Any, kind: type, name: str) -> Any:
    """What a slot of an object holds; `MISSING` where there is no such slot, or nothing in it."""
    descriptor = class_attribute(kind, name)
    if not isinstance(descriptor, types.MemberDescriptorType):
        return MISSING
    try:
        return descriptor.__get__(value, kind)
    except AttributeError:
        return MISSING


def slots_of(value: Any, kind: type) -> dict[str, Any]:
    """All slots of an object that hold something."""
    out: dict[str, Any] = {}
    for c in mro_of(kind):
        for name, descriptor in namespace_of(c).items():
            # members of built-in types (a socket's, a file's) are no attributes in the user's sense
            if type(descriptor) is types.MemberDescriptorType and namespace_of(c).get("__slots__") is not None:
                found = slot_of(value, kind, name)
                if found is not MISSING:
                    out[name] = found
    return out


@functools.lru_cache(maxsize=10_000)
def is_door(kind: type) -> bool:
    """Whether it is one of `_DOORS`, or is made from one."""
    return any(f"{module_name(c)}.{class_name(c)}" in _DOORS for c in mro_of(kind))


@functools.lru_cache(maxsize=10_000)
def data_fields(kind: type) -> tuple[str, ...] | None:
    """Field names, as far as they have an order, of classes that hold data and nothing else; None for all other ones.

    Those are msgspec Structs (vLLM's SamplingParams) and vLLM's outputs. They come in batches, which no bound may cut.
    """
    names = slot_of(kind, type(kind), "__struct_fields__")
    if type(names) is tuple:
        return names
    return () if any(module_name(c) in _DATA_MODULES for c in mro_of(kind)) else None


_DATA_MODULES = frozenset({"vllm.outputs"})
# Doors to weights, vocabularies or the whole program: the class is all that a trajectory has use for.
_DOORS = frozenset(
    {
        "torch.nn.modules.module.Module",
        "transformers.tokenization_utils_base.PreTrainedTokenizerBase",
        "transformers.processing_utils.ProcessorMixin",
        "logging.Logger",
        "logging.LoggerAdapter",
    }
)
