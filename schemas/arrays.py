"""Arrays and tables: numpy, torch, tensordict, pandas. Read by their own C code, imported by nobody here.

Up to `INLINE_ELEMENTS` elements an array is a (nested) list of its numbers; a larger one is shape, dtype and a
summary on the line and its bytes in the side file. On an accelerator it is shape, dtype and device: reading would
wait for it.
"""

from __future__ import annotations

import contextlib
import sys

import orjson

from .side import SideFile, reference

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["INLINE_ELEMENTS", "Heavy", "array_form", "heavy_form", "is_array", "table_fields"]

# Token ids of a long context stay readable numbers; routed experts (tokens x layers x k) are beyond.
INLINE_ELEMENTS = 65_536
_HEAD = 8
# Kinds of numpy types whose bytes are numbers (bool, int, unsigned, float, complex) and which orjson writes itself.
_NUMBERS = frozenset("biufc")
_NATIVE = frozenset("biu")


class Heavy(TypeError):
    """An array that belongs into the side file, or needs a look at each element."""


def _loaded(name: str, needed: str) -> Any:
    """The module where it is loaded as far as what is needed, else None: another thread may be at it."""
    module = sys.modules.get(name)
    return module if hasattr(module, needed) else None


def is_array(value: Any, kind: type) -> bool:
    """Whether it is a numpy or torch array or scalar."""
    numpy, torch = _loaded("numpy", "ndarray"), _loaded("torch", "Tensor")
    if numpy is not None and issubclass(kind, (numpy.ndarray, numpy.generic)):
        return True
    return torch is not None and issubclass(kind, torch.Tensor)


def array_form(value: Any, kind: type) -> Any:
    """Numbers of a small array or scalar as JSON-ready data; None for what is no array.

    Raises:
        Heavy: see `heavy_form`.
    """
    numpy = _loaded("numpy", "ndarray")
    if numpy is not None:
        if issubclass(kind, numpy.ndarray):
            return _numpy_form(numpy, value)
        if issubclass(kind, numpy.generic):
            # long doubles have no other form, and nanoseconds would become a bare number
            return str(value) if value.dtype.kind in "mM" or value.dtype.char in "gG" else value.tolist()
    torch = _loaded("torch", "Tensor")
    if torch is not None:
        if issubclass(kind, torch.Tensor):
            if value.is_nested:
                # of rows of several lengths: a list of tensors
                return list(value.detach().unbind())
            if value.device.type != "cpu" or value.layout is not torch.strided or value.numel() > INLINE_ELEMENTS:
                raise Heavy
            return value.detach().tolist()
        if kind is torch.dtype or kind is torch.device:
            return str(value)
    return None


def _numpy_form(numpy: Any, value: Any) -> Any:
    sort = value.dtype.kind
    if value.size > INLINE_ELEMENTS and sort in _NUMBERS:
        raise Heavy
    # by orjson's own C code, which wants a contiguous array in the machine's byte order
    is_native = sort in _NATIVE and type(value) is numpy.ndarray and value.dtype.isnative
    if is_native and value.ndim and value.flags.c_contiguous:
        return orjson.Fragment(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))
    if sort in "mM" or value.dtype.char in "gG":
        return value.astype(str).tolist()
    return value.tolist()


def heavy_form(value: Any, side: SideFile | None, digests: list[str]) -> dict[str, Any]:
    """Shape, dtype, device, a summary and a reference for an array that `array_form` does not take."""
    torch = _loaded("torch", "Tensor")
    is_tensor = torch is not None and issubclass(type(value), torch.Tensor)
    form: dict[str, Any] = {
        "_type": "Tensor" if is_tensor else "ndarray",
        "shape": [int(n) for n in value.shape],
        "dtype": str(value.dtype).removeprefix("torch."),
    }
    if not is_tensor:
        numpy = sys.modules["numpy"]
        array = numpy.ascontiguousarray(value)
        array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        form["dtype"] = str(array.dtype)
        form["summary"] = _summary(array, array.reshape(-1)[:_HEAD].tolist())
        return form | reference(side, digests, array.tobytes(), in_background=True)
    form["device"] = str(value.device)
    wanted = side is not None and side.accelerators
    if value.layout is not torch.strided or (value.device.type != "cpu" and not wanted):
        return form
    # bits may say that the numbers in memory are to be taken conjugate or negative
    tensor = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if tensor.numel() <= INLINE_ELEMENTS:
        return form | {"value": tensor.tolist()}
    form["summary"] = _summary(tensor, tensor.reshape(-1)[:_HEAD].tolist())
    # not by numpy, which knows no bfloat16
    import ctypes

    content = ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
    return form | reference(side, digests, content, in_background=True)


def _summary(array: Any, head: list[Any]) -> dict[str, Any]:
    """Smallest, largest and first elements; complex numbers have no order."""
    summary: dict[str, Any] = {"head": head}
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        summary = {"min": array.min().item(), "max": array.max().item(), **summary}
    return summary


def table_fields(value: Any, kind: type, names: frozenset[str]) -> dict[str, Any] | None:
    """Columns of a TensorDict (also one with objects in it) or pandas object, None for anything else.

    `names`: what the class and its bases define.
    """
    module = kind.__module__ if type(kind) is type else type.__getattribute__(kind, "__module__")
    if type(module) is not str:
        return None
    if "tensordict" in sys.modules:
        fields = _tensordict_fields(value, kind, module)
        if fields is not None:
            return fields
    pandas = _loaded("pandas", "DataFrame")
    if pandas is None:
        return None
    if issubclass(kind, pandas.DataFrame):
        columns = {str(name): value.iloc[:, at].tolist() for at, name in enumerate(value.columns)}
        return {"_type": "DataFrame", "shape": list(value.shape), "index": _index(value.index), "columns": columns}
    if issubclass(kind, pandas.Series):
        name = None if value.name is None else str(value.name)
        return {"_type": "Series", "name": name, "index": _index(value.index), "values": value.tolist()}
    if issubclass(kind, pandas.Index):
        return {"_type": "Index", "values": value.tolist()}
    return None


def _index(index: Any) -> Any:
    """A plain counting index says nothing that the position does not."""
    return None if type(index).__name__ == "RangeIndex" else index.tolist()


def _tensordict_fields(value: Any, kind: type, module: str) -> dict[str, Any] | None:
    """Read from the object's own storage."""
    try:
        stored = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    inner, beside = stored.get("_tensordict"), stored.get("_non_tensordict")
    if type(beside) is dict and inner is not None:
        # a tensorclass, such as an object that stands beside tensors
        if beside.get("_is_non_tensor") is True:
            return {"_type": "NonTensorData", "data": beside.get("data")}
        return {"_type": type.__getattribute__(kind, "__name__"), **beside, "tensors": inner}
    if not module.startswith("tensordict"):
        return None
    if type(inner) is dict:
        shape = [int(n) for n in value.batch_size]
        return {"_type": "TensorDict", "batch_size": shape, "fields": inner}
    stacked = stored.get("tensordicts")
    return {"_type": "LazyStackedTensorDict", "tensordicts": stacked} if type(stacked) is list else None
