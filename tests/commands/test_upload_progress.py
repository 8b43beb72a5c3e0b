"""The line of progress of `verl-trace upload`."""

from __future__ import annotations

import io

import pytest

from verl_trace.commands import upload_progress
from verl_trace.uploader.result import RunReport, UploadResult


def test_plain_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, whole lines now and then."""
    stream = io.StringIO()
    monkeypatch.setattr(upload_progress, "PLAIN_INTERVAL", 0.0)

    with upload_progress.showing_progress(stream) as show:
        show(some_result())

    assert stream.getvalue() == "verl-trace: 1,500 calls read, 1,000 sent, 2 skipped, 1 failed\n"


def test_terminal_progress() -> None:
    """On a terminal, one line that moves and is gone at the end."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()

    with upload_progress.showing_progress(stream) as show:
        show(some_result())

    assert "1,000 sent" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K")


def some_result() -> UploadResult:
    report = RunReport("p", "e", "demo/p", recorded=1500, sent=1000, failed=1)
    report.skipped["already stored"] = 2
    return UploadResult([report])
