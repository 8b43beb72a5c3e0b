"""Who may import whom: the table of docs/architecture.md, held against the sources."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

import verl_trace
import verl_trace.recorder

PACKAGE = Path(verl_trace.__file__).resolve().parent
FOLDERS = (
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
ALLOWED = {
    "schemas": set(),
    "recorder": {"schemas"},
    "verl_plugin": {"recorder", "schemas"},
    "reader": {"schemas"},
    "uploader": {"reader", "wandb_runs", "schemas"},
    "wandb_runs": {"reader", "schemas"},
    "collector": {"recorder", "schemas"},
    "viewer": {"reader", "schemas"},
    # What a command needs of the recorder is its public face, never a module inside.
    "commands": {
        "verl_plugin",
        "reader",
        "uploader",
        "wandb_runs",
        "collector",
        "viewer",
        "demo",
        "schemas",
        "recorder",
    },
    "demo": set(FOLDERS),
}
# Beside the standard library. An empty set elsewhere means: not restricted here.
THIRD_PARTY = {folder: {"orjson", "zstandard"} for folder in ("schemas", "recorder", "reader")}
# Not loaded by the first call either: orjson needs none of these, and some take as long as all of the recorder.
LATER = (
    "pathlib", "urllib", "signal", "fnmatch", "zstandard", "email", "logging",
    "tempfile", "subprocess", "socket", "random", "asyncio", "multiprocessing", "typing", "hashlib", "base64", "queue",
)  # fmt: skip
# Never loaded by `import verl_trace`: they are slow, open connections or patch other libraries.
HEAVY = ("weave", "wandb", "requests", "rich", "typer", "click", "numpy", "torch", "pydantic", "ray", "verl")


def sources(folder: str) -> list[Path]:
    """The modules of a top-level folder."""
    return sorted((PACKAGE / folder).rglob("*.py"))


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Absolute dotted names that a module imports; own modules begin with `verl_trace.`."""
    package = ["verl_trace", *path.relative_to(PACKAGE).parent.parts]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names} if node.level else {module}
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_imports_only_what_the_table_allows(folder: str) -> None:
    """Dependencies point one way; the recorder and the reader know the schemas only."""
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in sources(folder)
        for name in sorted(imports(path))
        if name.startswith("verl_trace.") and name.split(".")[1] not in {folder, *ALLOWED[folder], "__version__"}
    ]

    assert wrong == []


def module_of(name: str) -> str:
    """The module that a dotted name of ours lies in: `reader.filters` for `verl_trace.reader.filters.Filters`."""
    parts = name.split(".")[1:]
    while parts and not ((PACKAGE / Path(*parts, "__init__.py")).is_file() or own_file(parts).is_file()):
        parts.pop()
    return ".".join(parts)


def own_file(parts: list[str]) -> Path:
    """Where a module lies that is no folder."""
    return (PACKAGE / Path(*parts)).with_suffix(".py")


def test_no_circle_of_imports() -> None:
    """No module needs, by whatever way, one that needs it: not in a function, and not for its types alone either."""
    graph: dict[str, set[str]] = {}
    for path in [PACKAGE / "__init__.py", PACKAGE / "cli.py", *(one for folder in FOLDERS for one in sources(folder))]:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        ours = {module_of(name) for name in imports(path) if name.startswith("verl_trace.")}
        graph[module] = ours - {module}

    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"they import one another: {' <- '.join(error.args[1])}")
    assert "reader.filters" in graph["commands.filters"]
    assert "recorder.spans" in graph["recorder.callables"]


def test_commands_use_the_recorder_by_its_front_door() -> None:
    """Outside of training only what `recorder/__init__.py` offers is used, and the modules that it names."""
    front_door = {*verl_trace.recorder.__all__, "settings", "leftovers", "mounts"}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in [*sources("commands"), PACKAGE / "cli.py"]
        for name in imports(path)
        if name.startswith("verl_trace.recorder.") and name.split(".")[2] not in front_door
    ]

    assert wrong == []


