"""A decompressor that is used again gives every file's own bytes, whatever it was used for before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest
import zstandard

from verl_trace.reader import decompressors
from verl_trace.reader.blocks import Block, blocks
from verl_trace.reader.segments import SegmentLines

LINES = [b"%d,%d\n" % (number, number**7) for number in range(60_000)]


@pytest.fixture(autouse=True)
def none_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompressors, "_free", [])


def stored(path: Path, lines: list[bytes], window: int = 20) -> Path:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window, write_checksum=True)
    path.write_bytes(zstandard.ZstdCompressor(compression_params=parameters).compress(b"".join(lines)))
    return path


def lines_of(path: Path) -> Iterator[bytes]:
    return (line for _, line in SegmentLines(path, sealed=True))


def test_files_that_are_read_at_once_do_not_mix(tmp_path: Path) -> None:
    """Line by line in turn; one is left in its middle, and its decompressor goes to the next."""
    ways = [stored(tmp_path / f"{step}", LINES[::step]) for step in (1, 2, 3)]
    expected = list(zip_longest(*(LINES[::step] for step in (1, 2, 3))))
    for _ in range(2):
        left = lines_of(ways[0])
        assert [next(left) for _ in range(10)] == LINES[:10]
        assert list(zip_longest(*map(lines_of, ways))) == expected
        del left
        # which have no second way where zstd refuses
        pieces = zip_longest(*(blocks(way, sealed=True) for way in ways), fillvalue=Block(b"", 0, 0))
        found = [b"".join(one.data[one.begin : one.end] for one in way) for way in zip(*pieces, strict=True)]
        assert found == [b"".join(LINES[::step]) for step in (1, 2, 3)]


def test_after_damage_the_next_file_is_whole(tmp_path: Path) -> None:
    """Bytes changed anywhere, and a file cut off, leave nothing behind."""
    chance = random.Random(7)
    good = stored(tmp_path / "good", LINES)
    data = bytearray(good.read_bytes())
    for number in range(20):
        at = chance.randrange(20, len(data))
        bad = data[:at] if number % 2 else data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        (tmp_path / "bad").write_bytes(bad)
        lines = SegmentLines(tmp_path / "bad", sealed=True)
        list(lines)
        assert lines.damages
        with pytest.raises(zstandard.ZstdError):
            list(blocks(tmp_path / "bad", sealed=True))

        assert list(lines_of(good)) == LINES


def test_no_more_is_kept_than_a_window_of_the_recorders(tmp_path: Path) -> None:
    """One, though two were used, and none of a window that is larger."""
    files = [stored(tmp_path / f"{number}", LINES, window=25) for number in range(2)]
    list(zip_longest(*map(lines_of, files)))
    assert len(decompressors._free) == 1
    decompressors._free.clear()
    compressor = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    with zstandard.ZstdCompressor(compression_params=compressor).stream_writer(open(tmp_path / "wide", "wb")) as file:
        for line in LINES:
            file.write(line)

    assert list(lines_of(tmp_path / "wide")) == LINES
    assert not decompressors._free
