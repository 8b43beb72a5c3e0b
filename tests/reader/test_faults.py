"""Every kind of fault that a span file can meet, each with what `verify` and `repair` make of it.

A fault is never called whole, every record outside of it is read, and the copy is whole and holds these records.
"""

from __future__ import annotations

import io
import os
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
import zstandard

from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.reader.repair import repair
from verl_trace.reader.verify import RunReport, verify
from verl_trace.schemas.files import segment_file_name

FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
SEED = random.SystemRandom().randrange(1 << 32)


class Run(NamedTuple):
    """A healthy run of one writer in two segments: the lines of both."""

    writer: str
    first: list[bytes]
    last: list[bytes]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two segments: nested calls, an error, decoded text, a sampled-out trajectory, a kind and a key of the future."""
    lines = Lines()
    first = [lines.header(0), *lines.trajectory(), *lines.trajectory(text=True), lines.future()]
    first.append(lines.close("rotated", len(first) - 1))
    last = [lines.header(1), *lines.trajectory(error=True), lines.skip(), *lines.trajectory()]
    last.append(lines.close("exit", len(last) - 1))
    run = Run(Lines.writer, first, last)
    store(tmp_path_factory.mktemp("healthy"), run)
    return run


class Lines:
    """Records as `docs/format.md` has them, with a clock of their own."""

    writer = "20260301T120000-node3-4711-9f3c2b7a1d04"

    def __init__(self) -> None:
        self._number = 0

    def _time(self) -> str:
        self._number += 1
        return f"2026-03-01T12:00:{self._number // 60:02d}.{self._number % 60:06d}Z"

    def _head(self, trace: str | None = None, parent: str | None = None) -> dict[str, Any]:
        self._number += 1
        own = f"019ca950-0000-7000-8000-{self._number:012x}"
        return {
            "step": 3, "sample_index": 7, "rollout_n": 0, "validate": False, "experiment_name": "exp1",
            "op": "Loop.run", "id": own, "trace_id": trace or own, "parent_id": parent,
        }  # fmt: skip

    @staticmethod
    def _line(kind: str, head: dict[str, Any], key: str, value: Any) -> bytes:
        body = orjson.dumps(value)
        return orjson.dumps({"kind": kind, "bytes": len(body), **head, key: orjson.Fragment(body)}) + b"\n"

    def header(self, segment: int) -> bytes:
        """First line."""
        return (
            orjson.dumps(
                {
                    "kind": "header", "schema": 1, "writer": self.writer, "segment": segment, "project_name": "me/proj",
                    "experiment_name": "exp1", "attempt": "5c1d0a77be02", "host": "node3", "pid": 4711, "pid_start": 1,
                    "pid_ns": 1, "boot_id": "another", "started_at": self._time(), "opened_at": self._time(),
                    "of_the_future": [1, 2],
                }
            )
            + b"\n"
        )  # fmt: skip

    def trajectory(self, *, error: bool = False, text: bool = False) -> list[bytes]:
        """A root with one child."""
        root = self._head()
        child = self._head(root["id"], root["id"])
        lines = []
        for head in (root, child):
            head["started_at"] = self._time()
            ids = list(range(self._number, self._number + 8))
            lines.append(self._line("start", {**head, "attributes": {"step": 3}}, "inputs", {"prompt_ids": ids}))
        for head in (child, root):
            has_text = text and head is root
            failed = error and head is child
            tail = {
                "ended_at": self._time(), "duration": 0.5, "text": has_text,
                "status": "error" if failed else "success",
                "exception": {"type": "ValueError", "message": "no", "traceback": []} if failed else None,
                "attributes": {"step": 3},
            }  # fmt: skip
            lines.append(self._line("end", {**head, **tail}, "output", None if failed else {"n": self._number}))
            if has_text:
                plain = {key: value for key, value in head.items() if key != "started_at"}
                lines.append(self._line("text", plain, "output", {"prompt_text": "hü", "response_text": "ja"}))
        return lines

    def skip(self) -> bytes:
        """A trajectory that sampling left out."""
        head = {**self._head(), "started_at": self._time(), "reason": "sampling"}
        return self._line("skip", head, "attributes", {"step": 3})

    def future(self) -> bytes:
        """A kind that this version does not know, in a form that no JSON library would write again."""
        return b'{"kind":"mark" , "note" : 1.50, "z":[ ]}\n'

    def close(self, reason: str, records: int) -> bytes:
        """Last line."""
        counters = {"written": records, "skipped": 0, "dropped": 0}
        record = {"kind": "close", "closed_at": self._time(), "reason": reason, "records": records}
        return orjson.dumps({**record, "counters": counters}) + b"\n"


# -- putting runs on the disk, and reading them back ---------------------------------------------------------------


def sealed(*parts: bytes) -> bytes:
    """One zstd frame with a checksum for each part."""
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
    return b"".join(compressor.compress(part) for part in parts)


def store(folder: Path, run: Run, *, first: bytes | None = None, last: bytes | None = None, seal: str = "") -> Path:
    """Write the run, with the stored bytes of a segment replaced; `seal` says which segments lie sealed."""
    folder.mkdir(exist_ok=True)
    for index, (name, lines, data) in enumerate((("first", run.first, first), ("last", run.last, last))):
        is_sealed = name in seal
        path = folder / segment_file_name(run.writer, index, sealed=is_sealed)
        whole = b"".join(lines)
        path.write_bytes(data if data is not None else sealed(whole) if is_sealed else whole)
        aged(path)
    return folder


def aged(path: Path) -> None:
    """A file that nobody has written to for long: its process, on another host, does not live."""
    then = time.time() - 1000
    os.utime(path, (then, then))


def verified(folder: Path) -> RunReport:
    """The one run of a folder."""
    (report,) = verify(folder)
    return report


def body(folder: Path) -> list[bytes]:
    """The lines of a healthy folder without headers, close records and what repair added."""
    lines: list[bytes] = []
    for path in sorted(folder.rglob("*.jsonl*")):
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
        lines += data.splitlines(keepends=True)
    added = (b'{"kind":"header"', b'{"kind":"close"', b'{"kind":"lost"')
    return [line for line in lines if not line.startswith(added)]


def records(lines: list[bytes]) -> list[bytes]:
    """Without header and close."""
    return [line for line in lines if not line.startswith((b'{"kind":"header"', b'{"kind":"close"'))]


def trees(folder: Path) -> list[Any]:
    """All that a reader makes of a folder."""
    return sorted(
        (call.trace_id, call.id, call.parent_id, call.op, call.status, call.inputs, call.output(), call.orphan)
        for run in find_runs(folder)
        for trajectory in iter_trajectories(run)
        for call in trajectory.calls
    )


def check_copy(folder: Path, out: Path, expected: list[bytes] | None = None, *, same_trees: bool = True) -> None:
    """The copy is whole, has the expected records byte for byte, and gives the trees of the original.

    `same_trees` is False where a broken frame may give records that reading takes and `verify` does not trust.
    """
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = repair(folder, out)

    assert result.copy == "whole"
    assert [report.state for report in verify(out)] == ["whole"]
    if expected is not None:
        assert body(out) == expected
    if same_trees:
        assert trees(out) == trees(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def touches(report: RunReport, begin: int, end: int, index: int) -> bool:
    """Whether a problem is told of that overlaps, or borders on, the bytes begin..end of segment `index`."""
    return any(
        problem.offset <= end and begin <= problem.offset + problem.length
        for file in report.files
        if file.index == index
        for problem in file.problems
    )


def outside(lines: list[bytes], begin: int, end: int) -> list[bytes]:
    """The lines of a file that have no byte in begin..end."""
    kept, offset = [], 0
    for line in lines:
        if offset + len(line) <= begin or offset >= end:
            kept.append(line)
        offset += len(line)
    return kept


# -- no fault ------------------------------------------------------------------------------------------------------


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


# -- cuts ----------------------------------------------------------------------------------------------------------


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


# -- flipped bits ----------------------------------------------------------------------------------------------------


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


# -- blocks of NUL, garbage, broken frames ---------------------------------------------------------------------------


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


def all_lines(folder: Path) -> list[bytes]:
    """Every line of a repaired copy."""
    paths = sorted(folder.rglob("*.zst"))
    stored = [zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()) for path in paths]
    return [line for data in stored for line in data.splitlines(keepends=True)]


# -- what a crash, a kill or a hand leaves ---------------------------------------------------------------------------


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
