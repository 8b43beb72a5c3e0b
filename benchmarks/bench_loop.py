"""What tracing does to the event loop: 256 trajectories at once, and a second thread that is always busy.

    python benchmarks/bench_loop.py [--scale 1] [--sides …]

A step is 256 trajectories of the mix; each LLM and tool call waits some hundred milliseconds, as for an engine. The lag
is how much later than asked for a timer of 5 ms fires. The other thread hashes, which frees the interpreter's lock, and
computes in Python, which does not. The floor writes too, and a write gives the lock away, which the other thread then
has. Sides are measured in turn, peers with 16 trajectories only; at the end every record is looked for.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import hashlib
import itertools
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from processes import check, children, serve
from sides import PEERS, Side
from workload import make_agent, trajectories

SIDES = ("undecorated", "floor", "verl-trace", *PEERS)
ROUNDS = 7
TOGETHER = 256
# Peers take minutes for as many.
PEERS_TOGETHER = 16
TICK = 0.005
WAIT = (0.05, 0.45)


class Step(NamedTuple):
    """Of one step: how long it took, in s, its lags, in ms, sorted, CPU seconds of the loop's thread, calls."""

    seconds: float
    lags: list[float]
    cpu: float
    calls: int


def commands(side: Side) -> dict[str, Callable[..., Any]]:
    """What the child of a side can be asked."""
    kind = type(make_agent(side.decorate))
    made = list(itertools.islice(trajectories("mix"), TOGETHER))

    async def lag(lags: list[float]) -> None:
        while True:
            asked = time.perf_counter() + TICK
            await asyncio.sleep(TICK)
            lags.append((time.perf_counter() - asked) * 1000)

    async def one(trajectory: Any, number: int, slow: float) -> None:
        agent, chance = kind(), random.Random(number)
        agent.wait = functools.partial(_wait, chance, slow)
        with side.trajectory(trajectory.step, trajectory.sample_index, trajectory.rollout_n):
            await agent.roll_out(trajectory)

    async def step(together: int, slow: float) -> Step:
        chosen, lags = made[:together], list[float]()
        watch = asyncio.create_task(lag(lags))
        cpu, begun = time.thread_time(), time.perf_counter()
        await asyncio.gather(*(one(trajectory, number, slow) for number, trajectory in enumerate(chosen)))
        took = time.perf_counter() - begun
        watch.cancel()
        return Step(took, sorted(lags), time.thread_time() - cpu, sum(trajectory.calls for trajectory in chosen))

    def busy(together: int, slow: float) -> Step:
        over = threading.Event()
        thread = threading.Thread(target=_be_busy, args=(over,))
        thread.start()
        try:
            return asyncio.run(step(together, slow))
        finally:
            over.set()
            thread.join()

    return {"step": busy}


async def _wait(chance: random.Random, slow: float) -> None:
    await asyncio.sleep(slow * chance.uniform(*WAIT))


def _be_busy(over: threading.Event) -> None:
    data = bytes(1 << 19)
    while not over.is_set():
        hashlib.sha256(data)
        sum(range(5000))


def bench(folder: Path, scale: float, sides: tuple[str, ...]) -> int:
    """Print the table; how many sides lack records."""
    steps: dict[str, list[Step]] = {}
    together = max(2, round(TOGETHER * min(1, scale)))
    with children(__file__, sides, folder) as running:
        for number in range(ROUNDS if scale >= 1 else 1):
            for name, child in running.items():
                if name in PEERS and number > 0:
                    continue
                count = min(together, PEERS_TOGETHER) if name in PEERS else together
                steps.setdefault(name, []).append(Step(*child.ask("step", together=count, slow=min(1, scale))))
                child.ask("drain")
        print_table(steps)
        return int(check(running, {name: sum(step.calls for step in taken) for name, taken in steps.items()}))


def print_table(steps: dict[str, list[Step]]) -> None:
    """One line a side; medians over the rounds."""
    titles = ("step s", "ratio", "lag p50", "p99", "max ms", "p99 added", "loop CPU s")
    print(f"{'':<13}" + "".join(f"{title:>11}" for title in titles))
    base: list[float] = []
    for name, taken in steps.items():
        rows = [(s.seconds, _at(s.lags, 0.5), _at(s.lags, 0.99), s.lags[-1], s.cpu) for s in taken]
        step, p50, p99, worst, cpu = (statistics.median(values) for values in zip(*rows, strict=True))
        base = base or [step, p99]
        figures = (step, step / base[0], p50, p99, worst, p99 - base[1], cpu)
        print(f"{name:<13}" + "".join(f"{figure:>11,.3f}" for figure in figures))


def _at(lags: list[float], share: float) -> float:
    return lags[min(len(lags) - 1, int(len(lags) * share))]


def main() -> None:
    """Measure, or be a side's child."""
    if "--child" in sys.argv:
        serve(commands)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="0.01 for a look whether it runs")
    parser.add_argument("--sides", default=",".join(SIDES), help="which, with commas between")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(bench(Path(folder), options.scale, tuple(options.sides.split(","))))


if __name__ == "__main__":
    main()
