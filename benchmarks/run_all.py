"""All benchmarks, one after the other, in what is meant to be a quarter of an hour; `make bench`.

    python benchmarks/run_all.py [--scale 1] [NAME …]

Each is a program of its own that prints its table, looks for all records at its end, and exits with 1 where some are
missing. `--scale 0.01` only shows that they run. A new one joins by a line in PROGRAMS.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

# Name -> program and its words; {scale} is what is given here, {seconds}, {gigabytes}, {tenth} and {rounds} follow it.
PROGRAMS = {
    "start": ["bench_start.py", "--rounds", "{rounds}"],
    "hot_path": ["bench_hot_path.py", "--scale", "{scale}"],
    "loop": ["bench_loop.py", "--scale", "{scale}"],
    "footprint": ["bench_footprint.py", "--scale", "{scale}"],
    "rewards": ["bench_rewards.py", "--seconds", "{seconds}"],
    "upload": ["bench_upload.py", "--size", "{tenth}"],
    "read": ["bench_read.py", "--sizes", "{gigabytes}"],
    "grep": ["bench_grep.py", "{gigabytes}"],
}


def main() -> None:
    """Run them; exit with 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"which; all by default: {', '.join(PROGRAMS)}")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    scale = min(1.0, options.scale)
    words = {
        "scale": f"{scale:g}", "seconds": f"{scale:g}", "gigabytes": f"{max(0.01, 0.5 * scale):g}",
        "tenth": f"{max(0.002, 0.1 * scale):g}", "rounds": str(max(2, round(15 * scale))),
    }  # fmt: skip
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    failed = []
    for name in options.names or PROGRAMS:
        program, *rest = PROGRAMS[name]
        print(f"\n== {name}", flush=True)
        begun = time.perf_counter()
        command = [sys.executable, str(Path(__file__).with_name(program)), *(word.format(**words) for word in rest)]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        print(f"   ({time.perf_counter() - begun:.0f} s)", flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
