"""The command as a whole: its door, its help, its errors."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from verl_trace.cli import COMMANDS as KNOWN
from verl_trace.cli import app

COMMANDS = sorted(KNOWN)
SCRIPT = Path(sys.executable).with_name("verl-trace")


def verl_trace(*arguments: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    keep = {name: value for name, value in os.environ.items() if not name.startswith("VERL_TRACE_")}
    return subprocess.run(
        [SCRIPT, *arguments], cwd=cwd, env=keep | more, capture_output=True, text=True, timeout=60, check=False
    )


def test_version(tmp_path: Path) -> None:
    """The installed package's."""
    done = verl_trace("--version", cwd=tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"verl-trace {version('verl-trace')}\n", "")


def test_help_names_every_command() -> None:
    """In a line of its own, with what it is for, not cut off on a terminal of 80 columns."""
    shown = CliRunner().invoke(app, ["--help"], terminal_width=80).output.splitlines()
    lines = {line.split()[0]: line.split()[1:] for line in shown if line.startswith("  ") and line.split()}

    assert {"ls", "upload", "doctor", "demo"} <= set(COMMANDS)
    for command in COMMANDS:
        assert len(lines[command]) > 2, command
        assert not lines[command][-1].endswith(("...", "…")), command


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_has_help(command: str) -> None:
    """So that `--help` says enough to use it."""
    group = typer.main.get_command(app)
    known = group.get_command(None, command)  # type: ignore[attr-defined]
    assert len(known.help) > 20
    for parameter in known.params:
        assert getattr(parameter, "help", None), parameter.name

    shown = CliRunner().invoke(app, [command, "--help"])
    assert (shown.exit_code, shown.output.split()[:1]) == (0, ["Usage:"])


@pytest.mark.parametrize("command", ["ls", "upload", "verify"])
@pytest.mark.parametrize("name", ["nowhere", "[bold]x[/bold]", "a\x1b[31mb", "x\ny", "\u202eevil"])
def test_bad_input_is_one_line_without_escapes(tmp_path: Path, command: str, name: str) -> None:
    """On stderr, with exit code 2; markup and control characters of the name are shown and not obeyed."""
    done = verl_trace(command, name, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("verl-trace: ")
    assert "no such file or folder" in done.stderr
    assert not set("\x1b\u202e") & set(done.stderr)
    assert name.isprintable() <= (name in done.stderr)


def test_unknown_words_are_usage_errors(tmp_path: Path) -> None:
    """Exit code 2 and the usage, no traceback."""
    for arguments in (("lss",), ("ls", "--jsn"), ("ls", "a", "b")):
        done = verl_trace(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("Usage:")


def test_a_reader_that_leaves_early(tmp_path: Path) -> None:
    """`verl-trace --help | head -1`: no complaint, also from the interpreter's last flush."""
    command = f"'{SCRIPT}' ls --help | head -1; '{SCRIPT}' --help | true"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert done.stderr == ""


def test_a_mistyped_variable_is_told_by_every_command(tmp_path: Path) -> None:
    """Once, on stderr, since it is not heard; what is like no setting, and settings themselves, are not remarked on."""
    found = {
        "VERL_TRACE_DIRR": str(tmp_path),
        "VERL_TRACE_DIR": "none",
        "VERL_TRACE_ZZZZZZ": "1",
        "VERL_TRACE_CACHE": "c",
    }
    done = verl_trace("ls", cwd=tmp_path, **found)
    doctor = verl_trace("doctor", "--no-upload", "--no-ray", cwd=tmp_path, VERL_TRACE_DIRR="x")

    warning, error = done.stderr.splitlines()
    assert warning == "verl-trace: warning: VERL_TRACE_DIRR is no setting: did you mean VERL_TRACE_DIR?"
    assert (done.returncode, done.stdout, "no such file or folder" in error) == (2, "", True)
    assert (doctor.stdout.count("VERL_TRACE_DIRR"), doctor.stderr) == (1, "")


def test_a_warning_that_cannot_be_written_stops_no_command() -> None:
    """A log on a full disk."""
    environment = {**os.environ, "VERL_TRACE_DIRR": "x"}
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [SCRIPT, "ls", "--help"], stdout=subprocess.PIPE, stderr=full, env=environment, timeout=60, check=False
        )

    assert (done.returncode, b"List recorded runs" in done.stdout) == (0, True)


def test_the_command_line_starts_without_heavy_packages() -> None:
    """weave, wandb and requests belong to an extra, and even where they are installed only an upload loads them."""
    names = ("weave", "wandb", "requests", "numpy", "torch", "pydantic", "verl")
    code = f"import sys, verl_trace.cli; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", ["ls", "doctor"])
def test_current_folder_that_is_gone(command: str, tmp_path: Path) -> None:
    """What the system refuses before a command can say more is one line, not a traceback."""
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f'rmdir "{gone}" && exec "{SCRIPT}" {command}'
    keep = {name: value for name, value in os.environ.items() if not name.startswith("VERL_TRACE_")}
    done = subprocess.run(
        ["/bin/sh", "-c", program], cwd=gone, env=keep, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2
    assert done.stderr == "verl-trace: No such file or directory\n"
