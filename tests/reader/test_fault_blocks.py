"""Blocks of NUL, garbage, records too many, broken frames: told where they are, and all else is read and copied."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from .faulty_runs import (
    SEED,
    Lines,
    Run,
    all_lines,
    body,
    check_copy,
    outside,
    records,
    sealed,
    store,
    touches,
    verified,
)

FRAME_MAGIC = b"\x28\xb5\x2f\xfd"


def test_block_of_nul_in_a_raw_file_is_reported_where_it_is(tmp_path: Path, healthy: Run) -> None:
    """As a network file system leaves them: all lines outside of the block are read and copied."""
    print("seed", SEED)
    chance = random.Random(SEED)
    data = b"".join(healthy.first)
    for number in range(25):
        begin = chance.randrange(len(data) - 1)
        end = min(len(data), begin + chance.choice([1, 7, 64, 700]))
        folder = store(tmp_path / f"run{number}", healthy, first=data[:begin] + bytes(end - begin) + data[end:])
        report = verified(folder)

        assert report.state == "damaged"
        assert touches(report, begin, end, 0)
        kept = records(outside(healthy.first, begin, end)) + records(healthy.last)
        check_copy(folder, tmp_path / f"copy{number}", kept)


def test_block_of_nul_between_two_lines_takes_neither(tmp_path: Path, healthy: Run) -> None:
    """A block that was put in, without a newline of its own, costs no record."""
    lines = [*healthy.first[:4], bytes(512), *healthy.first[4:]]
    folder = store(tmp_path / "run", healthy, first=b"".join(lines))
    report = verified(folder)

    assert report.state == "damaged"
    offset = sum(map(len, healthy.first[:4]))
    assert [(p.offset, p.length) for f in report.files for p in f.problems] == [(offset, 512)]
    check_copy(folder, tmp_path / "copy", records(healthy.first) + records(healthy.last))


def test_block_of_nul_in_a_sealed_file_is_damage(tmp_path: Path, healthy: Run) -> None:
    """Anywhere in it."""
    print("seed", SEED)
    chance = random.Random(SEED)
    data = sealed(b"".join(healthy.last))
    for number in range(20):
        begin = chance.randrange(len(data) - 1)
        end = min(len(data), begin + chance.choice([8, 64, 700]))
        if not data[begin:end].strip(b"\0"):
            continue
        broken = data[:begin] + bytes(end - begin) + data[end:]
        folder = store(tmp_path / f"run{number}", healthy, last=broken, seal="last")

        assert verified(folder).state == "damaged"
        check_copy(folder, tmp_path / f"copy{number}", same_trees=False)


@pytest.mark.parametrize("seal", ["", "last"])
@pytest.mark.parametrize("garbage", [b"\x93\xff\x00\n", b"x", b"garbage\n", bytes(4096), b"{}\n", FRAME_MAGIC, b"\n"])
def test_garbage_behind_the_end_is_damage(tmp_path: Path, healthy: Run, seal: str, garbage: bytes) -> None:
    """Nothing may follow the close record; all that was recorded is still read."""
    whole = b"".join(healthy.last)
    data = (sealed(whole) if seal else whole) + garbage
    folder = store(tmp_path / "run", healthy, last=data, seal=seal)
    report = verified(folder)

    assert report.state == "damaged"
    if not seal:
        assert touches(report, len(whole), len(data), 1)
    check_copy(folder, tmp_path / "copy", records(healthy.first) + records(healthy.last))


def test_records_behind_the_close_record_are_damage_and_kept(tmp_path: Path, healthy: Run) -> None:
    """A frame or lines that somebody appended: nobody knows why, and nothing is thrown away."""
    more = Lines()
    more._number = 2_000
    added = more.trajectory()
    for number, seal in enumerate(("", "last")):
        whole, tail = b"".join(healthy.last), b"".join(added)
        data = sealed(whole, tail) if seal else whole + tail
        folder = store(tmp_path / f"run{number}", healthy, last=data, seal=seal)

        problems = [problem for file in verified(folder).files for problem in file.problems]
        behind = [problem.offset for problem in problems if "after the close record" in problem.reason]
        assert behind == [len(whole) + sum(map(len, added[:count])) for count in range(len(added))]
        check_copy(folder, tmp_path / f"copy{number}", records(healthy.first) + records(healthy.last) + added)


def test_broken_frame_in_the_middle_costs_its_own_records_only(tmp_path: Path, healthy: Run) -> None:
    """Reading goes on at the next frame, and the damage is told with the place and length of the frame."""
    parts = [b"".join(healthy.first[:4]), b"".join(healthy.first[4:7]), b"".join(healthy.first[7:])]
    frames = [sealed(part) for part in parts]
    middle = bytearray(frames[1])
    middle[len(middle) // 2] ^= 0xFF
    begin, end = len(frames[0]), len(frames[0]) + len(frames[1])
    folder = store(tmp_path / "run", healthy, first=frames[0] + bytes(middle) + frames[2], seal="first")
    report = verified(folder)

    assert report.state == "damaged"
    (damage,) = [problem for file in report.files for problem in file.problems if problem.kind == "zstd"]
    assert begin <= damage.offset
    assert damage.offset + damage.length == end
    check_copy(folder, tmp_path / "copy", same_trees=False)
    copied = body(tmp_path / "copy")
    assert [line for line in records(healthy.first[:4] + healthy.first[7:] + healthy.last) if line not in copied] == []
    lost = [orjson.loads(line) for line in all_lines(tmp_path / "copy") if line.startswith(b'{"kind":"lost"')]
    assert [record["repaired"]["damages"][0]["kind"] for record in lost] == ["zstd"]
