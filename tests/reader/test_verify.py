"""What `verify` says of runs that nothing happened to but life: writing, killing, thinning, newer versions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from verl_trace.reader import find_runs, places
from verl_trace.reader.pairing import Pairing
from verl_trace.reader.verify import RunReport, verify
from verl_trace.schemas.errors import NotARun

RECORD = """
import os, signal, sys, time
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

class Loop:
    @rollout_trace_op
    def run(self, n):
        if n == 150:
            print("working", flush=True)
            sys.stdin.readline()
            os.kill(os.getpid(), signal.SIGKILL)
        return "x" * 1000

RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
for n in range(int(sys.argv[1])):
    # files are changed in the background: on a busy machine that may take a while
    while n == 100 and not any("00001" in name for name in os.listdir(os.environ["VERL_TRACE_DIR"] + "/exp1")):
        time.sleep(0.01)
    with rollout_trace_attr(sample_index=n, step=1, rollout_n=0):
        Loop().run(n)
"""


def verified(runs: Path) -> RunReport:
    """The one run in a folder of runs."""
    (report,) = verify(runs)
    return report


def recording(runs: Path, calls: int) -> subprocess.Popen[str]:
    """A process that records; call number 150 waits for a line and then kills it."""
    environment = os.environ | {"VERL_TRACE_DIR": str(runs), "VERL_TRACE_SEGMENT_BYTES": "64K"}
    command = [sys.executable, "-c", RECORD, str(calls)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_recorded_run_is_whole(tmp_path: Path) -> None:
    """What the recorder writes over several segments passes every check."""
    with recording(tmp_path, 140) as process:
        process.communicate()
    report = verified(tmp_path)

    assert report.state == "whole"
    assert len(report.files) > 1
    assert (report.calls, report.unfinished) == (140, 0)


def test_live_run_is_whole_and_a_killed_one_torn(tmp_path: Path) -> None:
    """While the process is in a call nothing is wrong; after SIGKILL its last file has no end, and that is all."""
    with recording(tmp_path, 200) as process:
        assert process.stdout is not None
        process.stdout.readline()
        live = verified(tmp_path)
        process.communicate("go\n")
    killed = verified(tmp_path)

    assert live.state == "whole", live.as_json()
    assert (live.calls, live.unfinished) == (151, 1)
    assert killed.state == "torn", killed.as_json()
    assert (killed.calls, killed.unfinished) == (151, 1)


def test_line_being_written_is_no_damage(tmp_path: Path, writer: Any) -> None:
    """Of a live process: half a record, NUL bytes that a network file system may show meanwhile."""
    for number, begun in enumerate((b"{", b'{"kind":"sta', b'{"kind":"end","bytes":12,"step":3', bytes(100))):
        spans = writer(tmp_path / str(number), "proj")
        spans.call("Loop.run")
        with spans.path.open("ab") as file:
            file.write(begun)

        assert verified(tmp_path / str(number)).state == "whole"
        spans.age(1000)
        assert verified(tmp_path / str(number)).state == ("damaged" if begun == bytes(100) else "torn")


def test_kill_between_two_segments_is_torn(tmp_path: Path, writer: Any) -> None:
    """The next segment is opened before the last line of the one before: whole while it lives, then a kill."""
    spans = writer(tmp_path, "proj")
    spans.call("Loop.run")
    first = spans.path
    following = first.with_name(first.name.replace(".00000.", ".00001."))
    header = first.read_bytes().splitlines(keepends=True)[0].replace(b'"segment":0', b'"segment":1')
    for begun in (header, header[:30], b""):
        following.write_bytes(begun)
        assert verified(tmp_path).state == "whole"
        for path in (first, following):
            os.utime(path, (1_000_000_000, 1_000_000_000))
        assert verified(tmp_path).state == "torn"
    with first.open("r+b") as file:
        file.truncate(first.stat().st_size - 10)
    os.utime(first, (1_000_000_000, 1_000_000_000))
    assert verified(tmp_path).state == "damaged"


def test_segment_sealed_while_it_is_looked_for_is_read(
    tmp_path: Path, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live writer publishes the sealed file and removes the raw one between our two looks."""
    spans = writer(tmp_path, "proj")
    spans.call("Loop.run")
    spans.close()

    def seal_after_look(path: Path) -> bool:
        there = places.is_file(path)
        if path == spans.path:
            monkeypatch.undo()
            content = spans.path.read_bytes()
            sealed = zstandard.ZstdCompressor(write_checksum=True).compress(content)
            spans.path.with_name(spans.path.name + ".zst").write_bytes(sealed)
            spans.path.unlink()
        return there

    monkeypatch.setattr("verl_trace.reader.verify.is_file", seal_after_look)
    report = verified(tmp_path)

    assert not spans.path.exists()
    assert (report.state, report.calls) == ("whole", 1)
    assert [file.sealed for file in report.files] == [True]


