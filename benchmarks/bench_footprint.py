"""What a recording takes: memory, CPU beside the caller's thread, and disk.

    python benchmarks/bench_footprint.py [--scale 1] [--sides …]

Trajectories run 32 or 256 at a time, as fast as they can, so that their records mix. *Peak* is the process's highest
resident memory above that of the same run undecorated; *beside* the CPU time of all threads but the caller's, for each
MB of raw JSON, which is what the floor writes: inputs and outputs, nothing else. A run twice as long must not
take more memory. Peers do less of the same. At the end every record is looked for.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from processes import Commands, children, program
from sides import OURS, PEERS, Side
from table import tell
from workload import Trajectory, make_agent, trajectories

SIDES = ("undecorated", "verl-trace", *PEERS)
# Kind, how many at a time, how many in all; how many peers do.
RUNS = [("L", 32, 96, 1), ("L", 256, 256, 0), ("L", 256, 512, 0), ("mix", 32, 384, 0), ("mix", 256, 512, 0)]


class Taken(NamedTuple):
    """Of one run: MiB at the peak, CPU seconds of other threads, raw and stored bytes, calls made and found.

    `each`: raw bytes of a trajectory.
    """

    peak: float
    beside: float
    raw: int
    stored: float
    made: int
    there: int | None
    each: float = 0.0


def commands(side: Side) -> Commands:
    """What the child of a side can be asked."""
    kind_of_agent = type(make_agent(side.decorate))

    async def one(made: Trajectory) -> None:
        agent = kind_of_agent()
        agent.wait = _give_way
        with side.trajectory(made.step, made.sample_index, made.rollout_n):
            await agent.roll_out(made)

    async def all_of(source: Any, together: int) -> tuple[int, int]:
        raw = calls = 0

        async def some() -> None:
            nonlocal raw, calls
            for made in source:
                raw += _raw_size(made)
                calls += made.calls
                await one(made)

        await asyncio.gather(*(some() for _ in range(together)))
        return raw, calls

    def run(kind: str, together: int, count: int) -> tuple[float, float, int, int]:
        source = itertools.islice(trajectories(kind), count)
        Path("/proc/self/clear_refs").write_text("5")
        before = time.process_time() - time.thread_time()
        raw, calls = asyncio.run(all_of(source, together))
        side.drain()
        return _peak(), time.process_time() - time.thread_time() - before, raw, calls

    return {"run": run}


async def _give_way() -> None:
    await asyncio.sleep(0)


def _raw_size(made: Trajectory) -> int:
    size = len(orjson.dumps(made.output())) + len(orjson.dumps(made.messages))
    for turn, ids in zip(made.turns, made.prompts(), strict=True):
        if turn.answer is not None:
            size += len(orjson.dumps(ids)) + len(orjson.dumps(turn.answer))
        if turn.parameters is not None:
            size += len(orjson.dumps(turn.parameters)) + len(orjson.dumps(turn.result))
    return size


def _peak() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def bench(folder: Path, scale: float, sides: tuple[str, ...]) -> int:
    """Print a line for each run and side; how many runs of ours lack records."""
    titles = ("raw MB", "KB each", "of raw", "peak MiB", "ms CPU/MB", "there")
    print(f"{'kind':<4} {'at once':>7} {'runs':>5} {'':<12}" + "".join(f"{title:>11}" for title in titles))
    lacking, done = 0, dict[tuple[int, str], Taken]()
    # a look whether it runs needs two of them
    for number, (kind, together, count, peers) in enumerate(RUNS if scale >= 0.1 else RUNS[:2]):
        base = 0.0
        for side in sides:
            share = peers if side in PEERS else count
            share = max(1, round(share * min(1.0, scale))) if share else 0
            if not share:
                continue
            place = folder / f"{number}-{side}"
            place.mkdir()
            with children(__file__, (side,), place) as running:
                if not running:
                    continue
                child = running[side]
                peak, beside, raw, made = child.ask("run", kind=kind, together=min(together, share), count=share)
                there = child.ask("finish")
                taken = Taken(peak, beside, raw, child.ask("stored"), made, there)
            base = base or taken.peak
            done[number, side] = taken._replace(peak=taken.peak - base, stored=taken.stored / share, each=raw / share)
            lacking += side in OURS and taken.there != taken.made
            found = "" if taken.there is None else "all" if taken.there == taken.made else f"{taken.there}/{taken.made}"
            stored = (
                (f"{taken.stored / share / 1e3:,.0f}", f"1/{taken.raw / taken.stored:.1f}")
                if taken.stored
                else ("", "")
            )
            own = f"{taken.peak - base:.0f}" if side != sides[0] and side not in PEERS else ""
            cells = (f"{raw / 1e6:.0f}", *stored, own, f"{taken.beside / raw * 1e9:.1f}", found)
            print(
                f"{kind:<4} {min(together, share):>7} {share:>5} {side:<12}" + "".join(f"{cell:>11}" for cell in cells)
            )
    for_table(done)
    return lacking


def for_table(done: dict[tuple[int, str], Taken]) -> None:
    """What the targets are about. Peaks here are above that of the first side; what is stored is a trajectory's."""
    ours = {number: taken for (number, side), taken in done.items() if side == "verl-trace"}
    if not ours:
        return
    tell("memory, the most of all runs", max(taken.peak for taken in ours.values()), "MiB", at_most=64)
    for number, taken in ours.items():
        kind, together, count, _ = RUNS[number]
        least = 10 if (kind, together) == ("L", 32) else None
        what = f"{kind}, {count} trajectories, {together} at once"
        tell(f"{what}: raw JSON, of what is stored", taken.each / taken.stored, "times", at_least=least)
        tell(f"{what}: CPU of other threads", taken.beside / taken.raw * 1e9, "ms/MB")
        for side in PEERS:
            if (number, side) in done:
                stored = done[number, side].stored / taken.stored
                tell(f"{kind}: what {side} stores, of ours", stored, "times", at_least=5)


if __name__ == "__main__":
    program(__doc__, commands, bench, SIDES)
