"""The import hook: after the module, before its importers, once, and never in anybody's way."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from verl_trace.verl_plugin import import_hook

MakeModule = Callable[[str], str]


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeModule]:
    """Write a module with a name of its own into a folder on the path; returns the name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def make(source: str) -> str:
        name = f"hooked_{tmp_path.name}_{len(made)}"
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        made.append(name)
        return name

    yield make
    for name in made:
        import_hook.cancel(name)
        sys.modules.pop(name, None)


def finders() -> list[object]:
    """Hooks of ours that look at imports."""
    return [finder for finder in sys.meta_path if type(finder).__module__ == import_hook.__name__]


def test_importers_see_the_replacement(make_module: MakeModule) -> None:
    """`from module import name` gives what the callback put there."""
    watched = make_module("def name(): return 'own'\n")
    importer = make_module(f"from {watched} import name\nresult = name()\n")

    def replace(module: ModuleType) -> None:
        module.name = lambda: "replaced"  # type: ignore[attr-defined]

    import_hook.after_import(watched, replace)

    assert importlib.import_module(importer).result == "replaced"


def test_module_looks_as_without_the_hook(make_module: MakeModule) -> None:
    """The loader and the spec are the ordinary ones afterwards, so that sources, resources and reloads work."""
    plain, watched = importlib.import_module(make_module("x = 1\n")), make_module("x = 1\n")
    import_hook.after_import(watched, lambda module: None)
    module = importlib.import_module(watched)

    assert type(module.__loader__) is type(plain.__loader__)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert importlib.reload(module).x == 1


def test_callback_runs_once(make_module: MakeModule) -> None:
    """A second import, or a reload, does not call again."""
    watched = make_module("")
    calls: list[ModuleType] = []
    import_hook.after_import(watched, calls.append)
    importlib.reload(importlib.import_module(watched))

    assert [module.__name__ for module in calls] == [watched]


def test_imported_module_is_called_for_at_once(make_module: MakeModule) -> None:
    """A module that is there already does not need to be imported again."""
    module = importlib.import_module(make_module(""))
    calls: list[ModuleType] = []
    import_hook.after_import(module.__name__, calls.append)

    assert calls == [module]


def test_raising_callback_is_a_warning(make_module: MakeModule, capsys: pytest.CaptureFixture[str]) -> None:
    """The import goes on and one line says what is not replaced."""
    watched = make_module("x = 1\n")

    def fail(module: ModuleType) -> None:
        raise AttributeError("no such function")

    import_hook.after_import(watched, fail)

    assert importlib.import_module(watched).x == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_failing_module_fails_as_ever(make_module: MakeModule) -> None:
    """A module that raises while it is executed raises to its importer, and the callback is not called."""
    watched = make_module("raise KeyError('broken')\n")
    calls: list[ModuleType] = []
    import_hook.after_import(watched, calls.append)

    with pytest.raises(KeyError, match="broken"):
        importlib.import_module(watched)
    assert calls == []


def test_missing_module_is_missing(make_module: MakeModule) -> None:
    """Watching a name makes no module of it."""
    watched = make_module("") + "_absent"
    import_hook.after_import(watched, lambda module: None)
    try:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(watched)
    finally:
        import_hook.cancel(watched)


def test_finder_leaves_when_nothing_is_watched(make_module: MakeModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one finder for all names, and none when the last name is done with."""
    monkeypatch.setattr(import_hook, "_waiting", {})
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if finder not in finders()])
    first, second = make_module(""), make_module("")
    import_hook.after_import(first, lambda module: None)
    import_hook.after_import(second, lambda module: None)

    assert len(finders()) == 1
    importlib.import_module(first)
    importlib.import_module(second)
    assert finders() == []
