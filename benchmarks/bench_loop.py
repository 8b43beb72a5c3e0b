"""What tracing does to the event loop: 256 trajectories at once, and a second thread that is always busy.

    python benchmarks/bench_loop.py [--scale 1] [--sides …]

A step is 256 trajectories of the mix; each LLM and tool call waits some hundred milliseconds, as for an engine. The lag
is how much later than asked for a timer of 5 ms fires. The other thread hashes, which frees the interpreter's lock, and
computes in Python, which does not. The floor writes too, and a write gives the lock away, which the other thread then
has. Sides are measured in turn. With peers, of which some take seconds for a trajectory, steps of a few trajectories
follow, and what one costs each side is compared. At the end every record is looked for.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import random
import statistics
import threading
import time
from pathlib import Path
from typing import NamedTuple

from processes import Commands, check, children, program
from sides import PEERS, Side
from table import tell
from workload import Trajectory, make_agent, trajectories

SIDES = ("undecorated", "floor", "verl-trace", *PEERS)
ROUNDS = 4
TOGETHER = 256
# Beside peers.
FEW = 4
TICK = 0.005
WAIT = (0.05, 0.45)


class Step(NamedTuple):
    """Of one step: how long it took, in s, its lags, in ms, sorted, CPU seconds of the loop's thread, calls."""

    seconds: float
    lags: list[float]
    cpu: float
    calls: int


def commands(side: Side) -> Commands:
    """What the child of a side can be asked."""
    kind = type(make_agent(side.decorate))
    source, made = trajectories("mix"), list[Trajectory]()

    async def lag(lags: list[float]) -> None:
        while True:
            asked = time.perf_counter() + TICK
            await asyncio.sleep(TICK)
            lags.append((time.perf_counter() - asked) * 1000)

    async def one(trajectory: Trajectory, number: int, slow: float) -> None:
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
        made.extend(itertools.islice(source, max(0, together - len(made))))
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
    """Print both tables; whether records are missing."""
    together, few = max(2, round(TOGETHER * scale)), max(2, round(FEW * scale))
    peers = [name for name in sides if name in PEERS]
    # apart, since servers and threads of peers would be beside the others' steps
    rows, missing = measure(folder / "apart", [name for name in sides if name not in PEERS], together, scale, ROUNDS)
    if {"undecorated", "verl-trace"} <= rows.keys():
        base, ours = rows["undecorated"], rows["verl-trace"]
        tell("step, of the undecorated one's time", ours.step / base.step, at_most=1.02)
        tell("lag added, 99th percentile", ours.p99 - base.p99, "ms", at_most=1.0)
        if peers:
            beside, more = measure(folder / "peers", ["undecorated", "verl-trace", *peers], few, scale, 1)
            compare((ours.cpu - base.cpu) / together, beside, few)
            missing |= more
    return int(missing)


def measure(folder: Path, sides: list[str], count: int, scale: float, rounds: int) -> tuple[dict[str, Row], bool]:
    """Have the sides do steps of so many trajectories in turn, print a table; its rows, whether records are missing."""
    folder.mkdir()
    steps: dict[str, list[Step]] = {}
    with children(__file__, tuple(sides), folder) as running:
        for _, name in itertools.product(range(rounds if scale >= 1 else 1), running):
            step = Step(*running[name].ask("step", together=count, slow=min(1, scale)))
            running[name].ask("drain")
            steps.setdefault(name, []).append(step)
        print(f"{count} trajectories at once")
        rows = print_table(steps)
        calls = {name: sum(step.calls for step in taken) for name, taken in steps.items()}
        return rows, bool(check(running, calls))


class Row(NamedTuple):
    """Medians over the rounds of a side: seconds of a step, lag in ms, CPU seconds of the loop's thread."""

    step: float
    p50: float
    p99: float
    worst: float
    cpu: float


def print_table(steps: dict[str, list[Step]]) -> dict[str, Row]:
    """One line a side; the rows."""
    titles = ("step s", "ratio", "lag p50", "p99", "max ms", "p99 added", "loop CPU s")
    print(f"{'':<13}" + "".join(f"{title:>11}" for title in titles))
    rows = {}
    for name, taken in steps.items():
        each = [(s.seconds, _at(s.lags, 0.5), _at(s.lags, 0.99), s.lags[-1], s.cpu) for s in taken]
        row = rows[name] = Row(*(statistics.median(values) for values in zip(*each, strict=True)))
        base = next(iter(rows.values()))
        figures = (row.step, row.step / base.step, row.p50, row.p99, row.worst, row.p99 - base.p99, row.cpu)
        print(f"{name:<13}" + "".join(f"{figure:>11,.3f}" for figure in figures))
    return rows


def compare(own: float, rows: dict[str, Row], count: int) -> None:
    """What a trajectory costs the loop's thread by each of the peers, as a multiple of `own`, what it costs by us."""
    print(f"a trajectory costs the loop's thread {own * 1000:.2f} ms by verl-trace")
    for name in PEERS:
        if name in rows:
            cost = (rows[name].cpu - rows["undecorated"].cpu) / count
            longer = rows[name].step - rows["undecorated"].step
            print(f"  {cost * 1000:,.0f} ms by {name}, {cost / own:,.0f} times; the step takes {longer:.1f} s longer")
            tell(f"loop's CPU of a trajectory, {name} / verl-trace", cost / own, "times")


def _at(lags: list[float], share: float) -> float:
    return lags[min(len(lags) - 1, int(len(lags) * share))]


if __name__ == "__main__":
    program(__doc__, commands, bench, SIDES)
