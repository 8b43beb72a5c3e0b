"""What a traced async call costs its caller, against the floor and against verl's own backends.

    python benchmarks/bench_hot_path.py [--scale 1]      which sides: see sides.py

All sides are measured in turn, round after round, each in a process of its own; a figure is the median over all rounds.
For L a call is one turn of eight, and its median the mean of the eight turns' medians. The worst of a hundred calls is
given as a multiple of the median of calls like it. At the end every record of every side is looked for.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from processes import Commands, check, children, program
from sides import PEERS, SIDES, Side
from table import tell
from workload import REQUEST, SAMPLING, make_agent, trajectories

ROUNDS = 20
# Calls a round: about 30 ms of each of the fast sides.
CALLS = {"S": 2000, "M": 320, "L": 96}
# What a call may take, of the floor's time.
AT_MOST = {"S": 2.0, "M": 1.2, "L": 1.1}
# Calls made so far, by side.
counted: dict[str, int] = {}
# Peers take up to a second a call: fewer calls, in the first rounds only.
PEER_ROUNDS, PEER_CALLS = 2, {"S": 160, "M": 12, "L": 8}


class Cost(NamedTuple):
    """Of one side and kind: µs a call, and the worst of a hundred as a multiple of it."""

    median: float
    worst: float


def commands(side: Side) -> Commands:
    """What the child of a side can be asked."""
    agent = make_agent(side.decorate)
    made = {kind: list(itertools.islice(trajectories(kind), 2 if kind == "L" else 8)) for kind in CALLS}
    numbers = itertools.count()
    clock = time.perf_counter_ns

    async def measure(kind: str, calls: int) -> list[list[int]]:
        """ns of each call, by turn."""
        took: list[list[int]] = [[] for _ in made[kind][0].turns]
        left = calls
        for trajectory in itertools.cycle(made[kind]):
            with side.trajectory(1, next(numbers), 0):
                for number, (turn, ids) in enumerate(zip(trajectory.turns, trajectory.prompts(), strict=True)):
                    if turn.answer is not None:
                        agent.results = iter((turn.answer,))
                        begun = clock()
                        await agent.generate(request_id=REQUEST, prompt_ids=ids, sampling_params=SAMPLING)
                    else:
                        agent.results = iter((turn.result,))
                        begun = clock()
                        await agent.execute(instance_id=REQUEST, parameters=turn.parameters)
                    took[number].append(clock() - begun)
                    left -= 1
            if left <= 0:
                return took
        raise AssertionError

    return {"measure": lambda kind, calls: asyncio.run(measure(kind, calls))}


def cost(turns: list[list[int]]) -> Cost:
    """Of the times of all rounds, by turn."""
    medians = [statistics.median(times) for times in turns]
    worst = sorted(took / median for times, median in zip(turns, medians, strict=True) for took in times)
    return Cost(statistics.fmean(medians) / 1000, worst[min(len(worst) - 1, len(worst) * 99 // 100)])


def bench(folder: Path, scale: float, sides: tuple[str, ...]) -> int:
    """Print the tables; how many sides lack records."""
    taken: dict[tuple[str, str], list[list[int]]] = {}
    with children(__file__, sides, folder) as running:
        for kind in CALLS:
            for number in range(max(1, round(ROUNDS * min(1, scale * 10)))):
                for name, child in running.items():
                    calls = (PEER_CALLS if name in PEERS else CALLS)[kind]
                    if name in PEERS and number >= PEER_ROUNDS:
                        continue
                    calls = max(1, round(calls * min(1, scale)))
                    turns = child.ask("measure", kind=kind, calls=calls)
                    child.ask("drain")
                    if number or scale < 1 or name in PEERS:
                        # the first round warms up
                        so_far = taken.setdefault((name, kind), [[] for _ in turns])
                        for all_times, times in zip(so_far, turns, strict=True):
                            all_times += times
                    counted[name] = counted.get(name, 0) + sum(map(len, turns))
        costs = {both: cost(turns) for both, turns in taken.items()}
        print_table(list(running), costs)
        for_table(list(running), costs)
        return int(check(running, counted))


def print_table(names: list[str], costs: dict[tuple[str, str], Cost]) -> None:
    """One line a side."""
    print(f"{'':<19}" + "".join(f" │ {kind:>9} µs  x floor  p99 x" for kind in CALLS))
    base = "floor" if "floor" in names else names[0]
    floors = {kind: costs[base, kind].median for kind in CALLS}
    for name in names:
        cells = []
        for kind in CALLS:
            median, worst = costs[name, kind]
            cells.append(f" │ {median:>12,.2f} {median / floors[kind]:>8,.2f} {worst:>6.1f}")
        print(f"{name:<19}" + "".join(cells))


def for_table(names: list[str], costs: dict[tuple[str, str], Cost]) -> None:
    """What the targets are about, and how near to Python's own limit that is."""
    if "verl-trace" not in names:
        return
    for kind, most in AT_MOST.items():
        ours = costs["verl-trace", kind]
        if "floor" in names:
            tell(f"{kind}: a call, of the floor's time", ours.median / costs["floor", kind].median, at_most=most)
        if "least" in names:
            tell(f"{kind}: a call, of the least that Python can do", ours.median / costs["least", kind].median)
        tell(f"{kind}: 99th percentile, of the median", ours.worst, at_most=3)
        if "floor" in names:
            tell(f"{kind}: the same of the floor", costs["floor", kind].worst)
    for name, least in (("weave", 2000), ("mlflow", 60), ("trackio", None)):
        if name in names:
            times = costs[name, "M"].median / costs["verl-trace", "M"].median
            tell(f"M: a call by {name}, of ours", times, "times", at_least=least)


if __name__ == "__main__":
    program(__doc__, commands, bench, SIDES)
