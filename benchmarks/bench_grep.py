"""`verl-trace grep` against `zstdgrep` on the same files.

python benchmarks/bench_grep.py [GIGABYTES [FOLDER]]

CPU seconds are those of all processes together, and what a busy machine changes least. Both print the same number of
matches, or it says so: a text that is recorded twice in a line counts once for zstdgrep and twice for us.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from made_run import make_run
from table import tell

SCRIPT = Path(sys.executable).with_name("verl-trace")
ROUNDS = 3
# What is looked for, as zstdgrep and as we are asked for it.
CASES = [
    ("-F, rare", ["-hF", "needle-3-2"], ["-F", "needle-3-2"]),
    ("-F, absent", ["-hF", "no_such_needle"], ["-F", "no_such_needle"]),
    ("literal in it", ["-hE", "needle-3-[0-9]+ x"], ["needle-3-[0-9]+ x"]),
    ("the same, -i", ["-hEi", "NEEDLE-3-[0-9]+ x"], ["-i", "NEEDLE-3-[0-9]+ x"]),
    ("no literal", ["-hE", "[0-9]+-[0-9]{2}-[0-9] x"], ["[0-9]+-[0-9]{2}-[0-9] x"]),
]


class Cost(NamedTuple):
    """Best of some rounds, in seconds, and lines printed."""

    wall: float
    cpu: float
    lines: int


def measure(words: list[str]) -> Cost:
    """Run a command with its output in a file."""
    costs = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryFile() as out:
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(words, stdout=out, check=False)
            wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
            out.seek(0)
            lines = sum(1 for _ in out)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        costs.append(Cost(wall, cpu, lines))
    return Cost(min(cost.wall for cost in costs), min(cost.cpu for cost in costs), costs[0].lines)


def bench(folder: Path) -> None:
    """One line a case."""
    files = [str(path) for path in sorted(folder.glob("*.jsonl.zst"))]
    print(f"{'':<14} {'zstdgrep':>17} {'verl-trace':>17} {'ratio':>13}   matches")
    print(f"{'':<14} {'wall':>8} {'CPU':>8} {'wall':>8} {'CPU':>8} {'wall':>6} {'CPU':>6}")
    for name, theirs, ours in CASES:
        peer = measure(["zstdgrep", *theirs, *files])
        mine = measure([str(SCRIPT), "grep", *ours, str(folder)])
        tell(f"{name}: CPU, of zstdgrep's", mine.cpu / peer.cpu)
        ratios = f"{mine.wall / peer.wall:>6.2f} {mine.cpu / peer.cpu:>6.2f}"
        costs = f"{peer.wall:>8.2f} {peer.cpu:>8.2f} {mine.wall:>8.2f} {mine.cpu:>8.2f}"
        told = f"{mine.lines}" if mine.lines == peer.lines else f"{mine.lines} texts in {peer.lines} lines"
        print(f"{name:<14} {costs} {ratios}   {told}")


def main() -> None:
    """Make a run where none is given."""
    if shutil.which("zstdgrep") is None:
        sys.exit("zstdgrep is not installed (package zstd)")
    size = float(sys.argv[1]) if len(sys.argv) > 1 else 0.2
    if len(sys.argv) > 2:
        bench(Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        made = make_run(Path(scratch) / "made", int(size * 1e9))
        print(f"{made / 1e9:.2f} GB of records")
        bench(Path(scratch) / "made")


if __name__ == "__main__":
    main()
