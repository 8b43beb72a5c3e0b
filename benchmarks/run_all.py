"""All benchmarks, one after the other, in a quarter of an hour on two cores; `make bench`.

    python benchmarks/run_all.py [--scale 1] [NAME …]

Each is a program of its own that prints what it measured, looks for all records at its end, and exits with 1 where some
are missing. What they say about the targets, and how long each took, is one table at the end (`table.py`). `--scale
0.01` only shows that they run. A new one joins by a line in PROGRAMS.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from table import VARIABLE, print_table, tell

MOST_SECONDS = 15 * 60

# Name -> program and its words; {scale} is what is given here, the others follow it.
PROGRAMS = {
    "start": ["bench_start.py", "--rounds", "{rounds}"],
    "hot_path": ["bench_hot_path.py", "--scale", "{scale}"],
    "loop": ["bench_loop.py", "--scale", "{scale}"],
    "footprint": ["bench_footprint.py", "--scale", "{scale}"],
    "rewards": ["bench_rewards.py", "--seconds", "{seconds}"],
    "upload": ["bench_upload.py", "--scale", "{fraction}"],
    "read": ["bench_read.py", "--sizes", "{gigabytes}"],
    "grep": ["bench_grep.py", "{some}"],
}


def main() -> None:
    """Run them; exit with 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"which; all by default: {', '.join(PROGRAMS)}")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    scale = min(1.0, options.scale)
    words = {
        "scale": f"{scale:g}", "seconds": f"{scale:g}", "gigabytes": f"{max(0.01, 2 * scale):g}",
        "some": f"{max(0.01, 0.3 * scale):g}", "fraction": f"{max(0.01, scale):g}",
        "rounds": str(max(2, round(15 * scale))),
    }  # fmt: skip
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}, Python {sys.version.split()[0]}")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        results = os.environ[VARIABLE] = f"{folder}/results"
        begun = time.perf_counter()
        for name in options.names or PROGRAMS:
            program, *rest = PROGRAMS[name]
            print(f"\n== {name}", flush=True)
            part_begun, cpu = time.perf_counter(), _cpu()
            command = [sys.executable, str(Path(__file__).with_name(program)), *(word.format(**words) for word in rest)]
            if subprocess.run(command, check=False).returncode:
                failed.append(name)
            took = time.perf_counter() - part_begun
            print(f"   ({took:.0f} s, {_cpu() - cpu:.0f} of all processors together)", flush=True)
            tell("all of this", took, "s", part=name)
        tell("everything", time.perf_counter() - begun, "s", at_most=MOST_SECONDS, part="")
        print_table(Path(results))
    print(f"load {load:.1f} at the beginning, {os.getloadavg()[0]:.1f} at the end, on {os.cpu_count()} cores: beside")
    print("others, times are too long and 99th percentiles those of the neighbours; look at the ratios")
    if scale < 1:
        print("smaller than meant: the figures say nothing")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def _cpu() -> float:
    """Seconds of processors that all programs took which have ended: on a busy machine the better measure."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
