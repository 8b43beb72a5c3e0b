"""What the environment says: every form that is taken, and one that is not keeps the default and is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_trace.recorder.settings import mistyped, read_settings, size_text

PROGRAM = """
import verl_trace
verl_trace.RolloutTraceConfig.init("project", "exp1", "jsonl")
"""


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("0.5", 0.5), ("500ms", 0.5), ("90s", 90.0), (" 2M ", 120.0), ("1h", 3600.0)]
)
def test_times(text: str, seconds: float) -> None:
    """Seconds, or with the units of the commands: `2m` is two minutes, not two mebiseconds."""
    settings = read_settings({"VERL_TRACE_SEAL_AGE": text, "VERL_TRACE_FSYNC": text})

    assert (settings.seal_age, settings.fsync_interval, settings.problems) == (seconds, seconds, ())


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("64M", 64 << 20), ("64MiB", 64 << 20), ("2gb", 2 << 30)])
def test_sizes(text: str, size: int) -> None:
    """Bytes, or in 1024s; told back in the same form."""
    assert read_settings({"VERL_TRACE_SEGMENT_BYTES": text}).segment_bytes == size
    assert read_settings({"VERL_TRACE_SEGMENT_BYTES": size_text(size)}).segment_bytes == size


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("FSYNC", "5x", "is not a time such as 90s or 5m; using 5s"),
        ("SEAL_AGE", "-1", "is not a time such as 90s or 5m; using 60s"),
        ("MIN_FREE", "lots", "is not a size such as 64M; using 1G"),
        ("MAX_BYTES", "nan", "is not a size such as 64M; using no limit"),
        ("STEPS", "a", "is not FIRST:LAST:STRIDE, such as 0:100:10; recording every step"),
        ("STEPS", "100:1", "is not FIRST:LAST:STRIDE, such as 0:100:10; recording every step"),
        ("TREE", "flat", "is neither run nor trajectory; using run"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, text: str, words: str) -> None:
    """With the variable, its value, what was expected, and what counts instead."""
    settings = read_settings({f"VERL_TRACE_{name}": text})

    assert settings.problems == (f"VERL_TRACE_{name}={text!r} {words}",)
    assert vars(settings) == vars(read_settings({})) | {"problems": settings.problems}


def test_what_is_no_setting_is_named() -> None:
    """With the one that was meant, where one is like it; settings and other people's variables are not."""
    environ = {
        "VERL_TRACE_MAXBYTES": "1",
        "VERLTRACE_DIR": "x",
        "VERL_TRACE_QUUX": "1",
        "VERL_TRACE_DIR": "y",
        "VERL_X": "",
    }

    assert mistyped(environ) == {
        "VERLTRACE_DIR": "VERL_TRACE_DIR",
        "VERL_TRACE_MAXBYTES": "VERL_TRACE_MAX_BYTES",
        "VERL_TRACE_QUUX": "",
    }


def test_the_log_of_the_training_tells_of_a_mistyped_one(tmp_path: Path) -> None:
    """Once for all processes of a start; what is like no setting may be somebody's own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_TRACE", "SLURM"))}
    own = {"VERL_TRACE_DIR": str(tmp_path), "VERL_TRACE_ATTEMPT": "1", "VERL_TRACE_COLLECT": "/x"}
    said = ""
    for _ in range(2):
        words = [sys.executable, "-c", PROGRAM]
        environment = {**clean, **own, "VERL_TRACE_MAXBYTES": "1G", "VERL_TRACE_QUUX": "1"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True)
        said += done.stderr

    assert said.count("warning:") == 1
    assert "VERL_TRACE_MAXBYTES is no setting and says nothing here: did you mean VERL_TRACE_MAX_BYTES?" in said
