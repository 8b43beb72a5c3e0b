"""What is compared: ways to trace the same calls, each in a process of its own, so that none has the threads of another.

| side | what it is |
| --- | --- |
| undecorated | nothing |
| floor | a bare async wrapper: two `orjson.dumps` (inputs, output) and two `os.write` of exactly these bytes |
| verl-trace | ours, as it is by default: credentials, NaN and media are looked for |
| verl-trace+redact | the same with five more patterns of keys |
| weave, mlflow, trackio | verl's own decorator with that backend; weave with W&B's server on loopback, mlflow with SQLite |

A peer is measured where its packages can be imported: by this interpreter, or by one of those that VERL_TRACE_BENCH_PYTHONS
lists (paths, `:` between). `Child` is a side's process; a benchmark's file is its program too, see `serve`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["OURS", "PEERS", "SIDES", "Child", "Side", "children", "open_side", "serve"]

PEERS = ("weave", "mlflow", "trackio")
OURS = ("verl-trace", "verl-trace+redact")
SIDES = ("undecorated", "floor", *OURS, *PEERS)
REDACT = "*password*,*_token,secret,*email*,ssn"
PROJECT = "bench"
_ROUTE = "from verl.utils.rollout_trace import rollout_trace_op"
_NEEDED = {name: f"import {name}; {_ROUTE}" for name in PEERS}


class Side:
    """One way to trace. `decorate` is its decorator; `trajectory()` the block around a trajectory's calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def decorate(self, func: Any) -> Any:
        """`func` with its calls traced."""
        return func

    def trajectory(self, step: int, sample: int, rollout: int) -> Any:
        """The block around the calls of one trajectory."""
        return contextlib.nullcontext()

    def drain(self) -> None:
        """Let what was handed to background threads be done, so that it does not disturb whoever is measured next."""

    def finish(self) -> int | None:
        """End the recording; how many calls are really there, None where nothing is kept."""
        return None

    def stored(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


class Floor(Side):
    """Two writes a call, and no more than the bytes of its inputs and its output."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "payloads"
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.bytes = self.calls = 0

    def decorate(self, func: Any) -> Any:
        from orjson import dumps

        fd, write = self.fd, os.write

        async def traced(self: Any, **inputs: Any) -> Any:
            write(fd, dumps(inputs))
            result = await func(self, **inputs)
            write(fd, dumps(result))
            return result

        return traced

    def finish(self) -> int | None:
        os.close(self.fd)
        # values without anything between them: two a call
        return self.path.read_bytes().count(b"}{") // 2 + 1


class Ours(Side):
    """verl_trace, writing to files."""

    redact = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.environ.update(VERL_TRACE_DIR=str(folder), VERL_TRACE_REDACT=self.redact)
        os.environ.pop("VERL_TRACE_DISABLED", None)
        import verl_trace

        self.api = verl_trace
        self.decorate = verl_trace.rollout_trace_op  # type: ignore[method-assign]
        verl_trace.RolloutTraceConfig.init(PROJECT, "ours", "jsonl")

    def trajectory(self, step: int, sample: int, rollout: int) -> Any:
        return self.api.rollout_trace_attr(step=step, sample_index=sample, rollout_n=rollout)

    def finish(self) -> int | None:
        self.api.RolloutTraceConfig.reset()
        return count_calls(self.folder / "ours")


class Redacting(Ours):
    """The same with more keys to look for."""

    redact = REDACT


class Verl(Side):
    """verl's own decorator."""

    backend = ""
    project = PROJECT

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.environ["VERL_TRACE_DISABLED"] = "1"
        from verl.utils import rollout_trace

        self.api = rollout_trace
        self.decorate = rollout_trace.rollout_trace_op  # type: ignore[method-assign]
        rollout_trace.RolloutTraceConfig.init(self.project, "live", self.backend)
        self.client = rollout_trace.RolloutTraceConfig.get_client()

    def trajectory(self, step: int, sample: int, rollout: int) -> Any:
        return self.api.rollout_trace_attr(step=step, sample_index=sample, rollout_n=rollout)


class Weave(Verl):
    """Live Weave; the server's address is in the environment."""

    backend = "weave"
    project = f"demo/{PROJECT}"

    def drain(self) -> None:
        self.client.flush()

    def finish(self) -> int | None:
        self.client.flush()
        return sum(1 for _ in self.client.get_calls())


class Mlflow(Verl):
    """Live MLflow with its SQLite store."""

    backend = "mlflow"

    def __init__(self, folder: Path) -> None:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        os.environ["GIT_PYTHON_REFRESH"] = "quiet"
        super().__init__(folder)

    def drain(self) -> None:
        self.client.flush_trace_async_logging()

    def finish(self) -> int | None:
        self.drain()
        import mlflow

        traces = mlflow.search_traces(return_type="list", max_results=1_000_000)
        # one span of each trace is rollout_trace_attr's own
        return sum(len(trace.data.spans) - 1 for trace in traces)


class Trackio(Verl):
    """Live Trackio with its local store."""

    backend = "trackio"

    def __init__(self, folder: Path) -> None:
        os.environ.update(TRACKIO_DIR=str(folder), HF_HUB_OFFLINE="1", TRACKIO_SHOW_DASHBOARD="0")
        super().__init__(folder)

    def finish(self) -> int | None:
        self.client.finish()
        import sqlite3

        (path,) = self.folder.rglob(f"{PROJECT}*.db")
        with contextlib.closing(sqlite3.connect(path)) as db:
            return int(db.execute("select count(*) from metrics").fetchone()[0])


_CLASSES: dict[str, type[Side]] = {
    "undecorated": Side, "floor": Floor, "verl-trace": Ours, "verl-trace+redact": Redacting,
    "weave": Weave, "mlflow": Mlflow, "trackio": Trackio,
}  # fmt: skip


def open_side(name: str, folder: Path) -> Side:
    """Begin to record with this side, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    return _CLASSES[name](folder)


def count_calls(folder: Path) -> int:
    """Calls of a recording of ours that are there whole: both records, each parsed with its payload."""
    import io

    import orjson
    import zstandard

    begun, ended = set(), set()
    for path in sorted(folder.glob("*.jsonl*")):
        with path.open("rb") as file:
            plain: Any = file
            if path.suffix == ".zst":
                reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
                    file, read_across_frames=True
                )
                plain = io.BufferedReader(reader, 1 << 20)  # type: ignore[type-var]
            for line in plain:
                record = orjson.loads(line)
                if record["kind"] == "start" and record["inputs"]:
                    begun.add(record["id"])
                elif record["kind"] == "end" and record["output"]:
                    ended.add(record["id"])
    return len(begun & ended)


# -- processes ----------------------------------------------------------------------------------------------------------


def find_python(side: str) -> str | None:
    """The first interpreter that has what this side needs; None when none has."""
    if side not in PEERS:
        return sys.executable
    for python in (sys.executable, *filter(None, os.environ.get("VERL_TRACE_BENCH_PYTHONS", "").split(":"))):
        environment = {**os.environ, "VERL_TRACE_DISABLED": "1", "GIT_PYTHON_REFRESH": "quiet"}
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
        environment = {k: v for k, v in os.environ.items() if not k.startswith("VERL_TRACE_")} | extra
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
    """A process for each side that can run here; says of the others why not. `program` calls `serve` for `--child`."""
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
                extra["WEAVE_PRINT_CALL_LINK"] = "false"
            child = opened[side] = Child(program, side, folder / f"{number}", python, extra)
            stack.callback(child.close)
            child.ask("ready")
        yield opened


def serve(commands: Callable[[Side], dict[str, Callable[..., Any]]]) -> None:
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


def per_call_overhead() -> int:
    """ns that reading the clock twice takes."""
    clock = time.perf_counter_ns
    return min(-clock() + clock() for _ in range(1000))
