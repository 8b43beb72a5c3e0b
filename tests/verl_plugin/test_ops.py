"""VERL_TRACE_OPS: methods of any module, decorated when it is imported, by whoever imports it."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_trace.recorder import rollout_trace_op
from verl_trace.verl_plugin import import_hook, ops

SOURCE = """
class Base:
    def inherited(self, x):
        return x + 1

    class Inner:
        async def deep(self, x):
            return x + 2

class Tool(Base):
    number = 5

    @classmethod
    def make(cls, x):
        return [cls.__name__, x]

    @staticmethod
    def still(x):
        return x + 3

    def step(self, x):
        return self.inherited(x)

class Other(Base):
    pass

def alone(x):
    return x + 4
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in a package, neither imported yet."""
    package = tmp_path / f"ops_{tmp_path.name}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tools.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    name = f"{package.name}.tools"
    yield name
    import_hook.cancel(name)
    for loaded in (name, package.name):
        sys.modules.pop(loaded, None)


def names(recorded: Callable[[], list[dict[str, Any]]]) -> list[str]:
    """Operations in the order in which they started."""
    return [head["op"] for head in recorded() if head["kind"] == "start"]


def test_methods_are_recorded_after_an_import(module: str, recorded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Methods of every kind, nested and inherited ones, functions; a class that was not named stays as it is."""
    wanted = ["Tool.step", "Tool.make", "Tool.inherited", "Base.Inner.deep", "Tool.step", "Tool.still", "alone"]
    ops.watch({ops.VARIABLE: " , ".join(f"{module}:{name}" for name in wanted) + ","})
    assert module not in sys.modules
    found = importlib.import_module(module)

    assert found.Tool().step(1) == 2
    assert found.Tool.make(3) == ["Tool", 3]
    assert asyncio.run(found.Base.Inner().deep(1)) == 3
    assert (found.Tool.still(1), found.Tool().still(1), found.alone(1)) == (4, 4, 5)
    assert found.Other().inherited(1) == 2
    assert names(recorded) == [
        "Tool.step", "Base.inherited", "Tool.make", "Base.Inner.deep", "Tool.still", "Tool.still", "alone"
    ]  # fmt: skip
    assert [head["payload"] for head in recorded() if head["kind"] == "start"] == [
        {"x": n} for n in (1, 1, 3, 1, 1, 1, 1)
    ]
    assert capsys.readouterr().err == ""


def test_imported_module_is_decorated_at_once(module: str, recorded: Any) -> None:
    """A module that was imported before is not missed."""
    found = importlib.import_module(module)
    ops.watch({ops.VARIABLE: f"{module}:Tool.step"})

    assert found.Tool().step(1) == 2
    assert names(recorded) == ["Tool.step"]


def test_decorated_method_is_recorded_once(module: str, recorded: Any) -> None:
    """A name that carries a decorator already is left to it."""
    found = importlib.import_module(module)
    found.Tool.step = rollout_trace_op(found.Tool.step)
    ops.watch({ops.VARIABLE: f"{module}:Tool.step"})
    found.Tool().step(1)

    assert names(recorded) == ["Tool.step"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_package.tools:Tool.step", "module that cannot be found, no_such_package.tools"),
        ("{package}.missing:Tool.step", "module that cannot be found, {package}.missing"),
        ("{module}.deeper:Tool.step", "module that cannot be found, {module}.deeper"),
        ("{module}:Toool.step", "class that is not there, Toool"),
        ("{module}:Tool.stepp", "Tool has no stepp"),
        ("{module}:Tool.number", "cannot be recorded: this is not a function or method but of type int"),
        ("{module}.Tool.step", "not of the form package.module:Class.method"),
        ("{module}:", "not of the form package.module:Class.method"),
    ],
)
def test_wrong_name_is_one_warning(module: str, name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that cannot be decorated is one line with the name and what is wrong; nothing is imported or fails."""
    parts = {"module": module, "package": module.partition(".")[0]}
    name, words = name.format(**parts), words.format(**parts)
    ops.watch({ops.VARIABLE: f"{name},{module}:Tool.step"})
    assert module not in sys.modules
    assert importlib.import_module(module).Tool().step(1) == 2

    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"VERL_TRACE_OPS: {name!r} " in told
    assert words in told
