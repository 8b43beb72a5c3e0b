"""What a crash, a kill or a hand leaves: files in two forms, lost headers, missing, renamed and edited files."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from verl_trace.reader.repair import repair
from verl_trace.schemas.files import segment_file_name

from .faulty_runs import (
    Run,
    aged,
    all_lines,
    body,
    check_copy,
    records,
    sealed,
    store,
    verified,
)


def test_raw_and_sealed_form_of_one_segment_count_once(tmp_path: Path, healthy: Run) -> None:
    """A crash between publishing the sealed file and removing the raw one is no fault."""
    folder = store(tmp_path / "run", healthy, seal="first last")
    store(folder, healthy)
    report = verified(folder)

    assert report.state == "whole"
    assert report.records == len(records(healthy.first)) + len(records(healthy.last))
    check_copy(folder, tmp_path / "copy", records(healthy.first) + records(healthy.last))


def test_damaged_form_is_reported_and_the_whole_one_copied(tmp_path: Path, healthy: Run) -> None:
    """Of two forms the better one is copied, and the other is still called what it is."""
    whole = b"".join(healthy.first)
    cases = {"sealed broken": (sealed(whole)[:-30], whole), "raw broken": (sealed(whole), whole[:700] + whole[760:])}
    for name, (zst, raw) in cases.items():
        folder = store(tmp_path / name, healthy, first=zst, seal="first")
        store(folder, healthy, first=raw)

        assert verified(folder).state == "damaged"
        repair(folder, tmp_path / f"{name} copy")
        assert body(tmp_path / f"{name} copy") == records(healthy.first) + records(healthy.last)


def test_forms_that_differ_are_damage(tmp_path: Path, healthy: Run) -> None:
    """Two whole files of one segment that hold different records: one of them is not what was recorded."""
    folder = store(tmp_path / "run", healthy, seal="first")
    store(folder, healthy, first=b"".join(healthy.first).replace(b'"step":3', b'"step":4'))
    report = verified(folder)

    assert report.state == "damaged"
    assert [problem.kind for file in report.files for problem in file.problems] == ["twin"]


def test_lost_header_is_taken_from_a_sibling(tmp_path: Path, healthy: Run) -> None:
    """The copy's header says whose file it is and that it was made anew."""
    folder = store(tmp_path / "run", healthy, first=b"".join(healthy.first[1:]))

    assert verified(folder).state == "damaged"
    check_copy(folder, tmp_path / "copy", records(healthy.first) + records(healthy.last))
    header = orjson.loads(all_lines(tmp_path / "copy")[0])
    assert (header["kind"], header["segment"], header["project_name"]) == ("header", 0, "me/proj")
    assert header["repaired"] == {"header": "sibling", "missing_before": 0}


def test_headers_all_lost_are_made_from_the_name(tmp_path: Path, healthy: Run) -> None:
    """What host, process and time the file's name tells is in the header again."""
    folder = store(tmp_path / "run", healthy, first=b"".join(healthy.first[1:]), last=b"".join(healthy.last[1:]))
    check_copy(folder, tmp_path / "copy", records(healthy.first) + records(healthy.last))
    header = orjson.loads(all_lines(tmp_path / "copy")[0])

    assert (header["host"], header["pid"], header["started_at"]) == ("node3", 4711, "2026-03-01T12:00:00.000000Z")
    assert header["repaired"]["header"] == "file name"


def test_torn_text_line_costs_that_text_only(tmp_path: Path, healthy: Run) -> None:
    """The call keeps its output; that its decoded text is not there is counted."""
    lines = [line[:60] + b"\n" if line.startswith(b'{"kind":"text"') else line for line in healthy.first]
    folder = store(tmp_path / "run", healthy, first=b"".join(lines))
    report = verified(folder)

    assert (report.state, report.without_text) == ("damaged", 1)
    check_copy(
        folder,
        tmp_path / "copy",
        [r for r in records(healthy.first) if b'{"kind":"text"' not in r] + records(healthy.last),
    )


