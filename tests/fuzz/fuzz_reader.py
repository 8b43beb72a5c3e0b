"""Fuzzes verify, repair and the tree reader with damaged runs.

    python tests/fuzz/fuzz_reader.py tests/fuzz/corpus -max_total_time=20

An input is a program: how the run is stored, then faults (cut, flip, NUL block, garbage, deletion, insertion) with
their places; or, where it says so, the bytes of a file as they are. What must hold for each:

1. nothing raises, nothing hangs (libFuzzer's -timeout);
2. a file that holds other bytes than were recorded is never whole: a sealed one is compared by its content, of a raw
   one every record is still in its place and in its form;
3. the damage of a raw file is reported where it is;
4. the copy that `repair` makes is whole, and holds every record that no fault has touched.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path

import zstandard

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1"
SEGMENT = "20260301T120000-node3-4711-a1a1a1a1a1a1.00001.jsonl"
# Larger files take longer and hold no fault that a small one does not.
MAX_GARBAGE = 512


class Program:
    """Reads numbers and bytes off an input; zeros behind its end."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def number(self, limit: int) -> int:
        """A number below `limit`."""
        return int(struct.unpack("<H", self._data.read(2).ljust(2, b"\0"))[0]) % max(1, limit)

    def take(self, limit: int) -> bytes:
        """Up to `limit` bytes."""
        return self._data.read(self.number(limit + 1))

    def rest(self) -> bytes:
        """All that is left."""
        return self._data.read()


class Faulty:
    """The stored bytes of a file with faults, and which ranges of the original they touched."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.touched: list[tuple[int, int]] = []
        self.last_end = 0
        self.shifted = False

    def apply(self, program: Program) -> None:
        """One fault; none after one that moved bytes, so that all places are those of the original."""
        if self.shifted:
            return
        kind, at = program.number(6), program.number(len(self.data) + 1)
        size = 1 + program.number(300)
        end = min(len(self.data), at + size)
        if kind == 0:
            self._replace(at, len(self.data), b"")
        elif kind == 1 and at < len(self.data):
            self._replace(at, at + 1, bytes([self.data[at] ^ (1 << program.number(8))]))
        elif kind == 2:
            self._replace(at, end, bytes(end - at))
        elif kind == 3:
            self._replace(len(self.data), len(self.data), program.take(MAX_GARBAGE))
        elif kind == 4:
            self._replace(at, end, b"")
        elif kind == 5:
            self._replace(at, at, program.take(MAX_GARBAGE))

    def _replace(self, begin: int, end: int, new: bytes) -> None:
        if self.data[begin:end] != new:
            self.shifted = self.shifted or len(new) != end - begin
            self.touched.append((begin, end))
            self.last_end = begin + len(new)
            self.data = self.data[:begin] + new + self.data[end:]


def check(data: bytes, scratch: Path) -> None:
    """Run one input in the new folder `scratch`; raises AssertionError where a promise is broken."""
    from verl_trace.reader import find_runs, iter_trajectories
    from verl_trace.reader.repair import repair
    from verl_trace.reader.verify import verify

    program = Program(data)
    form = program.number(4)
    original = content_of_golden()
    if form == 3:
        is_sealed, faulty = bool(program.number(2)), None
        stored = program.rest()
    else:
        is_sealed = form > 0
        faulty = Faulty(sealed(original, frames=form) if is_sealed else original)
        for _ in range(1 + program.number(3)):
            faulty.apply(program)
        stored = faulty.data
    path = scratch / "run" / (SEGMENT + ".zst" if is_sealed else SEGMENT)
    path.parent.mkdir()
    # a segment before it, so that the writer is known when this header is lost
    shutil.copy(next(GOLDEN.glob(f"*/{SEGMENT.replace('00001.jsonl', '00000.jsonl.zst')}")), path.parent)
    path.write_bytes(stored)
    for file in path.parent.iterdir():
        # long ago: no file of a process that may still write
        os.utime(file, (1_000_000_000, 1_000_000_000))

    (report,) = verify(path.parent)
    (found,) = [file for file in report.files if file.path == path]
    for run in find_runs(path.parent):
        for trajectory in iter_trajectories(run):
            assert trajectory.calls
    result = repair(path.parent, scratch / "copy")

    assert result.copy == "whole", result.copy
    copied = b"".join(content_of(copy) for copy in sorted((scratch / "copy").glob("*.zst")))
    if faulty is None:
        return
    if not faulty.touched:
        assert found.state == "whole", found.problems
    elif is_sealed:
        content = content_of(path)
        # cut between two frames it is as one that its writer never finished
        cut = found.state == "torn" and original.startswith(content)
        assert found.state == "damaged" or cut or content == original, found
    else:
        check_raw(found.state, [(p.offset, p.offset + p.length) for p in found.problems], faulty, original)
        for line in untouched(original, faulty):
            assert line in copied, line


def check_raw(state: str, problems: list[tuple[int, int]], faulty: Faulty, original: bytes) -> None:
    """Faults in plain text: those that break a line or remove one are seen, and where they are."""
    if state == "whole":
        before, after = original.splitlines(keepends=True), faulty.data.splitlines(keepends=True)
        assert [line[:8] for line in before] == [line[:8] for line in after]
    elif len(faulty.touched) == 1 and state == "damaged":
        # the line before may be the one that lost its newline, the close record the one that counts
        first = original.rfind(b"\n", 0, max(0, faulty.touched[0][0] - 1)) + 1
        close = faulty.data.rfind(b'{"kind":"close"')
        assert any((offset <= faulty.last_end and first <= stop) or offset == close for offset, stop in problems), (
            problems
        )


def untouched(original: bytes, faulty: Faulty) -> list[bytes]:
    """Records in which no byte was changed, headers and close records excepted."""
    lines, offset = [], 0
    for line in original.splitlines(keepends=True):
        end = offset + len(line)
        # inserted at its very end is behind it; at its very begin it may join garbage, and is to be found all the same
        hit = any((a < end and offset < b) or (a == b and offset < a < end) for a, b in faulty.touched)
        if not hit and not line.startswith((b'{"kind":"header"', b'{"kind":"close"')):
            lines.append(line)
        offset = end
    return lines


def content_of_golden() -> bytes:
    """The plain text of the segment that is damaged."""
    return next(GOLDEN.glob(f"*/{SEGMENT}")).read_bytes()


def sealed(content: bytes, *, frames: int) -> bytes:
    """`content` as zstd frames with checksums, cut anywhere."""
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
    size = len(content) // frames + 1
    return b"".join(compressor.compress(content[i : i + size]) for i in range(0, len(content), size))


def content_of(path: Path) -> bytes:
    """What zstd itself, without our reader, makes of a file; b"" where it refuses."""
    with contextlib.suppress(zstandard.ZstdError):
        reader = zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True)
        return reader.read()
    return b""


def one_input(data: bytes) -> None:
    """Entry point of the fuzzer."""
    scratch = Path(tempfile.mkdtemp(dir=MEMORY if os.path.isdir(MEMORY) else None))
    try:
        check(data, scratch)
    finally:
        shutil.rmtree(scratch)


# A file system in memory: thousands of small files a second would keep a disk busy.
MEMORY = "/dev/shm"


def main() -> None:
    """Hand over to libFuzzer."""
    import atheris

    with atheris.instrument_imports(include=["verl_trace.reader", "verl_trace.schemas"]):
        import verl_trace.reader.repair
        import verl_trace.reader.verify  # noqa: F401
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
