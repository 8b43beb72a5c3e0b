"""What an upload costs, beside the same calls made with W&B's own client, and a bare client that posts ready bodies.

    python benchmarks/bench_upload.py [--scale 1] [--kinds M] [--rounds 3] [--servers null null-50ms weave]

Sides, each in a process of its own, in turn:

| side | what it does |
| --- | --- |
| bare | posts the requests of the upload, made ready before the clock starts, over as many connections |
| verl-trace | `upload` of the sealed run, with its questions and its check afterwards |
| weave | `WeaveClient.create_call` and `finish_call` with the recorded values, until `finish()` has returned |

`null` answers and stores nothing (`null_server.py`), with 0 or 50 ms before each answer; `weave` is W&B's trace server
on SQLite. Each run ends by asking the server: every call has arrived, none twice. CPU is that of the client's process.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import logging
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from made_run import make_run
from table import tell

from verl_trace.demo.server_env import Server, start_server
from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.uploader import RunReport, upload
from verl_trace.uploader.ops import op_object_id
from verl_trace.uploader.plan import Plan
from verl_trace.uploader.replay import WORKERS, Options, settling_of

HERE = Path(__file__).resolve().parent
SIDES = ("bare", "verl-trace", "weave")
SERVERS = ("null", "null-50ms", "weave")
KINDS = ("S", "M", "L", "mix")
KEY = "local" * 8
# Percent of a bare client's speed.
TARGETS = {"null": 85}
# Bytes of records at scale 1.
SIZE = 50_000_000
# W&B's client takes a tenth of a second for a call of size M: a sample of the run is enough to know.
WEAVE_CALLS = 30
PATH = "/v2/bench/{project}/calls/complete"


class Cost(NamedTuple):
    """Of one run of one side: calls, bytes of their requests (0: not known), seconds, seconds of CPU."""

    calls: int
    bytes: int
    wall: float
    cpu: float


# -- the sides, in a process of their own ------------------------------------------------------------------------------


def clocked(work: Callable[[], int], size: int = 0) -> Cost:
    """How long it took; `work` gives the number of calls."""
    wall, cpu = time.perf_counter(), time.process_time()
    calls = work()
    return Cost(calls, size, time.perf_counter() - wall, time.process_time() - cpu)


def bodies(run: Path, project: str) -> list[tuple[bytes, int]]:
    """The requests of an upload, with the number of calls in each."""
    (found,) = find_runs(run)
    settling = settling_of(found, Options())
    plan = Plan(RunReport("", "", ""), f"bench/{project}", op_object_id, settling)
    batches = plan.batches(iter_trajectories(found))
    return [
        (b'{"batch":[' + b",".join(b"".join(call.complete()) for call in batch.calls) + b"]}", len(batch.calls))
        for batch in batches
    ]


def bare(url: str, run: Path, project: str) -> Cost:
    """Post what is ready."""
    ready = bodies(run, project)
    work: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    for body, _ in ready:
        work.put(body)
    parts = urlsplit(url)
    trouble: list[object] = []

    def post() -> None:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        headers = {"Content-Type": "application/json", "Authorization": "Basic YXBpOmtleQ=="}
        with contextlib.suppress(queue.Empty):
            while True:
                connection.request("POST", PATH.format(project=project), work.get_nowait(), headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    trouble.append(answer.status)
        connection.close()

    def all_of_them() -> int:
        threads = [threading.Thread(target=post) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(calls for _, calls in ready)

    cost = clocked(all_of_them, sum(len(body) for body, _ in ready))
    if trouble:
        raise SystemExit(f"the server refused {len(trouble)} requests: {trouble[0]}")
    return cost


def ours(url: str, run: Path, project: str) -> Cost:
    """`upload`, ledger and check included."""
    from verl_trace.uploader import target

    # W&B's package takes seconds to import, as it does for the other side
    target.resolve(f"bench/{project}")
    reports: list[RunReport] = []

    def work() -> int:
        with tempfile.TemporaryDirectory() as state:
            result = upload(run, project=f"bench/{project}", state_dir=state)
        reports.extend(result.runs)
        if result.failed or result.runs[0].checked != result.sent:
            raise SystemExit(f"not all arrived: {result.as_json()}")
        return result.sent

    cost = clocked(work)
    return cost._replace(bytes=reports[0].bytes)


def weave_client(url: str, run: Path, project: str) -> Cost:
    """W&B's own client, with the recorded values as Python objects."""
    import orjson
    import weave
    from weave.trace.settings import UserSettings

    (found,) = find_runs(run)
    trajectories = []
    count = 0
    for trajectory in iter_trajectories(found):
        trajectories.append([(call, *map(orjson.loads, (call.inputs or b"{}", call.output() or b"null")))
                             for call in trajectory.calls])  # fmt: skip
        count += len(trajectory.calls)
        if count >= WEAVE_CALLS:
            break
    logging.disable(logging.WARNING)
    client = weave.init(f"bench/{project}", settings=UserSettings(print_call_link=False))

    def work() -> int:
        for calls in trajectories:
            open_calls: dict[str, Any] = {}
            for call, inputs, _ in calls:
                with weave.attributes(call.attributes):
                    above = open_calls.get(call.parent_id or "")
                    open_calls[call.id] = client.create_call(call.op, inputs, parent=above, use_stack=False)
            for call, _, output in reversed(calls):
                client.finish_call(open_calls[call.id], output)
        client.finish()
        return count

    return clocked(work)


