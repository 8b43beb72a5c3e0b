"""Call a function when a named module has just been executed, before anybody who imports it sees a name of it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ..recorder.counters import warn_once

__all__ = ["after_import", "cancel"]

_Callback = Callable[[ModuleType], None]
_waiting: dict[str, list[_Callback]] = {}


def after_import(name: str, callback: _Callback) -> None:
    """Call `callback(module)` once, when module `name` has been executed; at once where that has happened already.

    Several callbacks for one module are called in the order in which they were given. What one raises becomes a
    warning: the import goes on as if there were no callback.
    """
    module = sys.modules.get(name)
    if module is not None and not _is_being_executed(module):
        _call(callback, module)
        return
    _waiting.setdefault(name, []).append(callback)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def cancel(name: str) -> None:
    """Forget the callbacks for `name`, if they still wait."""
    _waiting.pop(name, None)
    if not _waiting:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing by itself: asks the other finders and puts `_Loader` around what they found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in list(sys.meta_path):
            find = None if isinstance(finder, _Finder) else getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Does what the module's own loader does, then leaves its place to it and calls the callback."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        callbacks = _waiting.get(module.__name__, [])
        cancel(module.__name__)
        for callback in callbacks:
            _call(callback, module)


def _is_being_executed(module: ModuleType) -> bool:
    # the import system's own mark; where it is missing the module counts as ready
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _call(callback: _Callback, module: ModuleType) -> None:
    try:
        callback(module)
    except Exception as error:  # noqa: BLE001
        warn_once(
            f"plugin-{module.__name__}",
            f"{module.__name__} is not what the plugin expects ({type(error).__name__}: {error}); "
            "verl runs unchanged there. Please report this with your version of verl",
        )
