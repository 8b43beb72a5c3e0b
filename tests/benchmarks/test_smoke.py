"""Every benchmark runs and finds all of its records; how long anything takes is not asked here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
# grep needs zstdgrep and is measured by `make bench` alone; upload has a test of its own beside the uploader's.
LEFT_OUT = {"grep", "upload"}


def loaded(name: str) -> ModuleType:
    """A module of the benchmarks, which find each other beside the program that runs."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(BENCHMARKS))
    PROGRAMS: dict[str, list[str]] = loaded("run_all").PROGRAMS


def test_every_benchmark_is_run() -> None:
    """`make bench` leaves none out."""
    assert {words[0] for words in PROGRAMS.values()} == {path.name for path in BENCHMARKS.glob("bench_*.py")}


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - LEFT_OUT))
def test_it_runs(name: str, tmp_path: Path) -> None:
    """At a hundredth of its size, without peers: all records are there, or it says so and fails."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("VERL_TRACE_")},
        "TMPDIR": str(tmp_path),
        "PATH": os.environ["PATH"],
    }
    command = [sys.executable, str(BENCHMARKS / "run_all.py"), name, "--scale", "0.01"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "LACKING" not in done.stdout
    table = [line.split() for line in done.stdout[done.stdout.rindex("target") :].splitlines()]
    assert table[1][0] == name
    assert [row[:-2] for row in table if row[-1] == "s" and "of" in row] == [["all", "of", "this"]]
    assert ["everything"] in [row[:1] for row in table]


def test_upload_knows_its_options() -> None:
    """It is not run above; what it is given there must be understood all the same."""
    program, *words = PROGRAMS["upload"]
    given = [word.format_map(dict.fromkeys(("scale", "fraction"), 0.01)) for word in words]
    command = [sys.executable, str(BENCHMARKS / program), *given, "--no-such-option"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.stderr.rstrip().endswith("unrecognized arguments: --no-such-option")


def test_targets_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reached, missed, and for information only; parts are named once."""
    table = loaded("table")
    monkeypatch.setenv(table.VARIABLE, str(tmp_path / "results"))
    table.tell("a call", 2.0, "ms", at_most=2, part="loop")
    table.tell("speed", 84.9, "%", at_least=85, part="loop")
    table.tell("bytes", 12345.6, part="disk")

    table.print_table(tmp_path / "results")

    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [
        ["loop", "a", "call", "2", "ms", "<=", "2", "yes"],
        ["speed", "84.9", "%", ">=", "85", "NO"],
        ["disk", "bytes", "12,346"],
    ]
