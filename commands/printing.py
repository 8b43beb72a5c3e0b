"""JSON on stdout: as it is for programs, and on a terminal so that nothing in it is obeyed."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from ..viewer.text import visible_json

__all__ = ["print_json", "record_writer"]


def print_json(text: str) -> None:
    """Print JSON. On a terminal control characters and the like are escaped, in JSON's own way: the same value."""
    typer.echo(visible_json(text) if sys.stdout.isatty() else text)


def record_writer() -> Callable[[bytes], object]:
    """What writes records with their newlines, byte for byte; on a terminal as `print_json`."""
    if not sys.stdout.isatty():
        return sys.stdout.buffer.write
    return lambda line: typer.echo(visible_json(line.decode("utf-8", "backslashreplace")), nl=False)