@pytest.mark.parametrize("folder", sorted(THIRD_PARTY))
def test_folder_needs_only_its_third_parties(folder: str) -> None:
    """The recorder runs inside of training and imports nothing but orjson, zstandard and the standard library."""
    # of the standard library, one until Python 3.11, the other since
    sha256 = {"_sha256", "_sha2"}
    allowed = {"verl_trace", *sha256, *THIRD_PARTY[folder], *sys.stdlib_module_names}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in sources(folder)
        for name in sorted(imports(path))
        if name.split(".")[0] not in allowed
    ]

    assert wrong == []


def test_table_is_the_documented_one() -> None:
    """The rule that is tested is the rule that docs/architecture.md tells."""
    text = documented()

    for folder in ("schemas", "recorder", "verl_plugin", "reader", "uploader", "wandb_runs", "collector", "viewer"):
        row = re.search(rf"^\| `{folder}/` \|.*\| (.*) \|$", text, re.MULTILINE)
        assert row is not None, folder
        assert set(re.findall(r"`(\w+)`", row[1])) == ALLOWED[folder], folder


def documented() -> str:
    """docs/architecture.md of the checkout that this test lies in."""
    return (Path(__file__).resolve().parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_import_loads_nothing_heavy() -> None:
    """`import verl_trace` in a fresh interpreter loads no command line, no client, no framework."""
    program = "import sys, verl_trace; print('\\n'.join(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert "verl_trace" in done.stdout.split()
    assert sorted(set(HEAVY) & set(done.stdout.split())) == []


FIRST_CALL = """
before = set(sys.modules)
import verl_trace

@verl_trace.rollout_trace_op
def call(text):
    return {"text": text}

verl_trace.RolloutTraceConfig.init("project", "start", "jsonl")
with verl_trace.rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
    call("hello")
print("\\n".join({name.split(".")[0] for name in set(sys.modules) - before}))
"""
ALL_SORTS = """
import binascii, os, threading, verl_trace

class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            print(name)

@verl_trace.rollout_trace_op
def call(value):
    return [value]

verl_trace.RolloutTraceConfig.init("project", "start", "jsonl")
sys.meta_path.insert(0, Watch())
with verl_trace.rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
    url = "data:image/png;base64," + binascii.b2a_base64(os.urandom(1 << 16), newline=False).decode()
    for value in (b"short", os.urandom(1 << 17), bytearray(9), url, {"x": float("nan")}, {1, 2}, 1 + 2j, object()):
        call(value)
    with verl_trace.use_context(verl_trace.current_context().to_text()):
        call("in another process")
    verl_trace.record_score("reward", 1.0)
"""


def run_in_an_empty_interpreter(program: str, folder: Path) -> set[str]:
    """The words that it prints where orjson alone is loaded: not what an editable installation's finder loads."""
    for package in (PACKAGE, Path(orjson.__file__).resolve().parent):
        (folder / ("verl_trace" if package == PACKAGE else package.name)).symlink_to(package)
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-S", "-u", "-c"),
            f"import sys; sys.path.insert(0, {str(folder)!r}); import orjson\n{program}\n__import__('os')._exit(0)",
        ],
        env={"VERL_TRACE_DIR": str(folder / "runs")}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


def test_first_call_loads_little(tmp_path: Path) -> None:
    """What takes time to load is loaded when it is used, by the recorder's own threads."""
    loaded = run_in_an_empty_interpreter(FIRST_CALL, tmp_path)

    assert "verl_trace" in loaded
    assert len(list(tmp_path.glob("runs/start/*.jsonl"))) == 1
    assert sorted({*HEAVY, *LATER} & loaded) == []


def test_a_traced_call_imports_nothing(tmp_path: Path) -> None:
    """It may be in a thread while another one forks, or have no descriptor left."""
    assert run_in_an_empty_interpreter(ALL_SORTS, tmp_path) == set()
    assert sum(file.read_bytes().count(b'"kind":"end"') for file in tmp_path.glob("runs/start/*.jsonl")) == 9


def test_command_line_starts_without_extras() -> None:
    """`verl-trace --help` and `ls` work where weave, wandb, requests and rich are not to be had."""
    program = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('weave', 'wandb', 'requests', 'verl', 'torch', 'duckdb', 're2'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "sys.argv = ['verl-trace', '--help']\n"
        "from verl_trace.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert "upload" in done.stdout
