"""What `verl-trace doctor` is told about verl, for each way in which verl may be installed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_trace.verl_plugin import status

OLDEST = "__version__ = '0.5.0'\n"
BY_VARIABLE = "modules = os.getenv('VERL_USE_EXTERNAL_MODULES', '')\n"
BY_ENTRY_POINT = BY_VARIABLE + "entry_points(group='verl.plugins')\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a package named verl on the path that must not be imported, with this text behind the first line."""

    def put(source: str) -> None:
        (tmp_path / "verl").mkdir()
        (tmp_path / "verl/__init__.py").write_text("raise SystemExit('imported')\n" + source)
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()

    return put


@pytest.mark.parametrize(
    ("source", "variables", "loaded_by"),
    [
        (BY_ENTRY_POINT, {}, "entry point verl.plugins"),
        (BY_ENTRY_POINT, {"VERL_USE_EXTERNAL_PLUGINS": "other,verl_trace"}, "entry point verl.plugins"),
        (
            BY_VARIABLE,
            {"VERL_USE_EXTERNAL_MODULES": "a, verl_trace.verl_plugin"},
            "VERL_USE_EXTERNAL_MODULES=a, verl_trace.verl_plugin",
        ),
    ],
)
def test_way_is_told(install: Callable[[str], None], source: str, variables: dict[str, str], loaded_by: str) -> None:
    """Entry point or variable: how verl will load the plugin is said, and nothing is left to do."""
    install(source)
    found = status(variables)

    assert (found.loaded_by, found.hint) == (loaded_by, "")


@pytest.mark.parametrize(
    ("source", "variables", "word"),
    [
        (OLDEST, {"VERL_USE_EXTERNAL_MODULES": "verl_trace.verl_plugin"}, "python3 -m verl_trace.verl_plugin"),
        (BY_VARIABLE, {}, "VERL_USE_EXTERNAL_MODULES=verl_trace.verl_plugin"),
        (BY_ENTRY_POINT, {"VERL_USE_EXTERNAL_PLUGINS": "none"}, "VERL_USE_EXTERNAL_PLUGINS=none"),
    ],
)
def test_remedy_is_told(install: Callable[[str], None], source: str, variables: dict[str, str], word: str) -> None:
    """Where verl will not load the plugin, the hint names what to change."""
    install(source)
    found = status(variables)

    assert found.loaded_by is None
    assert word in found.hint


def test_offline_decision_is_part_of_it(install: Callable[[str], None]) -> None:
    """What `backend=weave` would do here is told with its reason."""
    install(BY_ENTRY_POINT)

    assert status({"WANDB_MODE": "offline"}).offline == (True, "WANDB_MODE=offline")


def test_import_without_verl_changes_nothing() -> None:
    """Importing the plugin where verl is missing is silent, imports nothing heavy and leaves imports as they are."""
    program = (
        "import sys, verl_trace.verl_plugin as plugin\n"
        "assert not {'verl', 'ray', 'torch', 'weave', 'wandb'} & set(sys.modules)\n"
        "sys.path[:] = []\n"
        "assert plugin.status().version is None\n"
        "try:\n    import verl.utils.rollout_trace\n"
        "except ModuleNotFoundError as error:\n    assert error.name == 'verl'\n"
    )
    # isolated, so that only what is installed is found
    done = subprocess.run([sys.executable, "-Ic", program], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("trouble", ["raise RuntimeError('broken')", "raise ImportError('no such name')"])
def test_import_never_raises(trouble: str) -> None:
    """When the plugin itself is broken, verl's import goes on after one line on stderr."""
    program = (
        "import sys, verl_trace.recorder.settings as settings\n"
        f"def broken(*args):\n    {trouble}\n"
        "settings.disabled = broken\n"
        "import verl_trace.verl_plugin\n"
    )
    done = subprocess.run([sys.executable, "-Ic", program], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0
    assert done.stderr.startswith("verl-trace: warning: the verl plugin is off")
    assert done.stderr.count("\n") == 1
