"""What a recording takes: memory, CPU beside the caller's thread, and disk.

    python benchmarks/bench_footprint.py [--scale 1] [--sides …]

Trajectories run 32 or 256 at a time, as fast as they can, so that their records mix. *Peak* is the process's highest
resident memory above that of the same run undecorated; *beside* the CPU time of all threads but the caller's, for each
MB of raw JSON, which is what the floor writes: inputs and outputs, nothing else. A run three times as long must not
take more memory. Peers do less of the same. At the end every record is looked for.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from processes import children, serve
from sides import OURS, PEERS, Side
from workload import Trajectory, make_agent, trajectories

# Kind, how many at a time, how many in all; how many peers do.
RUNS = [("L", 32, 96, 1), ("L", 256, 256, 0), ("L", 256, 768, 0), ("mix", 32, 512, 6), ("mix", 256, 1024, 0)]


class Taken(NamedTuple):
    """Of one run: MiB at the peak, CPU seconds of other threads, raw and stored bytes, calls made and found."""

    peak: float
    beside: float
    raw: int
    stored: int
    made: int
    there: int | None


def commands(side: Side) -> dict[str, Callable[..., Any]]:
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
    lacking = 0
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
    return lacking


def main() -> None:
    """Measure, or be a side's child."""
    if "--child" in sys.argv:
        serve(commands)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="0.01 for a look whether it runs")
    parser.add_argument("--sides", default=",".join(("undecorated", "verl-trace", *PEERS)), help="with commas between")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(bench(Path(folder), options.scale, tuple(options.sides.split(","))))


if __name__ == "__main__":
    main()