PROGRAMS = {"bare": bare, "verl-trace": ours, "weave": weave_client}


# -- the other process -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def null_server(latency: float) -> Iterator[Server]:
    """A server that only counts, for one run."""
    command = [sys.executable, str(HERE / "null_server.py"), "--latency-ms", str(latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Server(process.stdout.readline().strip(), "bench", KEY, Path(os.devnull))
        finally:
            process.terminate()


def arrived(server: Server, project: str, is_null: bool) -> tuple[int, int]:
    """How many calls the server has of the project, and how many came twice."""
    if is_null:
        with urllib.request.urlopen(f"{server.url}/counts") as answer:
            counts = json.load(answer)
        return counts["calls"], counts["twice"]
    body = json.dumps({"project_id": f"bench/{project}"}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Basic YXBpOmtleQ=="}
    request = urllib.request.Request(f"{server.url}/calls/query_stats", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["count"], 0


def measured(server: Server, side: str, run: Path, project: str, is_null: bool) -> Cost:
    """One run of one side against this server, all calls accounted for."""
    environment = os.environ | server.client_environment() | {"WANDB_ENTITY": "bench"}
    command = [sys.executable, str(HERE / "bench_upload.py"), "--side", side, "--run", str(run), "--project", project]
    done = subprocess.run([*command, "--url", server.url], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side}: {done.stderr[-2000:]}")
    cost = Cost(*json.loads(done.stdout.strip().splitlines()[-1]))
    if arrived(server, project, is_null) != (cost.calls, 0):
        raise SystemExit(f"{side}: {cost.calls} calls were sent, the server has {arrived(server, project, is_null)}")
    return cost


def rounds_of(kind: str, run: Path, where: str, rounds: int, sides: list[str]) -> dict[str, list[Cost]]:
    """All sides in turn, so that whatever else the machine does meets all of them."""
    taken: dict[str, list[Cost]] = {side: [] for side in sides}
    numbers = itertools.count()
    for _ in range(rounds):
        for side in sides:
            project = f"{kind}-{side}-{next(numbers)}"
            if where == "weave":
                # W&B's SQLite storage keeps one call an id, whatever the project: a server for each run
                with tempfile.TemporaryDirectory() as folder, start_server(Path(folder) / "weave.db") as server:
                    taken[side].append(measured(server, side, run, project, False))
            else:
                with null_server(50 if where == "null-50ms" else 0) as server:
                    taken[side].append(measured(server, side, run, project, True))
    return taken


def report(kind: str, where: str, taken: dict[str, list[Cost]]) -> None:
    """A line a side; ratios are medians of the rounds' own."""

    def median(values: Iterator[float]) -> float:
        return statistics.median(list(values))

    for side, costs in taken.items():
        speed = median(cost.calls / cost.wall for cost in costs)
        megabytes = median(cost.bytes / cost.wall / 1e6 for cost in costs)
        cpu = median(1e6 * cost.cpu / cost.calls for cost in costs)
        line = f"{kind:<4} {where:<10} {side:<11} {costs[0].calls:>8,} calls {speed:>9,.0f} calls/s"
        line += f" {megabytes:>7,.0f} MB/s" if costs[0].bytes else f"{'':>13}"
        line += f" {cpu:>9,.0f} µs CPU/call"
        if side == "verl-trace":
            pairs = [zip(costs, taken[other], strict=True) for other in ("bare", "weave") if other in taken]
            for other, both in zip((name for name in ("bare", "weave") if name in taken), pairs, strict=True):
                if other == "bare":
                    share = median((mine.calls / mine.wall) / (its.calls / its.wall) for mine, its in both)
                    line += f"  {100 * share:.0f} % of bare"
                    tell(f"{kind}, {where}: speed, of a bare client's", 100 * share, "%", at_least=TARGETS.get(where))
                else:
                    less = median((its.cpu / its.calls) / (mine.cpu / mine.calls) for mine, its in both)
                    line += f"  {less:.0f}x less CPU than weave"
                    tell(f"{kind}, {where}: CPU of weave's client, of ours", less, "times", at_least=50)
        print(line, flush=True)


def main() -> None:
    """Measure, or be one side."""
    parser = argparse.ArgumentParser(description="Cost of an upload.")
    parser.add_argument("--scale", type=float, default=1.0, help="1: each run has 50 MB of records")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["M"])
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--runs", type=Path, help="folder to keep the made runs in")
    for hidden in ("--side", "--run", "--project", "--url"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        print(json.dumps(PROGRAMS[asked.side](asked.url, Path(asked.run), asked.project)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for kind in asked.kinds:
            run = (asked.runs or Path(folder)) / f"{kind}-{asked.scale:g}"
            if not run.is_dir():
                make_run(run, int(asked.scale * SIZE), kind)
            for where in asked.servers:
                # W&B's server stores a few dozen calls of size M a second
                rounds = 1 if where == "weave" else asked.rounds
                report(kind, where, rounds_of(kind, run, where, rounds, asked.sides))


if __name__ == "__main__":
    main()
