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


def loaded() -> ModuleType:
    """The program that runs them all."""
    spec = importlib.util.spec_from_file_location("run_all", BENCHMARKS / "run_all.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROGRAMS: dict[str, list[str]] = loaded().PROGRAMS


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
