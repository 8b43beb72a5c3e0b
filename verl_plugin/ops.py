"""`VERL_TRACE_OPS="pkg.module:Class.method,..."`: more methods that are recorded, in every process, without new code.

`pkg.module:function` is possible too; whoever imported the function before the plugin was loaded keeps the plain one.
The names are decorated when their module has been imported, whoever imports it; nothing is imported for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..recorder.counters import warn_once
from . import import_hook
from .standin import is_traced, record_only_attribute

__all__ = ["VARIABLE", "watch"]

VARIABLE = "VERL_TRACE_OPS"


def watch(environ: Mapping[str, str] | None = None) -> None:
    """Have every name in VERL_TRACE_OPS decorated. A name that cannot be there is one warning."""
    environ = os.environ if environ is None else environ
    for name in dict.fromkeys(name.strip() for name in environ.get(VARIABLE, "").split(",")):
        if not name:
            continue
        module, _, path = name.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
            _warn(name, "is not of the form package.module:Class.method")
        elif not _exists(module):
            _warn(name, f"names a module that cannot be found, {module}")
        else:
            import_hook.after_import(module, partial(_decorate, name=name))


def _decorate(module: ModuleType, name: str) -> None:
    """Replace the method that `name` means, in a module that has just been executed."""
    *outer, last = name.partition(":")[2].split(".")
    owner: Any = module
    for position, part in enumerate(outer):
        owner = vars(owner).get(part)
        if not isinstance(owner, type):
            return _warn(name, f"names a class that is not there, {'.'.join(outer[: position + 1])}")
    holder = next((cls for cls in owner.__mro__ if last in vars(cls)), None) if outer else module
    if holder is None or last not in vars(holder):
        return _warn(name, f"names nothing: {'.'.join(outer) or module.__name__} has no {last}")
    found = vars(holder)[last]
    if is_traced(found, last):
        return None
    try:
        # an inherited method is replaced in the class that was named, so that its other heirs stay as they are
        setattr(owner, last, record_only_attribute(found))
    except (TypeError, AttributeError) as error:
        _warn(name, f"cannot be recorded: {error}")
    return None


def _exists(name: str) -> bool:
    """Whether an import of `name` would find something, asked without importing any part of it."""
    if name in sys.modules:
        return True
    path: Iterable[str] | None = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        part = ".".join(parts[:end])
        known = getattr(sys.modules.get(part), "__path__", None)
        spec = None if known is not None else _find(part, path)
        if known is None and spec is None:
            return False
        path = known if spec is None else spec.submodule_search_locations
        if path is None and end < len(parts):
            return False
    return True


def _find(name: str, path: Iterable[str] | None) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(name, path) if find is not None else None
        if spec is not None:
            return spec
    return None


def _warn(name: str, what: str) -> None:
    warn_once(f"ops-{name}", f"{VARIABLE}: {name!r} {what}; it is not recorded")
