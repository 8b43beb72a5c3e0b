"""Flipped bits: never called whole, and no line is lost but those around the bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson
import zstandard

from verl_trace.reader.repair import repair
from verl_trace.schemas.files import segment_file_name

from .faulty_runs import (
    SEED,
    Run,
    body,
    outside,
    records,
    sealed,
    store,
    verified,
)


def test_bits_flipped_in_a_sealed_file_are_never_whole(tmp_path: Path, healthy: Run) -> None:
    """Every byte, one bit each: damaged, or a bit that zstd does not use and that changes no byte of the content."""
    print("seed", SEED)
    chance = random.Random(SEED)
    content = b"".join(healthy.first)
    data = sealed(content)
    folder = store(tmp_path / "run", healthy, seal="first")
    path = folder / segment_file_name(healthy.writer, 0, sealed=True)
    unused = 0
    for at in range(len(data)):
        path.write_bytes(flipped(data, at, chance.randrange(8)))
        report = verified(folder)
        if report.state == "whole":
            unused += 1
            assert zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()) == content
        else:
            assert (at, report.state) == (at, "damaged")
    assert unused < len(data) / 20


def test_bits_flipped_in_a_raw_file_are_seen_where_the_format_has_no_room(tmp_path: Path, healthy: Run) -> None:
    """Plain text has no checksum: a letter inside of a value may change unseen, the form of a record may not."""
    print("seed", SEED)
    chance = random.Random(SEED)
    data = b"".join(healthy.first)
    folder = store(tmp_path / "run", healthy, seal="last")
    path = folder / segment_file_name(healthy.writer, 0)
    structure = b'{}[]":,\n'
    for at in range(chance.randrange(3), len(data), 3):
        path.write_bytes(flipped(data, at, chance.randrange(7)))
        report = verified(folder)

        assert report.state in ("whole", "damaged")
        if data[at] in structure and not in_text(healthy.first, at):
            assert report.state == "damaged" or orjson_same(path.read_bytes(), data), (at, data[at - 20 : at + 5])


def in_text(lines: list[bytes], at: int) -> bool:
    """Whether a byte lies in a line that the format leaves to others (the kind of the future) or in the header."""
    offset = 0
    for line in lines:
        if offset <= at < offset + len(line):
            return line.startswith((b'{"kind":"mark"', b'{"kind":"header"'))
        offset += len(line)
    return False


def orjson_same(changed: bytes, original: bytes) -> bool:
    """Whether every line is still an object with the same keys: then only a value has changed."""
    pairs = zip(changed.splitlines(), original.splitlines(), strict=True)
    return all(shape(orjson.loads(a)) == shape(orjson.loads(b)) for a, b in pairs)


def shape(value: Any) -> Any:
    """Keys and nesting, without texts and numbers."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return "list" if isinstance(value, list) else "value"


def flipped(data: bytes, at: int, bit: int) -> bytes:
    """`data` with one bit changed."""
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def test_repair_of_flipped_bits(tmp_path: Path, healthy: Run) -> None:
    """A copy of a file with a flipped bit, sealed or raw, is whole and lacks no line but those around the bit."""
    print("seed", SEED)
    chance = random.Random(SEED)
    content = b"".join(healthy.first)
    for number in range(30):
        seal = "first" if number % 2 else ""
        data = sealed(content) if seal else content
        at = chance.randrange(len(data))
        folder = store(tmp_path / f"run{number}", healthy, first=flipped(data, at, chance.randrange(8)), seal=seal)
        result = repair(folder, tmp_path / f"copy{number}")

        assert result.copy == "whole"
        if not seal:
            kept = records(outside(healthy.first, at, at + 1)) + records(healthy.last)
            assert [line for line in kept if line not in body(tmp_path / f"copy{number}")] == []
