"""`python -m verl_trace.verl_plugin MODULE …`: the module runs as under `python -m`, with the plugin there first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import json, os, sys
print(json.dumps({
    "name": __name__, "arguments": sys.argv[1:], "file": os.path.basename(sys.argv[0]),
    "plugin": "verl_trace.verl_plugin.hooks" in sys.modules, "modules": os.environ["VERL_USE_EXTERNAL_MODULES"],
}))
"""


def launch(folder: Path, *arguments: str, modules: str = "") -> subprocess.CompletedProcess[str]:
    """Run the launcher in a folder."""
    environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": modules}
    command = [sys.executable, "-m", "verl_trace.verl_plugin", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "verl_trace.verl_plugin"),
        ("mine", "mine,verl_trace.verl_plugin"),
        ("verl_trace.verl_plugin,mine", "verl_trace.verl_plugin,mine"),
    ],
)
def test_module_runs_with_the_plugin(tmp_path: Path, before: str, after: str) -> None:
    """The module is `__main__` with its own arguments; children are told to load the plugin, once."""
    (tmp_path / "train.py").write_text(MODULE)
    done = launch(tmp_path, "train", "a=1", "--flag", modules=before)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "name": "__main__", "arguments": ["a=1", "--flag"], "file": "train.py", "plugin": True, "modules": after
    }  # fmt: skip


def test_without_a_module_it_says_how(tmp_path: Path) -> None:
    """One line of usage, with an example."""
    done = launch(tmp_path)

    assert done.returncode == 1
    assert done.stderr.startswith("usage: python -m verl_trace.verl_plugin MODULE")
    assert "verl.trainer.main_ppo" in done.stderr
