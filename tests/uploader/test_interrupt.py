"""Ctrl-C in the middle of an upload."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any


def test_ctrl_c_ends_at_once(proxy: Any, writer: Any, project: str, tmp_path: Path) -> None:
    """With a request under way that nobody answers, Ctrl-C ends the command with one clear line and code 130."""
    recording = writer(tmp_path / "runs", project)
    recording.call("A.run")
    recording.close()
    asked, answered = threading.Event(), threading.Event()

    def decide(path: str, body: bytes) -> None:
        if path.endswith("/calls/complete"):
            asked.set()
            answered.wait(60)

    proxy.decide = decide
    program = "from verl_trace.cli import main; import sys; sys.argv[0] = 'verl-trace'; main()"
    command = [sys.executable, "-c", program, "upload", str(recording.folder)]
    process = subprocess.Popen(
        command,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        # a shell starts background jobs with SIGINT ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert asked.wait(60), process.communicate()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        answered.set()
        process.kill()

    assert (process.returncode, out) == (130, "")
    assert err == "verl-trace: interrupted; what has arrived stays, run the command again to send the rest\n"
