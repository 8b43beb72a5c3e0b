"""README.md is true: its commands exist, its links lead somewhere, its tables are complete."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPT = Path(sys.executable).with_name("verl-trace")
PACKAGE_FOLDERS = (
    "schemas",
    "recorder",
    "verl_plugin",
    "reader",
    "uploader",
    "wandb_runs",
    "collector",
    "viewer",
    "commands",
    "demo",
)
# Not for users: how the plugin hands a decision of the driver to its workers.
CARRIERS = {"VERL_TRACE_DRIVER_DISABLED"}
INSTALLING = re.findall(r"^(python3 -m venv .*)$", README, re.MULTILINE)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_two_commands_do_all_setup() -> None:
    """README has two set-up commands of one line: the demo first, then the tests."""
    assert len(INSTALLING) == 2
    assert INSTALLING[0].endswith(".venv/bin/verl-trace demo")
    assert INSTALLING[1].endswith(".venv/bin/pytest -n 2")


@pytest.mark.parametrize(("script", "position"), [("demo", 0), ("test", 1)])
def test_ci_runs_the_commands_as_written(script: str, position: int) -> None:
    """The scripts of .ci/run hold the very lines that README tells a newcomer to type."""
    assert INSTALLING[position] in (ROOT / ".ci" / script).read_text().splitlines()
    assert re.search(rf"\b{script}\b", (ROOT / ".ci" / "run").read_text())


@pytest.mark.parametrize("command", sorted(set(re.findall(r"verl-trace ([a-z]+)", README))))
def test_commands_have_help(command: str) -> None:
    """Every `verl-trace X` in README is a command that explains itself."""
    done = run(command, "--help")

    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_every_command_is_in_the_readme() -> None:
    """A command that exists is in README's table."""
    help_text = run("--help").stdout
    offered = set(re.findall(r"^[│ ]+([a-z]+) {2,}\S", help_text, re.MULTILINE))

    assert offered >= {"ls", "upload", "doctor", "demo"}
    assert sorted(name for name in offered if f"| `verl-trace {name}` |" not in README) == []


def test_options_in_the_readme_exist() -> None:
    """Options of `upload` and `ls` that README names are options of theirs."""
    upload = run("upload", "--help").stdout

    assert [option for option in ("--dry-run", "--entity", "--project", "--json") if option not in upload] == []


def test_table_of_settings_is_complete() -> None:
    """Every VERL_TRACE_ variable that the package reads is in README's table, and no other."""
    pattern = re.compile(r"VERL_TRACE_[A-Z]+(?:_[A-Z]+)*")
    sources = [path for folder in PACKAGE_FOLDERS for path in (ROOT / folder).rglob("*.py")]
    used = {name for path in sources for name in pattern.findall(path.read_text(encoding="utf-8"))}
    told = set(re.findall(r"^\| `(VERL_TRACE_[A-Z_]+)` \|", README, re.MULTILINE))

    assert told == used - CARRIERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link of a page is a file of the checkout."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_makefile_targets_of_contributing_exist() -> None:
    """Every `make X` of CONTRIBUTING.md is a target."""
    makefile = (ROOT / "Makefile").read_text()
    named = re.findall(r"^make (\w+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)

    assert named != []
    assert [name for name in named if f"\n{name}:" not in makefile] == []


def test_example_records(tmp_path: Path) -> None:
    """examples/rollout_loop.py runs as it is and leaves span files that README's grep finds."""
    program = ROOT / "examples" / "rollout_loop.py"
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    (sealed,) = (tmp_path / "runs" / "rollout-loop").glob("*.jsonl.zst")
    with zstandard.open(sealed, "rb") as file:
        lines = file.read().splitlines()
    # Per trajectory: run, two generate and two execute, each with a start and an end; six trajectories a step.
    assert sum(b'"step":2,' in line for line in lines) == 6 * 5 * 2
    assert f"verl-trace: recording to {tmp_path / 'runs' / 'rollout-loop'}" in done.stderr


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's rollout as `runs/exp1`, once for all examples."""
    folder = tmp_path_factory.mktemp("examples")
    done = subprocess.run(
        [SCRIPT, "demo", "--no-upload", "--json"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    (recorded,) = (folder / "runs").iterdir()
    recorded.rename(folder / "runs" / "exp1")
    return folder


def _examples() -> list[str]:
    """Lines of shell in the sections about reading, in README and docs/reading.md."""
    reading = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
    section = README.partition("## Reading a run")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section + reading, re.DOTALL)
    return list(dict.fromkeys(line.strip() for block in blocks for line in block.splitlines() if line.strip()))


@pytest.mark.parametrize("example", _examples())
def test_examples_of_reading_work(example: str, two_runs: Path) -> None:
    """Each as it is typed; `duckdb -c` through the Python package, which is the same engine."""
    if example.startswith("duckdb -c"):
        duckdb = importlib.import_module("duckdb")
        (query,) = re.findall(r'-c "(.*)"$', example)
        assert duckdb.sql(query.replace("runs/", f"{two_runs}/runs/")).fetchall()
        return
    for tool in {"zstdgrep", "zstdcat", "jq"} & set(re.findall(r"\w+", example)):
        if shutil.which(tool) is None:
            # CI installs them
            assert not os.environ.get("CI"), f"{tool} is not installed"
            pytest.skip(f"{tool} is not installed")
    folders = os.pathsep.join([str(SCRIPT.parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": folders, "XDG_CACHE_HOME": str(two_runs / "cache")}
    done = subprocess.run(
        ["bash", "-c", example], cwd=two_runs, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    # zstdgrep itself ends with 1 although it found lines
    assert done.returncode == 0 or example.startswith("zstdgrep"), done.stderr
    assert done.stdout or "--out" in example or "-100" in example or "--step 100" in example
    assert done.stderr == ""
