"""docs/cli.md is what the code says, and every command shows how it is used."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from verl_trace.cli import app
from verl_trace.commands.reference import reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
SCRIPT = Path(sys.executable).with_name("verl-trace")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
FOLDERS = ("commands", "reader", "uploader", "collector", "viewer", "wandb_runs", "schemas", "demo", "verl_plugin")


def test_the_page_is_made_from_the_code() -> None:
    """Word for word."""
    assert PAGE.read_text(encoding="utf-8") == reference(app), "run `make docs`"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_an_example(name: str) -> None:
    """Of itself, as it is typed, with options that exist."""
    example = COMMANDS[name].help.rpartition("Example: ")[2].split()

    assert example[:2] == ["verl-trace", name]
    known = {flag for parameter in COMMANDS[name].params for flag in parameter.opts}
    used = [word.partition("=")[0] for word in example[2:] if word.startswith("--")]
    assert [flag for flag in used if flag not in known] == []


def test_what_is_written_is_named_alike() -> None:
    """`-o` is `--out`, of every command that writes a file or a folder of a name of the user's."""
    found = {
        name: parameter.opts for name in COMMANDS for parameter in COMMANDS[name].params if parameter.name == "out"
    }

    assert found == {name: ["--out", "-o"] for name in ("export", "pack", "repair", "sql")}


def test_no_message_names_a_page_that_is_not_installed() -> None:
    """A wheel has no docs folder: help, hints and remedies say it themselves, or name a command's --help."""
    found = []
    for folder in FOLDERS:
        for path in (PAGE.parents[1] / folder).glob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            # those that are for readers of the code
            docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            found += [
                f"{path}:{node.lineno}: {node.value}"
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
                if re.search(r"docs/|\w\.md\b", node.value)
            ]
    found += [name for name, command in COMMANDS.items() if re.search(r"docs/|\w\.md\b", command.help)]

    assert found == []


def test_the_shell_completes_commands() -> None:
    """Typer's completion, asked as bash asks it."""
    asked = {"_VERL_TRACE_COMPLETE": "complete_bash", "COMP_WORDS": "verl-trace s", "COMP_CWORD": "1"}
    done = subprocess.run([SCRIPT], env=os.environ | asked, capture_output=True, text=True, timeout=60, check=False)

    assert {"show", "stats", "sql", "seal"} <= set(done.stdout.split())
