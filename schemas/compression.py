"""How segments are compressed, by whoever makes one. Standard zstd: `zstd -d` and `zstdcat` read it without options."""

from __future__ import annotations

import zstandard

__all__ = ["segment_compressor"]

# The quickest level is also the one that makes most of token ids and log-probs: higher ones find short repetitions
# between digits, and these cost more than the digits (docs/performance.md has the table).
LEVEL = 1
# 32 MiB: of 32 trajectories at a time, a turn finds the prompt of the turn before. Twice as much would find it among
# 256 too, but would take 74 MiB of memory.
WINDOW_LOG = 25


def segment_compressor() -> zstandard.ZstdCompressor:
    """A compressor of segments, with checksum. It takes up to 40 MiB; where the size is told beforehand and small,
    less."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL, window_log=WINDOW_LOG, enable_ldm=True, write_checksum=True, write_content_size=True
    )
    return zstandard.ZstdCompressor(compression_params=parameters)
