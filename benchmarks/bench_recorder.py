"""What recording costs the caller: µs per traced call and MB/s of records, by size of the payload.

    python benchmarks/bench_recorder.py [--seconds 1]

Each size is measured in a fresh process, in a temporary folder; the untraced call is subtracted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

# Token ids per call: a short tool call, a turn of a chat, a long context.
SIZES = (8, 512, 4_096, 32_768)


def measure(ids: int, seconds: float, folder: str) -> dict[str, Any]:
    """Median µs per call, with and without recording, and bytes per call."""
    os.environ["VERL_TRACE_DIR"] = folder
    from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

    class Model:
        def bare(self, prompt_ids: list[int]) -> dict[str, list[int]]:
            return {"token_ids": prompt_ids}

        traced = rollout_trace_op(bare)

    model, prompt = Model(), list(range(100_000, 100_000 + ids))
    bare = _per_call(lambda: model.bare(prompt), seconds / 4)
    RolloutTraceConfig.init("bench", f"ids-{ids}", "jsonl")
    with rollout_trace_attr(step=1, sample_index=1, rollout_n=0):
        traced = _per_call(lambda: model.traced(prompt), seconds)
    (raw,) = Path(folder, f"ids-{ids}").glob("*.00000.jsonl")
    line = raw.open("rb").readlines()[1:3]
    return {"ids": ids, "us": (traced - bare) * 1e6, "bytes": sum(map(len, line))}


def _per_call(call: Any, seconds: float) -> float:
    """The median of short batches: a neighbour's noise on the machine shifts it little."""
    batch, times = 20, []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(batch):
            call()
        times.append((time.perf_counter() - start) / batch)
    return sorted(times)[len(times) // 2]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="time per size")
    seconds = parser.parse_args().seconds
    os.environ["VERL_TRACE_SEGMENT_BYTES"] = "16G"
    print(f"{'token ids':>10} {'bytes/call':>11} {'µs/call':>9} {'MB/s':>7}")
    for ids in SIZES:
        with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(1) as pool:
            row = pool.apply(measure, (ids, seconds, folder))
        print(f"{row['ids']:>10} {row['bytes']:>11} {row['us']:>9.1f} {row['bytes'] / row['us']:>7.0f}")


if __name__ == "__main__":
    main()
