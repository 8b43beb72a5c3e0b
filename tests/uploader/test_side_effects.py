"""An upload uses what weave knows, and starts nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = """
import json, sys
connected = []
def watch(event, arguments):
    if event == "socket.connect":
        connected.append(str(arguments[1]))
sys.addaudithook(watch)
finders = list(sys.meta_path)
from verl_trace.uploader.pipeline import upload
result = upload(sys.argv[1])
import opentelemetry.trace
from weave.telemetry.trace_sentry import global_trace_sentry
from weave.trace.context import weave_client_context
print(json.dumps({
    "sent": result.sent,
    "connected": sorted(set(connected)),
    "tracer": type(opentelemetry.trace.get_tracer_provider()).__module__.startswith("opentelemetry.sdk"),
    "client": weave_client_context.get_weave_client() is not None,
    "finders": [
        type(f).__name__ for f in sys.meta_path if f not in finders and "weave.integrations" in type(f).__module__
    ],
    "sentry": not global_trace_sentry._disabled,
    "wandb": "wandb" in sys.modules,
}))
"""


def test_nothing_of_weave_is_started(wandb_login: Any, writer: Any, project: str, tmp_path: Path) -> None:
    """No client, no tracer provider, no import hook, no error reports, no `wandb`, no host but the user's own."""
    recording = writer(tmp_path / "runs", project)
    recording.call("A.run")
    recording.close()
    environment = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    command = [sys.executable, "-c", PROGRAM, str(recording.folder)]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 1)
    host, _, port = wandb_login.url.removeprefix("http://").partition(":")
    assert json.loads(done.stdout) == {
        "sent": 1,
        "connected": [str((host, int(port)))],
        "tracer": False,
        "client": False,
        "finders": [],
        "sentry": False,
        "wandb": False,
    }


# The uploader sets these itself.
SWITCHES = ("WANDB_DISABLE_WEAVE", "WANDB_ERROR_REPORTING")
