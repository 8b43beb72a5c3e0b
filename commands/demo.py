"""`verl-trace demo`: the whole way on this machine, from a rollout in several processes to the trees in Weave."""

from __future__ import annotations

import importlib.util
import shlex
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from ..demo.rollout import Plan
from ..demo.run import Recorded, Stored, make_plan, record, replay
from ..demo.show import tree_lines
from ..schemas.errors import MissingExtra
from ..schemas.wording import counted
from .printing import print_json

__all__ = ["demo"]

NEEDED = ("weave", "wandb", "requests", "rich")


def demo(
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder of runs to record into.")] = Path("runs"),
    no_upload: Annotated[bool, typer.Option("--no-upload", help="Record only; needs no extra and no server.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as one JSON object.")] = False,
) -> None:
    """Record a small multi-turn rollout, upload it to a Weave server on this machine, print the trees read back.

    The server is W&B's own, with SQLite storage, in an environment that the first use installs and keeps. It ends with
    this command; the recorded files stay.

    Exit codes: 0 every call has arrived; 1 one has not; 2 it could not start.

    Example: verl-trace demo --no-upload
    """
    if not no_upload:
        _require_extra()

    def say(text: str) -> None:
        typer.echo(text, err=as_json)

    plan = make_plan(folder)
    nouns = ((plan.steps, "step"), (plan.samples, "sample"), (plan.rollouts, "rollout"))
    size = " x ".join(counted(count, noun) for count, noun in nouns)
    say(f"Recording {size} in {counted(plan.workers, 'worker process')}.")
    say("One tool call raises; a third worker is killed in the middle of another.")
    recorded = record(plan)
    files = f"{counted(len(recorded.files), 'file')}, {counted(recorded.bytes, 'byte')}"
    say(f"{files}; worker {recorded.killed_pid} was ended by SIGKILL.")
    stored = None if no_upload else replay(plan, recorded, say)
    if as_json:
        print_json(orjson.dumps(_report(plan, recorded, stored), option=orjson.OPT_INDENT_2).decode())
    else:
        _print(recorded, stored)
    if stored is not None and stored.result.failed:
        raise typer.Exit(1)


def _require_extra() -> None:
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            raise MissingExtra("demo", "upload", module)


def _print(recorded: Recorded, stored: Stored | None) -> None:
    if stored is not None:
        result, skipped = stored.result, sum(stored.result.skipped.values())
        counts = f"{result.sent} sent + {skipped} skipped + {result.failed} failed"
        typer.echo(f"Uploaded: {counted(result.recorded, 'call')} recorded = {counts}.")
        typer.echo(f"\nRead back by W&B's own client, weave {metadata.version('weave')}:\n")
        for line in tree_lines(stored.calls):
            typer.echo(line)
    # to be copied into a shell, whatever the folder is called
    run, runs = shlex.quote(str(recorded.folder)), shlex.quote(str(recorded.folder.parent))
    typer.echo(
        f"""
Next:
  verl-trace ls {runs}
  zstdgrep -h '"status":"error"' {run}/*
into your own W&B, with WANDB_API_KEY set or after `wandb login`:
  verl-trace upload {run} --project verl-trace-demo
and in the environment where verl trains:
  verl-trace doctor"""
    )


def _report(plan: Plan, recorded: Recorded, stored: Stored | None) -> dict[str, Any]:
    """Plain data for `--json`."""
    return {
        "project": plan.project,
        "experiment": plan.experiment,
        "folder": str(recorded.folder),
        "files": [path.name for path in recorded.files],
        "bytes": recorded.bytes,
        "killed_pid": recorded.killed_pid,
        "upload": stored and stored.result.as_json(),
        "calls": stored and [call.as_json() for call in stored.calls],
    }
