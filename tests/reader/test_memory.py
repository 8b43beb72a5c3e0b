"""Memory of the reader: bounded by a line and by what is open at a time, never by a file or a run."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import zstandard

from verl_trace.reader import find_runs, iter_trajectories


def peak_of(run_it: Any) -> int:
    """Bytes that Python objects took at most while it ran."""
    tracemalloc.start()
    try:
        run_it()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_finished_trajectories_are_let_go(tmp_path: Path, writer: type[Any]) -> None:
    """100 MB of payloads in 100 trajectories are read with a few of them in memory."""
    made = writer(tmp_path, "p")
    for _ in range(100):
        made.call("op", output="x" * 1_000_000)
    made.close()
    (run,) = find_runs(tmp_path)
    seen: list[str] = []

    def read() -> None:
        seen.extend(tree.trace_id for tree in iter_trajectories(run))

    assert peak_of(read) < 40 << 20
    assert len(seen) == 100


def test_a_compressed_bomb_stays_small_in_memory(tmp_path: Path, writer: type[Any]) -> None:
    """200 MB of records in 20 KB of zstd: read piece by piece."""
    made = writer(tmp_path, "p")
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    block = b'{"kind":"bomb"}\n' * 62_500
    packed = [compressor.compress(block) for _ in range(200)]
    header = zstandard.ZstdCompressor().compress(made.path.read_bytes())
    made.path.with_name(made.path.name + ".zst").write_bytes(b"".join([header, *packed, compressor.flush()]))
    made.path.unlink()
    del block, packed
    (run,) = find_runs(tmp_path)

    def read() -> None:
        # the pieces that come out of zstd are what counts: stop early, since counting every line takes long
        lines = iter(run.writers[0].segments[0].lines())
        for _ in range(100_000):
            next(lines)

    assert peak_of(read) < 128 << 20
