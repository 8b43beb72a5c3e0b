"""What is compared: ways to trace the same calls.

| side | what it is |
| --- | --- |
| undecorated | nothing |
| floor | a bare async wrapper: two `orjson.dumps` (inputs, output) and two `os.write` of exactly these bytes |
| least | the records of verl-trace by one function that checks nothing, see `least.py` |
| verl-trace | ours, as it is by default: credentials, NaN and media are looked for |
| verl-trace+redact | the same with five more patterns of keys |
| weave | verl's own decorator with that backend, and W&B's server on loopback |
| mlflow, trackio | the same with SQLite, and with its local store |

`processes` beside this file runs each in a process of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["OURS", "PEERS", "PROJECT", "SIDES", "WEAVE_STORE", "Side", "count_calls", "open_side"]

PEERS = ("weave", "mlflow", "trackio")
OURS = ("verl-trace", "verl-trace+redact")
SIDES = ("undecorated", "floor", "least", *OURS, *PEERS)
REDACT = "*password*,*_token,secret,*email*,ssn"
PROJECT = "bench"
# Names the file in which the Weave server keeps its data.
WEAVE_STORE = "BENCH_WEAVE_STORE"


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

    def drain(self) -> None:
        # as long as a segment waits to be compressed, there are two raw files
        deadline = time.monotonic() + 60
        while sum(1 for _ in self.folder.glob("*/*.jsonl")) > 1 and time.monotonic() < deadline:
            time.sleep(0.02)

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

    def stored(self) -> int:
        store = Path(os.environ[WEAVE_STORE])
        return sum(path.stat().st_size for path in store.parent.glob(f"{store.name}*"))


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

        traces: Any = mlflow.search_traces(return_type="list", max_results=1_000_000)
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
    if name == "least":
        from least import Least

        least: Side = Least(folder)
        return least
    return _CLASSES[name](folder)


def count_calls(folder: Path) -> int:
    """Calls of a recording of ours that are there whole: both records, each parsed with its payload."""
    import orjson
    import zstandard

    begun, ended = set(), set()
    for path in sorted((*folder.glob("*.jsonl"), *folder.glob("*.jsonl.zst"))):
        with path.open("rb") as file:
            plain: Any = file
            if path.suffix == ".zst":
                reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
                    file, read_across_frames=True
                )
                plain = io.BufferedReader(reader, 1 << 20)
            for line in plain:
                record = orjson.loads(line)
                if record["kind"] == "start" and record["inputs"]:
                    begun.add(record["id"])
                elif record["kind"] == "end" and record["output"]:
                    ended.add(record["id"])
    return len(begun & ended)
