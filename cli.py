"""The `verl-trace` command: the door to the commands, one file each in `commands/`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from .commands.cat import cat
from .commands.collect import collect
from .commands.compare import compare
from .commands.demo import demo
from .commands.doctor import doctor
from .commands.export import export
from .commands.grep import grep
from .commands.ls import ls
from .commands.pack import pack
from .commands.prune import prune
from .commands.repair import repair
from .commands.seal import seal
from .commands.show import show
from .commands.sql import sql
from .commands.stats import stats
from .commands.status import status
from .commands.upload import upload
from .commands.verify import verify
from .schemas.errors import VerlTraceError
from .viewer.text import visible

__all__ = ["app", "main"]

# A failure before any work was done: bad input, a missing package, a host that is down.
EXIT_CANNOT_START = 2

app = typer.Typer(
    name="verl-trace",
    help="Read recorded verl rollouts where they are, and replay them into W&B Weave.",
    no_args_is_help=True,
    # traces are hostile text: nothing in help or errors is ever parsed as markup, and no locals are shown
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
# One line each in `verl-trace --help`, short enough for 80 columns; each command's own --help says more.
COMMANDS: dict[Callable[..., None], str] = {
    ls: "List runs, the steps of one run, or its trajectories.",
    show: "Show a trajectory as a conversation and a tree of calls.",
    grep: "Search every text of a run.",
    cat: "Write the records of a run in time order, for jq.",
    compare: "Put trajectories side by side, differences marked.",
    stats: "Count a run: steps, ops, latencies, where the time went.",
    sql: "Ask a run by SQL (DuckDB).",
    export: "Write Parquet, chat JSONL, Chrome traces or OTLP.",
    upload: "Replay a run, or some of it, into W&B Weave.",
    status: "Say what of a run is stored in Weave, and what is not.",
    prune: "Delete from a run what its Weave project holds.",
    pack: "Pack runs, or some of them, into one tar or into parts.",
    collect: "Bring runs from a node's own disk to shared storage.",
    verify: "Say what of a run is whole, torn or damaged.",
    repair: "Copy all that is readable of a run into a new folder.",
    seal: "Compress what killed processes left as plain text.",
    doctor: "Say whether verl would record here, and what to do if not.",
    demo: "Record, upload to a Weave server here, and read back.",
}
for command, short in COMMANDS.items():
    app.command(short_help=short)(command)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"verl-trace {version('verl-trace')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Common options."""


def main() -> None:
    """Run the command line; errors of ours are one line with a hint, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # trace text must not crash a terminal with a poorer alphabet
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
        app()
    except VerlTraceError as error:
        # names of files and what servers answer are hostile text too
        hint = f" ({error.hint})" if error.hint else ""
        lines = [f"verl-trace: {visible(error)}{visible(hint)}", *(f"  {visible(line)}" for line in error.details)]
        print("\n".join(lines), file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_CANNOT_START)
    except BrokenPipeError:
        # `| head` has seen enough; the interpreter's last flush must not complain about it either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        # a folder on the way that is closed, a current folder that is gone
        where = f"{error.filename}: " if error.filename else ""
        print(f"verl-trace: {visible(where)}{visible(error.strerror or error)}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_CANNOT_START)
