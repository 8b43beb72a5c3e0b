"""What reading a run costs: all of it once, and each command after that.

    python benchmarks/bench_read.py [--sizes 0.2,2,8] [--run FOLDER]      sizes in GB of records; or a run that is there

First read: scan every file, pair starts with ends, put the calls of each trajectory in order; nothing is kept of the
run yet. The floor is `zstdcat | wc -l` on the same files. Both in turn, round after round; the median counts.
After it: the time until a command prints its first byte, and until it is done. Ends by comparing the records that were
seen with the lines of the files, and exits with 1 when one is missing.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from made_run import make_run
from table import tell

SCRIPT = str(Path(sys.executable).with_name("verl-trace"))
ROUNDS = 3
IN_A_SECOND = ("ls", "show", "grep -F")
# Reads a run in a process of its own; prints trajectories, calls, and the peak memory of its processes together.
_READ = """
import resource, sys
from verl_trace.reader import find_runs
from verl_trace.reader.outlines import iter_outlines
trajectories = calls = 0
for run in find_runs(sys.argv[1]):
    for outline in iter_outlines(run):
        trajectories += 1
        calls += outline.figures.calls
own, below = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(trajectories, calls, own + below * len(__import__("os").sched_getaffinity(0)))
"""


class Cost(NamedTuple):
    """Medians of some rounds: seconds by the clock, seconds of all processors."""

    wall: float
    cpu: float


class First(NamedTuple):
    """Seconds until the first byte, and until the end."""

    byte: float
    end: float


def timed(words: Sequence[str], environment: dict[str, str]) -> tuple[Cost, str]:
    """Run a command; what it cost and printed."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cpu), done.stdout


def first_byte(words: Sequence[str], environment: dict[str, str]) -> First:
    """When a command begins to print, and when it is done."""
    began = time.perf_counter()
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        if not process.stdout.read(1):
            raise RuntimeError(f"{' '.join(words)} printed nothing")
        byte = time.perf_counter() - began
        shutil.copyfileobj(process.stdout, open(os.devnull, "wb"))  # noqa: SIM115
    return First(byte, time.perf_counter() - began)


def medians(costs: Sequence[Cost]) -> Cost:
    """Of each column."""
    return Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))


def bench(folder: Path) -> bool:
    """Measure one run and print it; whether every record was seen."""
    files = sorted(str(path) for path in folder.glob("*.jsonl.zst"))
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "VERL_TRACE_CACHE": cache}
        floors, reads, lines, seen = [], [], 0, ""
        for _ in range(ROUNDS):
            cost, printed = timed(["sh", "-c", 'zstdcat "$@" | wc -l', "sh", *files], environment)
            floors.append(cost)
            lines = int(printed)
            shutil.rmtree(cache)
            cost, seen = timed([sys.executable, "-c", _READ, str(folder)], environment)
            reads.append(cost)
        trajectories, calls, peak = map(int, seen.split())
        kept = sum(file.stat().st_size for file in Path(cache).rglob("*") if file.is_file())
        _print_read(
            medians(floors), medians(reads), f"{lines:,} records, {trajectories:,} trajectories, {calls:,} calls"
        )
        tell("first read, by the clock, of zstdcat's time", median_ratio(reads, floors), at_most=2)
        tell("memory of all its processes", peak / 1024, "MiB", at_most=300)
        print(f"  peak memory of all processes {peak / 1024:.0f} MiB, kept for the next time {kept / 1e6:.1f} MB")
        _commands(folder, environment)
        return _verified(folder, lines - 2 * len(files), environment)


def median_ratio(reads: Sequence[Cost], floors: Sequence[Cost]) -> float:
    """How much longer it takes by the clock."""
    return medians(reads).wall / medians(floors).wall


def _print_read(floor: Cost, read: Cost, what: str) -> None:
    print(f"  {what}")
    print(f"  {'':<22} {'wall':>7} {'CPU':>7}")
    print(f"  {'zstdcat | wc -l':<22} {floor.wall:>6.2f}s {floor.cpu:>6.2f}s")
    print(f"  {'first read':<22} {read.wall:>6.2f}s {read.cpu:>6.2f}s")
    print(f"  {'ratio':<22} {read.wall / floor.wall:>7.2f} {read.cpu / floor.cpu:>7.2f}")


def _commands(folder: Path, environment: dict[str, str]) -> None:
    listed = subprocess.run(
        [SCRIPT, "ls", "-t", str(folder)], env=environment, capture_output=True, text=True, check=True
    )
    names = [line.split()[0] for line in listed.stdout.splitlines()[1:]]
    commands = {
        "ls": ["ls", str(folder)],
        "ls --trajectories": ["ls", "-t", str(folder)],
        "stats": ["stats", str(folder)],
        "show": ["show", str(folder), names[len(names) // 2]],
        "grep -F": ["grep", "-F", "SearchTool", str(folder)],
        "grep -F --step 1": ["grep", "-F", "SearchTool", str(folder), "--step", "1"],
    }
    print(f"  {'after that':<22} {'first':>7} {'end':>7}")
    for name, words in commands.items():
        found = [first_byte([SCRIPT, *words], environment) for _ in range(ROUNDS)]
        byte, end = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"  {name:<22} {byte:>6.2f}s {end:>6.2f}s")
        if name in IN_A_SECOND:
            tell(f"{name}: time to the first result", byte, "s", at_most=1)


def _verified(folder: Path, records: int, environment: dict[str, str]) -> bool:
    """Whether the calls that were read are made of as many records as the files have."""
    program = (
        "import sys; from verl_trace.reader import find_runs; from verl_trace.reader.outlines import iter_outlines; "
        "print(sum(call.seen.bit_count() for run in find_runs(sys.argv[1]) for outline in iter_outlines(run) "
        "for call in outline.calls))"
    )
    seen = int(timed([sys.executable, "-c", program, str(folder)], environment)[1])
    print(f"  records in the files {records:,}, seen {seen:,}{'' if seen == records else '  NOT ALL'}")
    return seen == records


def main() -> None:
    """Make runs where none is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="0.01 for a look whether it works")
    parser.add_argument("--sizes", default="0.2,2", help="GB of records, with commas between")
    parser.add_argument("--run", type=Path, help="a run that is there, all of its files sealed")
    options = parser.parse_args()
    if shutil.which("zstdcat") is None:
        sys.exit("zstdcat is not installed (package zstd)")
    whole = True
    if options.run is not None:
        whole = bench(options.run)
    for size in map(float, options.sizes.split(",") if options.run is None else ()):
        with tempfile.TemporaryDirectory() as scratch:
            made = make_run(Path(scratch) / "made", int(size * options.scale * 1e9))
            print(f"{made / 1e9:.3g} GB of records")
            whole = bench(Path(scratch) / "made") and whole
    sys.exit(not whole)


if __name__ == "__main__":
    main()
