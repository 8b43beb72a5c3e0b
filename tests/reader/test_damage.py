"""Whatever happened to a file: every whole record outside the damage is read, the damage is named, nothing raises."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader.segments import SegmentLines


def three_calls(spans: Any) -> list[bytes]:
    lines = [spans.header()]
    for number in (1, 2, 3):
        lines += [spans.start(number), spans.end(number)]
    return [*lines, spans.close()]


def test_a_raw_file_cut_at_every_byte(spans: Any) -> None:
    """All lines before the cut are read; what is left of a line is reported where it is, with its length."""
    lines = three_calls(spans)
    data = b"".join(lines)
    for cut in range(len(lines[0]), len(data)):
        path = spans.raw(data[:cut])
        spans.age()
        trees, reading = spans.read()
        whole = data[:cut].rfind(b"\n") + 1
        records = data[len(lines[0]) : whole].count(b"\n")

        assert len(trees) == min(3, (records + 1) // 2)
        assert sum(not call.unfinished for tree in trees for call in tree.calls) == min(3, records // 2)
        found = [(d.path, d.offset, d.length, d.kind) for d in reading.damages]
        assert found == ([(path, whole, cut - whole, "torn")] if cut > whole else [])


def test_a_sealed_file_cut_at_every_byte(spans: Any) -> None:
    """Whole frames are read, the one that is cut off is named; only the whole file has no damage."""
    lines = three_calls(spans)
    frames = [b"".join(lines[:3]), b"".join(lines[3:5]), b"".join(lines[5:])]
    ends = [sum(len(spans.frame(frame)) for frame in frames[:n]) for n in range(4)]
    path = spans.sealed(*frames)
    data = path.read_bytes()
    for cut in range(ends[1], len(data)):
        path.write_bytes(data[:cut])
        whole = sum(cut >= end for end in ends[1:])
        _, reading = spans.read()

        # a frame whose checksum alone is missing has given all of its lines
        assert set(range(1, whole + 1)) <= set(spans.numbers())
        zstd = [(d.path, d.offset + d.length) for d in reading.damages if d.kind == "zstd"]
        assert zstd == ([] if cut == ends[whole] else [(path, cut)])


def test_every_block_before_a_cut_is_read(spans: Any) -> None:
    """A frame is cut off behind its third block of 128 KiB: the lines of three blocks are there."""
    chance = random.Random(1)
    lines = [spans.start(n, output=None, noise=chance.randbytes(1000).hex()) for n in range(1, 301)]
    path = spans.sealed(spans.header() + b"".join(lines))
    data = path.read_bytes()
    blocks = [len(spans.header()), *map(len, lines)]
    path.write_bytes(data[: len(data) * 3 // 4])
    expected = sum(sum(blocks[: n + 2]) <= (sum(blocks) * 3 // 4 - (1 << 17)) for n in range(300))

    _, reading = spans.read()

    assert len(spans.numbers()) >= expected > 100
    assert {d.kind for d in reading.damages} == {"zstd", "line"}
    [damage] = [d for d in reading.damages if d.kind == "zstd"]
    assert 0 < damage.offset < len(data) * 3 // 4 == damage.offset + damage.length


def test_blocks_before_a_bad_one_and_frames_after_it(spans: Any) -> None:
    """A frame broken in its last block gives the earlier ones, and the next frame is whole."""
    chance = random.Random(2)
    first = [spans.start(n, noise=chance.randbytes(1000).hex()) for n in range(1, 301)]
    path = spans.sealed(spans.header() + b"".join(first), spans.start(1000) + spans.end(1000))
    data = bytearray(path.read_bytes())
    frame = len(spans.frame(spans.header() + b"".join(first)))
    place = frame - 20_000
    data[place : place + 200] = bytes(200)
    path.write_bytes(data)

    numbers = spans.numbers()
    _, reading = spans.read()

    assert 1000 in numbers
    assert set(range(1, 200)) <= set(numbers)
    [damage] = [d for d in reading.damages if d.kind == "zstd"]
    assert damage.offset + damage.length == frame


def test_a_flipped_byte_in_a_sealed_file_is_always_noticed(spans: Any) -> None:
    """At every place: nothing raises, the file is not reported as whole, other frames are read."""
    lines = three_calls(spans)
    frames = [b"".join(lines[:3]), b"".join(lines[3:5]), b"".join(lines[5:])]
    ends = [sum(len(spans.frame(frame)) for frame in frames[:n]) for n in range(4)]
    path = spans.sealed(*frames)
    good = path.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 0x41
        path.write_bytes(bad)
        _, reading = spans.read()
        hit = next(n for n in (1, 2, 3) if place < ends[n])

        assert reading.damages, place
        assert {1, 2, 3} - {hit} <= set(spans.numbers()), place


def test_a_flipped_byte_in_a_raw_file_costs_one_line_at_most(spans: Any) -> None:
    """Every other call is read; a line that is no record any more is named with its place."""
    lines = three_calls(spans)
    data = b"".join(lines)
    for place in range(len(lines[0]), len(data)):
        bad = bytearray(data)
        bad[place] ^= 0x41
        path = spans.raw(bytes(bad))
        trees, reading = spans.read()
        ends = [sum(map(len, lines[: n + 1])) for n in range(len(lines))]
        hit = next(n for n, end in enumerate(ends) if place < end)
        broken = place in (ends[hit] - 1, ends[hit])
        untouched = {1, 2, 3} - {(hit + 1) // 2} - ({(hit + 2) // 2} if broken else set())

        whole = {int(c.id[-12:], 16) for t in trees for c in t.calls if not c.unfinished and c.inputs is not None}
        assert untouched <= whole, place
        for damage in reading.damages:
            assert damage.path == path
            assert damage.kind in ("line", "torn")
            assert damage.offset <= place <= damage.offset + damage.length


def test_nul_blocks(spans: Any) -> None:
    """Blocks that the disk never filled cost the lines they cover, not the one that begins behind them."""
    lines = three_calls(spans)
    lines[3] = bytes(len(lines[3]) - 1) + b"\n"
    lines[5] = bytes(len(lines[5]))
    path = spans.raw(*lines)
    trees, reading = spans.read()

    assert spans.numbers() == [1, 2, 3]
    assert [c.inputs for t in trees for c in t.calls] == [b'{"n":1}', None, None]
    assert not any(c.unfinished for t in trees for c in t.calls)
    places = [sum(map(len, lines[:n])) for n in (3, 5)]
    expected = [(path, places[0], len(lines[3])), (path, places[1], len(lines[5]))]
    assert [(d.path, d.offset, d.length) for d in reading.damages] == expected
    assert {d.reason for d in reading.damages} == {"a block of NUL bytes"}


def test_nul_bytes_within_a_payload_are_damage(spans: Any) -> None:
    """Head and end of the line are whole, the payload is not: sealed or raw, the record is not taken for good."""
    line = spans.end(1, output=["x" * 100])
    line = line.replace(b"x" * 50, bytes(50), 1)
    for write in (spans.raw, spans.sealed):
        path = write(spans.header() + spans.start(1) + line)
        trees, reading = spans.read()

        assert [c.status for t in trees for c in t.calls] == ["unfinished"]
        offset = len(spans.header() + spans.start(1))
        found = [(d.path, d.offset, d.length) for d in reading.damages if d.kind == "line"]
        assert found == [(path, offset, len(line))]
        path.unlink()


@pytest.mark.parametrize("garbage", [b"abc", b"\0" * 100, b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18\xff\xff\0\0", b"\n"])
def test_garbage_at_the_end(spans: Any, garbage: bytes) -> None:
    """What was appended is named; what was there before is read."""
    lines = b"".join(three_calls(spans))
    path = spans.sealed(lines)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + garbage)
    _, reading = spans.read()

    assert spans.numbers() == [1, 2, 3]
    assert [(d.offset, d.length, d.kind) for d in reading.damages] == [(size, len(garbage), "zstd")]
    path.unlink()

    spans.raw(lines + garbage)
    spans.age()
    _, reading = spans.read()

    assert spans.numbers() == [1, 2, 3]
    assert [(d.offset, d.length) for d in reading.damages] == [(len(lines), len(garbage))]


def test_a_line_over_the_edge_of_two_frames(spans: Any) -> None:
    """Frames are cut anywhere, also by whoever concatenates files: lines are put together again."""
    data = b"".join(three_calls(spans))
    whole = spans.frame(data)
    assert len(whole) > 10
    for cut in range(1, len(data), 7):
        spans.sealed(data[:cut], b"", data[cut:])
        trees, reading = spans.read()
        assert (len(trees), reading.damages) == (3, [])


@pytest.mark.parametrize("shift", [-2, -1, 0, 1, 2])
def test_a_frame_that_ends_at_the_edge_of_a_read(spans: Any, shift: int) -> None:
    """64 KiB are read at a time: a frame boundary there, or next to it, goes unnoticed."""
    # hex digits of noise: half their number is stored
    first = spans.header() + spans.start(1, noise=random.Random(3).randbytes(31_000).hex())
    pad = 65_536 + shift - len(spans.frame(first)) - 8
    skippable = (0x184D2A57).to_bytes(4, "little") + pad.to_bytes(4, "little") + bytes(pad)
    path = spans.sealed(first)
    path.write_bytes(path.read_bytes() + skippable + spans.frame(spans.end(1) + spans.start(2)))
    _, reading = spans.read()

    assert path.read_bytes().index(spans.frame(spans.end(1) + spans.start(2))) == 65_536 + shift
    assert (spans.numbers(), reading.damages) == ([1, 2], [])


def test_a_skippable_frame_with_a_wrong_length_hides_nothing(spans: Any) -> None:
    """Too long or too short: the frames behind it are found."""
    for length in (3, 5, 30, 1 << 30):
        path = spans.sealed(spans.header() + spans.start(1))
        front = path.read_bytes() + (0x184D2A50).to_bytes(4, "little") + length.to_bytes(4, "little") + b"meta"
        path.write_bytes(front + spans.frame(spans.end(1)) + spans.frame(spans.start(2)))
        trees, reading = spans.read()

        assert [c.status for t in trees for c in t.calls] == ["success", "unfinished"]
        assert [d.kind for d in reading.damages] == ["zstd"]


def test_a_frame_without_checksum(spans: Any) -> None:
    """Other tools write none; a healthy file is a healthy file."""
    path = spans.sealed()
    path.write_bytes(spans.frame(b"".join(three_calls(spans)), checksum=False))

    assert (spans.numbers(), spans.read()[1].damages) == ([1, 2, 3], [])


def test_a_record_behind_half_of_another(spans: Any) -> None:
    """A torn write whose newline is missing does not take the next record with it."""
    half = spans.start(1)[:50]
    path = spans.raw(spans.header(), half + spans.start(2), spans.end(2))
    _, reading = spans.read()

    assert spans.numbers() == [2]
    assert [(d.path, d.offset, d.length) for d in reading.damages] == [(path, len(spans.header()), 50)]


def test_lines_that_are_no_records(spans: Any) -> None:
    """Blank lines, other JSON, other text: named one by one."""
    bad = [b"\n", b"[1]\n", b"text\n", b"null\n", b'{"kind":"start","bytes":5}\n', b"\xff\xfe\n"]
    spans.raw(spans.header(), *bad, spans.start(1), spans.end(1))
    _, reading = spans.read()

    assert spans.numbers() == [1]
    assert [d.length for d in reading.damages] == [len(line) for line in bad if b"kind" not in line]
    assert reading.unknown_kinds == {"start without ids": 1}


def test_a_line_of_fifty_megabytes(spans: Any) -> None:
    """Sealed and raw, in memory of a few times its size."""
    line = spans.end(1, output="x" * 50_000_000)
    for write in (spans.raw, spans.sealed):
        path = write(spans.header() + spans.start(1) + line)
        [tree], reading = spans.read()
        assert (len(tree.calls[0].output() or b""), reading.damages) == (50_000_002, [])
        path.unlink()


def test_a_limit_ends_the_reading(spans: Any) -> None:
    """A second look reads what the first one read, also when the file has grown and was sealed meanwhile."""
    lines = three_calls(spans)
    path = spans.raw(*lines)
    size = sum(map(len, lines[:3]))
    assert [line for _, line in SegmentLines(path, sealed=False, limit=size)] == lines[:3]
    sealed = spans.sealed(*lines)
    path.unlink()
    later = SegmentLines(path, sealed=False, sealed_path=sealed, limit=size + 5)
    assert [line for _, line in later] == lines[:3]
    assert (later.path, later.size) == (sealed, size + 5)
    assert [(d.kind, d.length) for d in later.damages] == [("torn", 5)]


def test_a_limit_where_a_piece_ends(tmp_path: Path) -> None:
    """Reading stops within a line at the very byte where a read ends: the line has no end yet, no bytes are missing."""
    path = tmp_path / "growing.jsonl"
    line = b"x" * 1000 + b"\n"
    piece = 1 << 20
    path.write_bytes(line * (piece // len(line) + 2))
    lines = SegmentLines(path, sealed=False, limit=piece)

    assert len(list(lines)) == piece // len(line)
    assert [(d.offset, d.length, d.kind) for d in lines.damages] == [
        (piece - piece % len(line), piece % len(line), "torn")
    ]
    assert lines.size == piece