def test_segment_that_a_listing_missed_is_read(tmp_path: Path, writer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder listing may pass over a file that is renamed meanwhile: it is looked for before it is called missing."""
    spans = writer(tmp_path, "proj")
    spans.call("Loop.run")
    spans.close()
    (run,) = find_runs(tmp_path)
    content = spans.path.read_bytes()
    first, last = content.replace(b'"reason":"exit"', b'"reason":"rotated"'), content.splitlines(keepends=True)
    last = [last[0].replace(b'"segment":0', b'"segment":1'), last[-1].replace(b'"records":2', b'"records":0')]
    spans.path.write_bytes(first)
    spans.path.with_name(spans.path.name.replace(".00000.", ".00001.")).write_bytes(b"".join(last))
    run.writers[0].segments[0].index = 1
    monkeypatch.setattr("verl_trace.reader.verify.find_runs", lambda path: [run])
    report = verified(tmp_path)

    assert (report.state, report.missing, report.calls) == ("whole", [], 1)


def test_one_file_alone_says_nothing_of_its_neighbours(tmp_path: Path, writer: Any) -> None:
    """The other segments of its writer, and starts that may lie there, are not missed."""
    spans = writer(tmp_path, "proj")
    spans.end(spans.start("Loop.run", on_disk=False))
    spans.close()

    assert [report.state for report in verify(spans.path)] == ["whole"]
    assert verified(tmp_path).state == "damaged"


def test_lost_record_explains_a_call_without_start(tmp_path: Path, writer: Any) -> None:
    """A full disk took the start: the recorder has said so, the file is as it was written."""
    spans = writer(tmp_path, "proj")
    spans.write({"kind": "lost", "since": spans.tick(), "until": spans.tick(), "counts": {"ENOSPC": 1}, "records": 1})
    spans.end(spans.start("Loop.run", on_disk=False))
    spans.close()
    report = verified(tmp_path)

    assert (report.state, report.lost_records) == ("whole", 1)
    assert sum(map(len, report.without_start.values())) == 1


def test_newer_format_is_noted_and_read(tmp_path: Path, writer: Any) -> None:
    """A header of schema 2 is no damage; the report says what to do."""
    spans = writer(tmp_path, "proj")
    spans.call("Loop.run")
    spans.close()
    spans.path.write_bytes(spans.path.read_bytes().replace(b'"schema":1', b'"schema":2', 1))
    report = verified(tmp_path)

    assert report.state == "whole"
    assert ["upgrade" in note for file in report.files for note in file.notes] == [True]


def test_folder_that_cannot_be_read_is_told(tmp_path: Path, writer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that nobody could look at is not called whole for it."""
    spans = writer(tmp_path, "proj")
    spans.call("Loop.run")
    spans.close()
    (tmp_path / "closed").mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("closed") and allowed(path, mode))
    report = verified(tmp_path)

    assert report.state == "damaged"
    assert report.unreadable == [str(tmp_path / "closed")]


def test_nothing_to_verify(tmp_path: Path) -> None:
    """A folder without span files is a message, not an empty report."""
    with pytest.raises(NotARun):
        verify(tmp_path)


def test_pairing_takes_records_in_any_order() -> None:
    """Ends before starts, texts before ends: nothing is left over; a second record of a kind is refused."""
    head = {"id": "a", "text": True}
    for order in (["start", "end", "text"], ["text", "end", "start"], ["end", "start", "text"]):
        pairing = Pairing()

        assert all(pairing.take(kind, head, "w") for kind in order)
        assert (pairing.calls, pairing.unfinished(), pairing.without_text(), pairing.without_start()) == (1, 0, 0, {})
        assert not any(pairing.take(kind, head, "w") for kind in order)
