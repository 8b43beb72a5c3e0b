"""What a test asks a verl worker about itself; each function runs inside of the worker."""

from __future__ import annotations

import socket
import sys
import traceback
from pathlib import Path
from typing import Any

WATCHED = ("weave", "wandb", "verl_trace")
_sockets: list[str] = []


def watch_sockets(worker: Any) -> None:
    """Note every socket that the process makes from now on, with the file whose line asked for it."""
    import verl_trace

    package = str(Path(verl_trace.__file__).resolve().parent)

    def hook(event: str, _: tuple[Any, ...]) -> None:
        if event in ("socket.__new__", "socket.connect", "socket.getaddrinfo"):
            asked = _nearest(sys._getframe(1))
            if asked.startswith(package):
                _sockets.append(f"{event} {asked}")

    sys.addaudithook(hook)
    # a socket of our own making, so that an empty list is known to mean something
    control = compile("import socket; socket.socket().close()", f"{package}/control.py", "exec")
    exec(control)


def sockets(worker: Any) -> list[str]:
    """Sockets asked for by a line of the package, the control's included."""
    return list(_sockets)


def loaded(worker: Any) -> list[str]:
    """Which of the watched packages this process has imported."""
    return [name for name in WATCHED if name in sys.modules]


def trace_config(worker: Any) -> dict[str, Any]:
    """What verl's own configuration object says in the worker."""
    from verl.utils.rollout_trace import RolloutTraceConfig

    config = RolloutTraceConfig.get_instance()
    names = ("backend", "token2text", "project_name", "experiment_name", "max_samples_per_step_per_worker")
    return {**{name: getattr(config, name) for name in names}, "client": repr(RolloutTraceConfig.get_client())}


def flush(worker: Any) -> None:
    """Let a live backend send what it still holds; the recorder has no need of it."""
    from verl.utils.rollout_trace import RolloutTraceConfig

    client = RolloutTraceConfig.get_client()
    if client is not None:
        client.finish()


def _nearest(frame: Any) -> str:
    for summary in reversed(traceback.extract_stack(frame)):
        if summary.filename != socket.__file__:
            return summary.filename
    return ""
