"""Files cut off anywhere, raw and sealed: never called whole, every record before the cut is read and copied."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from verl_trace.reader.repair import repair
from verl_trace.schemas.files import segment_file_name

from .faulty_runs import (
    SEED,
    Run,
    aged,
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


@pytest.mark.parametrize("seal", ["", "first", "first last"])
def test_healthy_run_is_whole_and_copied_byte_for_byte(tmp_path: Path, healthy: Run, seal: str) -> None:
    """Nothing is reported, and the copy has every line, headers and close records included."""
    folder = store(tmp_path / "run", healthy, seal=seal)
    report = verified(folder)

    assert report.state == "whole"
    assert [problem for file in report.files for problem in file.problems] == []
    assert (report.calls, report.unfinished, report.unknown_kinds) == (8, 0, {"mark": 1})
    result = repair(folder, tmp_path / "copy")
    assert result.complete
    assert result.made_anew == []
    assert all_lines(tmp_path / "copy") == healthy.first + healthy.last


def test_raw_file_cut_anywhere_is_torn(tmp_path: Path, healthy: Run) -> None:
    """Wherever a kill ends the last file, all whole lines before are read and the state is `torn`, never `whole`."""
    data = b"".join(healthy.last)
    folder = store(tmp_path / "run", healthy, seal="first")
    path = folder / segment_file_name(healthy.writer, 1)
    end_of_last_call = sum(map(len, healthy.last[:-2]))
    boundaries = [sum(map(len, healthy.last[:count])) for count in range(len(healthy.last))]
    for cut in sorted({*range(0, end_of_last_call, 5), *boundaries, *range(end_of_last_call, len(data))}):
        path.write_bytes(data[:cut])
        aged(path)
        report = verified(folder)
        whole = outside(healthy.last, cut, len(data))

        assert (cut, report.state) == (cut, "torn")
        assert report.records == len(records(healthy.first)) + len(records(whole))


def test_raw_file_in_the_middle_cut_anywhere_is_damaged(tmp_path: Path, healthy: Run) -> None:
    """A writer that went on in another segment was not killed in this one: what is not there was lost."""
    data = b"".join(healthy.first)
    folder = store(tmp_path / "run", healthy, seal="last")
    path = folder / segment_file_name(healthy.writer, 0)
    boundaries = [sum(map(len, healthy.first[:count])) for count in range(len(healthy.first))]
    for cut in sorted({*range(0, len(data), 7), *boundaries}):
        path.write_bytes(data[:cut])
        report = verified(folder)

        assert (cut, report.state) == (cut, "damaged")
        assert touches(report, min(cut, data.rfind(b"\n", 0, cut) + 1), len(data), 0)


@pytest.mark.parametrize("seal", ["first", "last"])
def test_sealed_file_cut_at_every_byte_is_damaged(tmp_path: Path, healthy: Run, seal: str) -> None:
    """A sealed file was published whole; whatever is cut off is damage, in the last segment as well."""
    index = 0 if seal == "first" else 1
    data = sealed(b"".join((healthy.first, healthy.last)[index]))
    folder = store(tmp_path / "run", healthy, seal=seal)
    path = folder / segment_file_name(healthy.writer, index, sealed=True)
    for cut in range(len(data)):
        path.write_bytes(data[:cut])

        assert (cut, verified(folder).state) == (cut, "damaged")


def test_repair_of_cuts(tmp_path: Path, healthy: Run) -> None:
    """Of a file cut anywhere the copy has every whole line; calls cut off from their ends stay unfinished."""
    print("seed", SEED)
    chance = random.Random(SEED)
    data = b"".join(healthy.last)
    cuts = [0, 1, len(healthy.last[0]), len(data) - 1, *chance.sample(range(len(data)), 25)]
    for number, cut in enumerate(cuts):
        folder = store(tmp_path / f"run{number}", healthy, last=data[:cut])
        kept = records(healthy.first) + records(outside(healthy.last, cut, len(data)))

        check_copy(folder, tmp_path / f"copy{number}", kept)


def test_repair_of_cut_sealed_files(tmp_path: Path, healthy: Run) -> None:
    """Of a sealed file cut anywhere the copy has what zstd still gives."""
    print("seed", SEED)
    chance = random.Random(SEED)
    frames = [b"".join(healthy.first[:5]), b"".join(healthy.first[5:])]
    data = sealed(*frames)
    second = len(sealed(frames[0]))
    for number, cut in enumerate([0, 3, second, len(data) - 1, *chance.sample(range(len(data)), 12)]):
        folder = store(tmp_path / f"run{number}", healthy, first=data[:cut], seal="first")
        check_copy(folder, tmp_path / f"copy{number}")
        if cut >= second:
            assert body(tmp_path / f"copy{number}")[:4] == healthy.first[1:5]
