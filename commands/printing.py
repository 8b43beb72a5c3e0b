"""Output: JSON as it is for programs, and on a terminal so that nothing in it is obeyed; and the file of --out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import typer

from ..schemas.errors import BadTarget
from ..viewer.text import visible_json

__all__ = ["opened", "print_json", "record_writer"]


def print_json(text: str) -> None:
    """Print JSON. On a terminal control characters and the like are escaped, in JSON's own way: the same value."""
    typer.echo(visible_json(text) if sys.stdout.isatty() else text)


def record_writer() -> Callable[[bytes], object]:
    """What writes records with their newlines, byte for byte; on a terminal as `print_json`."""
    if not sys.stdout.isatty():
        return sys.stdout.buffer.write
    return lambda line: typer.echo(visible_json(line.decode("utf-8", "backslashreplace")), nl=False)


def opened(file: Path, out: Path) -> BinaryIO:
    """A new `file` on its way to `out`, or `out` itself.

    Raises:
        BadTarget: it cannot be written there.
    """
    try:
        return file.open("wb" if file == out else "xb")
    except OSError as error:
        raise BadTarget(
            f"--out {out}: {error.strerror}", hint="name a file in a folder that is there and can be written"
        ) from None
