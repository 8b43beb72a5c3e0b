"""A damaged file that a whole copy has replaced, of the same size and age: the copy counts, not what was kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from verl_trace.reader import find_runs, iter_trajectories
from verl_trace.reader.outline_cache import cache_folder
from verl_trace.reader.outlines import iter_outlines
from verl_trace.reader.pack import pack

Spans = Any


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_TRACE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def replaced(path: Path, content: bytes) -> None:
    """As `rsync --times --checksum` and `cp --preserve` leave it."""
    age = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(age.st_atime_ns, age.st_mtime_ns))


def calls(folder: Path) -> list[tuple[int, bool]]:
    """Calls of each trajectory, and whether one lacks its end."""
    (run,) = find_runs(folder)
    whole = sorted((len(tree.calls), any(call.unfinished for call in tree.calls)) for tree in iter_trajectories(run))
    outlines = sorted((one.figures.calls, bool(one.figures.unfinished)) for one in iter_outlines(run))
    assert outlines == whole
    return whole


def of_frames(spans: Spans) -> Path:
    """A sealed file of two traces in three frames."""
    begun = [spans.header(), spans.start(1), spans.start(2, 1)]
    path: Path = spans.sealed(
        b"".join(begun), spans.end(2, 1), spans.end(1) + spans.start(3) + spans.end(3) + spans.close()
    )
    return path


def damaged(content: bytes, spans: Spans) -> bytes:
    """The same with a byte changed in the frame between."""
    at = content.index(spans.frame(spans.end(2, 1))) + 20
    return content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]


def test_a_file_that_was_damaged_on_the_way_and_copied_again(spans: Spans) -> None:
    """All of its calls are found, and none is taken for interrupted."""
    path = of_frames(spans)
    spans.age()
    whole = path.read_bytes()
    replaced(path, damaged(whole, spans))
    assert calls(spans.folder) == [(1, False), (2, True)]
    replaced(path, whole)
    assert calls(spans.folder) == [(1, False), (2, False)]


def test_a_packed_run_that_was_damaged_on_the_way_and_copied_again(spans: Spans, tmp_path: Path) -> None:
    """The files in it have the same size and age in both."""
    of_frames(spans)
    spans.age()
    packed = tmp_path / "exp1.tar"
    pack([spans.run()], packed)
    whole = packed.read_bytes()
    replaced(packed, damaged(whole, spans))
    assert calls(packed) == [(1, False), (2, True)]
    packed.write_bytes(whole)
    os.utime(packed)
    assert calls(packed) == [(1, False), (2, False)]


def test_a_kept_outline_that_tells_of_less(spans: Spans) -> None:
    """The file counts, and is read to its end."""
    of_frames(spans)
    spans.age()
    assert calls(spans.folder) == [(1, False), (2, False)]
    (kept,) = cache_folder().iterdir()
    head, *rest = zstandard.ZstdDecompressor().decompress(kept.read_bytes(), max_output_size=1 << 20).split(b"\n")
    told = {**orjson.loads(head), "size": 3, "records": [1, 1]}
    kept.write_bytes(zstandard.ZstdCompressor().compress(b"\n".join([orjson.dumps(told), *rest])))

    assert calls(spans.folder) == [(1, False), (2, False)]
