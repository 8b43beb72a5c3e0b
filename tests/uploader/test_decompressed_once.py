"""How often an upload decompresses a run: once to send it, once more where no outline is kept of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import find_runs, frames, segments
from verl_trace.reader.outlines import iter_outlines
from verl_trace.recorder.sealing import seal
from verl_trace.uploader import upload

# Random text is as long in a sealed file as the bits in it: what comes out of a few stored KiB stays small.
TEXT = 100_000
CALLS = 20


@pytest.mark.parametrize(("reason", "kept", "times"), [("exit", True, 1), ("exit", False, 2), ("killed", True, 2)])
def test_an_upload_decompresses_once(
    tmp_path: Path, writer: Any, monkeypatch: pytest.MonkeyPatch, reason: str, kept: bool, times: int
) -> None:
    """Only where a process has left calls unfinished it is asked how its file ends, too."""
    monkeypatch.setenv("VERL_TRACE_CACHE", str(tmp_path / "cache"))
    made = writer(tmp_path / "runs", "team/p")
    for _ in range(CALLS):
        made.call("A.run", secrets.token_hex(TEXT // 2))
    if reason == "killed":
        made.start("A.run")
    else:
        made.close()
    made.age(3600)
    size = made.path.stat().st_size
    seal(made.path)
    if kept:
        (run,) = find_runs(tmp_path / "runs")
        assert len(list(iter_outlines(run))) == CALLS + (reason == "killed")
    out = 0
    plain = frames.decompressed

    def counted(file: frames.ReadFile) -> Iterator[bytes | frames.BadBytes]:
        nonlocal out
        for piece in plain(file):
            out += len(piece) if isinstance(piece, bytes) else 0
            yield piece

    monkeypatch.setattr(segments, "decompressed", counted)
    report = upload(tmp_path / "runs", dry_run=True).runs[0]

    assert report.to_send == CALLS + (reason == "killed")
    # the header is read by itself
    assert times * size <= out < times * size + size // 2
