"""What an installed verl-trace must be, whether it came from a wheel or is an editable checkout."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pkgutil
import subprocess
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path

import verl_trace

PACKAGE = Path(verl_trace.__file__).resolve().parent
# Folders of a checkout that are no part of the installed package.
NOT_SHIPPED = {"tests", "examples", "benchmarks", "docs", "build", "dist", "runs"}


def package_folders(root: Path) -> set[str]:
    """Dotted names of the folders below `root` that hold an `__init__.py`."""
    return {
        ".".join(("verl_trace", *path.parent.relative_to(root).parts))
        for path in root.rglob("__init__.py")
        if not any(part.startswith(".") or part in NOT_SHIPPED for part in path.relative_to(root).parts[:-1])
    }


def is_ours(file: Path) -> bool:
    """Whether `file` is a module of the package; an environment may lie in a hidden folder of the checkout."""
    return file.is_relative_to(PACKAGE) and not any(part.startswith(".") for part in file.relative_to(PACKAGE).parts)


def test_modules_are_loaded_once() -> None:
    """No source file is loaded under two names, so there is one recorder and one state in a process."""
    for module in pkgutil.walk_packages(verl_trace.__path__, "verl_trace."):
        if module.name.split(".")[1] in ("recorder", "schemas", "reader"):
            importlib.import_module(module.name)
    loaded = [getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name != "__main__"]
    files = Counter(os.path.realpath(file) for file in loaded if isinstance(file, str))

    # pytest itself loads the root's __init__.py of a checkout once more, as the tests' package; it only re-exports
    ours = [file for file in files if is_ours(Path(file)) and Path(file) != PACKAGE / "__init__.py"]
    assert len(ours) > 10
    assert [file for file in ours if files[file] > 1] == []


def test_every_package_is_installed() -> None:
    """Every package of the distribution can be imported where this test runs (a wheel lists them by hand)."""
    found = package_folders(PACKAGE)

    assert found >= {"verl_trace", "verl_trace.recorder", "verl_trace.reader", "verl_trace.uploader"}
    for name in sorted(found):
        assert importlib.util.find_spec(name) is not None, name


def test_exported_members_are_the_public_api() -> None:
    """`__all__` is sorted, complete and importable."""
    exported = verl_trace.__all__

    assert sorted(exported, key=str) == exported
    assert {"RolloutTraceConfig", "rollout_trace_attr", "rollout_trace_op", "__version__"} <= set(exported)
    assert [name for name in exported if not hasattr(verl_trace, name)] == []


def test_version_is_told_once() -> None:
    """`verl_trace.__version__` is the version of the installed distribution."""
    assert metadata.version("verl-trace") == verl_trace.__version__


def test_distribution_names_what_verl_and_a_shell_look_for() -> None:
    """The installed distribution has the console script, the verl plugin, the license and the extras."""
    distribution = metadata.distribution("verl-trace")
    entries = {(entry.group, entry.name): entry.value for entry in distribution.entry_points}

    assert entries[("console_scripts", "verl-trace")] == "verl_trace.cli:main"
    assert entries[("verl.plugins", "verl_trace")] == "verl_trace.verl_plugin"
    assert distribution.metadata["License-Expression"] == "Apache-2.0"
    assert set(distribution.metadata.get_all("Provides-Extra") or ()) >= {"upload", "all", "verl", "vllm", "dev"}


def test_plain_install_is_small() -> None:
    """Without extras only orjson, zstandard and typer are required: a GPU node gets nothing else."""
    plain = {
        requirement.split(";")[0].split(">")[0].strip()
        for requirement in metadata.requires("verl-trace") or ()
        if "extra ==" not in requirement
    }

    assert plain == {"orjson", "zstandard", "typer"}


def test_data_files_are_installed() -> None:
    """The type marker and the JSON Schemas of the records come with the package."""
    assert (PACKAGE / "py.typed").is_file()
    assert sorted(path.name for path in (PACKAGE / "schemas").glob("*.json")) != []


def test_console_script_answers() -> None:
    """The installed command runs in a process of its own and tells its version."""
    script = Path(sys.executable).with_name("verl-trace")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert verl_trace.__version__ in done.stdout


PROGRAM = """
import asyncio
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

class Agent:
    @rollout_trace_op
    async def run(self, prompt):
        return await self.step(prompt)

    @rollout_trace_op
    async def step(self, prompt):
        return {"answer": prompt}

RolloutTraceConfig.init("me/proj", "smoke", "jsonl")
with rollout_trace_attr(step=3, sample_index=7, rollout_n=0):
    asyncio.run(Agent().run("hello"))
"""


def test_what_is_installed_records_and_lists(tmp_path: Path) -> None:
    """With whatever extras there are, a program records and `verl-trace ls` shows its run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VERL_TRACE_")}
    recording = [sys.executable, "-c", PROGRAM]
    subprocess.run(recording, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True)
    listing = [str(Path(sys.executable).with_name("verl-trace")), "ls", "--json"]
    done = subprocess.run(
        listing, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)
    assert (run["project_name"], run["experiment_name"], run["calls"], run["state"]) == (
        "me/proj",
        "smoke",
        2,
        "closed",
    )
