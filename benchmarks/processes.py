"""A process for each side that is compared, so that none has the threads of another; they are measured in turn.

A peer is measured where its packages can be imported: by this interpreter, or by one of those that
VERL_TRACE_BENCH_PYTHONS lists (paths, `:` between). A benchmark's file is the program of its children too, see
`program`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sides import OURS, PEERS, WEAVE_STORE, Side, open_side

__all__ = ["Child", "Commands", "check", "children", "program"]

# What a side's process can be asked, by name.
Commands = dict[str, Callable[..., Any]]

_ROUTE = "from verl.utils.rollout_trace import rollout_trace_op"
# Peers that look for git, or want to report to their makers, lose seconds where there is none, and no network.
_QUIET = {"GIT_PYTHON_REFRESH": "quiet", "WANDB_ERROR_REPORTING": "false"}
_NEEDED = {name: f"import {name}; {_ROUTE}" for name in PEERS}


def program(
    about: str | None,
    commands: Callable[[Side], Commands],
    bench: Callable[[Path, float, tuple[str, ...]], int],
    sides: tuple[str, ...],
) -> None:
    """What a benchmark does when it is started: measure, or be the child of a side.

    `bench` gets a folder, the scale and the sides that were asked for, and says how many of ours lack records.
    """
    if "--child" in sys.argv:
        serve(commands)
        return
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="0.01 for a look whether it runs")
    parser.add_argument("--sides", default=",".join(sides), help="which, with commas between")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        sys.exit(bench(Path(folder), min(1.0, options.scale), tuple(options.sides.split(","))))


@functools.cache
def find_python(side: str) -> str | None:
    """The first interpreter that has what this side needs; None when none has."""
    if side not in PEERS:
        return sys.executable
    here = all(importlib.util.find_spec(package) for package in ("verl", side))
    for python in (
        *([sys.executable] if here else []),
        *filter(None, os.environ.get("VERL_TRACE_BENCH_PYTHONS", "").split(":")),
    ):
        environment = {**os.environ, **_QUIET, "VERL_TRACE_DISABLED": "1"}
        done = subprocess.run([python, "-c", _NEEDED[side]], env=environment, capture_output=True, check=False)
        if done.returncode == 0:
            return python
    return None


class Child:
    """The process of one side. `ask(command, …)` runs that function of the benchmark in it."""

    def __init__(self, program: str, side: str, folder: Path, python: str, extra: dict[str, str]) -> None:
        self.side = side
        words = [python, program, "--child", side, str(folder)]
        log = (folder.parent / f"{folder.name}.log").open("wb")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("VERL_TRACE_")} | _QUIET | extra
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True
        )
        self._log = log.name

    def ask(self, command: str, **arguments: Any) -> Any:
        """The answer of the child.

        Raises:
            RuntimeError: it died; the message ends with what it said.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([command, arguments]) + "\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            said = Path(self._log).read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.side} failed at {command}: {said}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def children(program: str, sides: tuple[str, ...], folder: Path) -> Iterator[dict[str, Child]]:
    """A process for each side that can run here; says of the others why not. `program` is the benchmark's file."""
    with contextlib.ExitStack() as stack:
        opened: dict[str, Child] = {}
        for number, side in enumerate(sides):
            python = find_python(side)
            if python is None:
                print(f"not measured: {side} (verl and {side} are not both installed)")
                continue
            extra: dict[str, str] = {}
            if side == "weave":
                from verl_trace.demo.server_env import start_server

                extra = stack.enter_context(start_server(folder / f"{number}.db")).client_environment()
                extra |= {"WEAVE_PRINT_CALL_LINK": "false", WEAVE_STORE: str(folder / f"{number}.db")}
            child = opened[side] = Child(program, side, folder / f"{number}", python, extra)
            stack.callback(child.close)
            child.ask("ready")
        yield opened


def serve(commands: Callable[[Side], Commands]) -> None:
    """Be the child of `sys.argv`: `--child SIDE FOLDER`. Answers go where the standard output was."""
    _, _, name, folder = sys.argv
    # libraries print to the standard output
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    side = open_side(name, Path(folder))
    known = {"ready": lambda: True, "drain": side.drain, "finish": side.finish, "stored": side.stored}
    known |= commands(side)
    for line in sys.stdin:
        command, arguments = json.loads(line)
        out.write(json.dumps(known[command](**arguments)) + "\n")
        out.flush()


def check(running: dict[str, Child], counted: dict[str, int]) -> int:
    """Look for the records of all calls; how many sides of ours lack some."""
    lacking = 0
    for name, child in running.items():
        there, made = child.ask("finish"), counted[name]
        if there is not None:
            lacking += there != made and name in OURS
            print(f"{name}: {there:,} of {made:,} calls are there" + ("" if there == made else "  LACKING"))
    return lacking
