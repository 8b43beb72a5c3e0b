"""The `verl-trace` command: the door to the commands, one file each in `commands/`, loaded when it is asked for."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .schemas.errors import VerlTraceError
from .schemas.secrets import hidden
from .viewer.text import visible

__all__ = ["app", "main"]

# A failure before any work was done: bad input, a missing package, a host that is down.
EXIT_CANNOT_START = 2

# One line each in `verl-trace --help`, short enough for 80 columns; each command's own --help says more.
COMMANDS = {
    "ls": "List runs, the steps of one run, or its trajectories.",
    "show": "Show a trajectory as a conversation and a tree of calls.",
    "grep": "Search every text of a run.",
    "cat": "Write the records of a run in time order, for jq.",
    "compare": "Put trajectories side by side, differences marked.",
    "stats": "Count a run: steps, ops, latencies, where the time went.",
    "sql": "Ask a run by SQL (DuckDB).",
    "export": "Write Parquet, chat JSONL, Chrome traces or OTLP.",
    "upload": "Replay a run, or some of it, into W&B Weave.",
    "status": "Say what of a run is stored in Weave, and what is not.",
    "prune": "Delete from a run what its Weave project holds.",
    "pack": "Pack runs, or some of them, into one tar or into parts.",
    "collect": "Bring runs from a node's own disk to shared storage.",
    "verify": "Say what of a run is whole, torn or damaged.",
    "repair": "Copy all that is readable of a run into a new folder.",
    "seal": "Compress what killed processes left as plain text.",
    "doctor": "Say whether verl would record here, and what to do if not.",
    "demo": "Record, upload to a Weave server here, and read back.",
}


class Commands(TyperGroup):
    """The commands by name. Loading all of them takes longer than most of what they do."""

    def __init__(self, **attributes: Any) -> None:
        self._loaded: dict[str, Any] = {}
        super().__init__(**attributes)

    @property  # type: ignore[override]
    def commands(self) -> dict[str, Any]:
        """All of them, in the order of the help."""
        return {name: self.get_command(None, name) for name in COMMANDS}

    @commands.setter
    def commands(self, value: Any) -> None:
        # typer knows of none
        pass

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One command; None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self._loaded:
            module = importlib.import_module(f".commands.{cmd_name}", __package__)
            alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
            alone.command(cmd_name, short_help=COMMANDS[cmd_name])(getattr(module, cmd_name))
            self._loaded[cmd_name] = typer.main.get_command(alone)
        return self._loaded[cmd_name]

    def invoke(self, ctx: Any) -> Any:
        """Run a command; `| head` that has seen enough ends it well."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # a connection to a server may break, too
            if not _reader_has_gone():
                raise
            _write_nowhere()
            raise typer.Exit from None


def _reader_has_gone() -> bool:
    """Whether nobody reads what is printed any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(found & (select.POLLERR | select.POLLHUP) for _, found in poll.poll(0))


def _write_nowhere() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    name="verl-trace",
    cls=Commands,
    help="Read recorded verl rollouts where they are, and replay them into W&B Weave.",
    no_args_is_help=True,
    # traces are hostile text: nothing in help or errors is ever parsed as markup, and no locals are shown
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"verl-trace {version('verl-trace')}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Common options."""
    # `doctor` has it among its findings
    if ctx.invoked_subcommand != "doctor":
        from .commands.variables import warnings

        # a log that is full keeps nobody from reading a run
        with contextlib.suppress(OSError):
            for text in warnings():
                typer.echo(f"verl-trace: warning: {visible(text)}", err=True)


def main() -> None:
    """Run the command line; errors of ours are one line with a hint, never a traceback."""
    for name in ("stdout", "stderr"):
        # what the caller has closed (`>&-`) is written nowhere
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # trace text must not crash a terminal with a poorer alphabet
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
        app()
    except VerlTraceError as error:
        # names of files and what servers answer are hostile text too
        hint = f" ({error.hint})" if error.hint else ""
        lines = [f"verl-trace: {visible(error)}{visible(hint)}", *(f"  {visible(line)}" for line in error.details)]
        print(hidden("\n".join(lines), os.environ.get("WANDB_API_KEY")), file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_CANNOT_START)
    except OSError as error:
        # a folder on the way that is closed, a current folder that is gone
        where = f"{error.filename}: " if error.filename else ""
        print(f"verl-trace: {visible(where)}{visible(error.strerror or error)}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_CANNOT_START)
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            # the interpreter's last flush must not complain either
            _write_nowhere()
