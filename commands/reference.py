"""docs/cli.md, made from the commands themselves by `make docs`."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["reference"]

_HEAD = """# The commands

Made from the code by `make docs`; a test holds the two together.
`verl-trace COMMAND --help` prints the same. `verl-trace --install-completion` teaches the shell to complete commands
and options.
"""


def reference(app: typer.Typer) -> str:
    """The page."""
    group: Any = typer.main.get_command(app)
    parts = [_HEAD]
    for name, command in group.commands.items():
        parts.append(f"## verl-trace {name}\n\n{_help(command.help or '')}\n\n{_parameters(command.params)}")
    return "\n".join(parts)


def _help(text: str) -> str:
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]
    return "\n\n".join(_example(paragraph) for paragraph in paragraphs)


def _example(paragraph: str) -> str:
    if not paragraph.startswith("Example: "):
        return paragraph
    return f"```sh\n{paragraph.removeprefix('Example: ')}\n```"


def _parameters(parameters: list[Any]) -> str:
    lines = ["| | |", "| --- | --- |"]
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper()
            told = f"`{name}`"
        else:
            told = ", ".join(f"`{flag}`" for flag in [*parameter.opts, *parameter.secondary_opts])
            if not parameter.is_flag:
                told += f" {parameter.metavar or ''}".rstrip()
        text = " ".join((parameter.help or "").split()).replace("|", "\\|")
        lines.append(f"| {told} | {text} |")
    return "\n".join(lines) + "\n"