@pytest.mark.parametrize(("seal", "state"), [("", "torn"), ("last", "damaged")])
def test_empty_file(tmp_path: Path, healthy: Run, seal: str, state: str) -> None:
    """A process killed before its header leaves an empty raw file; an empty sealed one was never published by us."""
    folder = store(tmp_path / "run", healthy, last=b"", seal=seal)

    assert verified(folder).state == state
    check_copy(folder, tmp_path / "copy", records(healthy.first))


def test_missing_segment_is_named(tmp_path: Path, healthy: Run) -> None:
    """The first, one in the middle, or one after a segment that says the writer goes on; the copy says it too."""
    for index in (0, 1):
        folder = store(tmp_path / f"run{index}", healthy)
        (folder / segment_file_name(healthy.writer, index)).unlink()
        report = verified(folder)

        assert report.state == "damaged"
        assert report.missing == [segment_file_name(healthy.writer, index)]
        check_copy(folder, tmp_path / f"copy{index}", records((healthy.last, healthy.first)[index]))


def test_renamed_file_is_damage(tmp_path: Path, healthy: Run) -> None:
    """A file under a name that its header does not bear would count as a process of its own."""
    folder = store(tmp_path / "run", healthy)
    stray = folder / segment_file_name("20260301T120000-node3-4712-000000000000", 0)
    stray.write_bytes(b"".join(healthy.first))
    aged(stray)
    report = verified(folder)

    assert report.state == "damaged"
    assert [problem.kind for file in report.files if file.path == stray for problem in file.problems] == ["header"]
    assert len(report.duplicates) == len([line for line in records(healthy.first) if b'"mark"' not in line])
    check_copy(folder, tmp_path / "copy")


def test_removed_line_is_noticed(tmp_path: Path, healthy: Run) -> None:
    """By the count of the close record, and where that is gone too by the call that never started."""
    start = next(line for line in healthy.last if line.startswith(b'{"kind":"start"'))
    for number, lines in enumerate((healthy.last, healthy.last[:-1])):
        folder = store(tmp_path / f"run{number}", healthy, last=b"".join(line for line in lines if line != start))
        report = verified(folder)

        assert report.state == "damaged"
        assert [len(ids) for ids in report.without_start.values()] == [1]
        check_copy(folder, tmp_path / f"copy{number}")


def test_removed_record_that_nothing_else_misses_is_counted(tmp_path: Path, healthy: Run) -> None:
    """A skip record belongs to no call: the close record counts it."""
    lines = [line for line in healthy.last if not line.startswith(b'{"kind":"skip"')]
    folder = store(tmp_path / "run", healthy, last=b"".join(lines))
    report = verified(folder)

    assert [problem.kind for file in report.files for problem in file.problems] == ["close"]
    assert report.files[1].lost == 1
    check_copy(folder, tmp_path / "copy", records(healthy.first) + records(lines))


@pytest.mark.parametrize("key", [b'"bytes":', b'"started_at":', b'"trace_id":', b'"inputs":'])
def test_record_without_what_it_must_have_is_damage(tmp_path: Path, healthy: Run, key: bytes) -> None:
    """A required key with another name, a length that is not the payload's: the record is left out, and said to be."""
    start = next(line for line in healthy.first if line.startswith(b'{"kind":"start"'))
    wrong = start.replace(b'"bytes":', b'"bytes":1') if key == b'"bytes":' else start.replace(key, b'"x' + key[1:])
    folder = store(tmp_path / "run", healthy, first=b"".join(healthy.first).replace(start, wrong))
    report = verified(folder)

    assert ("line", len(wrong)) in [(p.kind, p.length) for file in report.files for p in file.problems]
    kept = [line for line in records(healthy.first) if line != start]
    check_copy(folder, tmp_path / "copy", kept + records(healthy.last), same_trees=False)


def test_line_there_twice_is_reported_and_copied_once(tmp_path: Path, healthy: Run) -> None:
    """A duplicated record counts once for every reader; the copy has it once."""
    twice = [*healthy.first[:3], healthy.first[2], *healthy.first[3:]]
    folder = store(tmp_path / "run", healthy, first=b"".join(twice))
    report = verified(folder)

    assert report.state == "damaged"
    assert [damage.offset for damage in report.duplicates] == [sum(map(len, twice[:3]))]
    check_copy(folder, tmp_path / "copy", records(healthy.first) + records(healthy.last))
