"""What `verl-trace doctor` finds out about Ray's workers: do they see the variables, and does verl load the plugin."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .checks_disk import CLOCK_TOLERANCE
from .findings import Finding, State

__all__ = ["ray_findings"]

# Starting Ray and importing verl take some twenty seconds on an idle node.
SECONDS = 120
_NODES_TOLD = 4
# Written by `ray start`.
_RUNNING = Path("/tmp/ray/ray_current_cluster")
# Means "this process", and is no setting.
_NOT_COMPARED = frozenset({"VERL_TRACE_ATTEMPT"})


def ray_findings(asked: bool | None) -> Iterator[Finding]:
    """Look into a worker of every node. `asked` None: only where a cluster runs already."""
    if importlib.util.find_spec("ray") is None:
        state: State = "fail" if asked else "skip"
        yield Finding(
            "ray", state, "Ray is not installed here", "run it in the environment of the training" if asked else ""
        )
        return
    address = os.environ.get("RAY_ADDRESS") or _running()
    if asked is False or (asked is None and address is None):
        yield Finding("ray", "skip", "what Ray's workers see: `verl-trace doctor --ray` starts or asks a Ray and looks")
        return
    try:
        report = _look(address)
    except _NoAnswer as error:
        where = f"the Ray at {address}" if address else "a Ray of its own"
        remedy = "does `ray status` work here? `--no-ray` leaves this out"
        yield Finding("ray", "fail" if asked else "warn", f"{where}: {error}", remedy)
        return
    yield from assess(report)


def _running() -> str | None:
    """The address of the cluster that runs on this node."""
    try:
        return _RUNNING.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        # there is none, or it is somebody else's
        return None


class _NoAnswer(Exception):
    """Ray did not start or answer."""


def _look(address: str | None) -> dict[str, Any]:
    command = [sys.executable, "-m", f"{__package__}.ray_probe", *([address] if address else [])]
    environment = {**os.environ, "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, trouble = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        # it ends what it has started when it is asked to
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.terminate()
            process.communicate(timeout=15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise _NoAnswer(f"no answer within {SECONDS} s") from None
    if process.returncode != 0:
        words = [line for line in trouble.splitlines() if line.strip()]
        raise _NoAnswer(words[-1] if words else f"exit code {process.returncode}")
    report: dict[str, Any] = json.loads(out)
    return report


def assess(report: dict[str, Any]) -> Iterator[Finding]:
    """What the answers of all workers mean: variables, plugin, folder and clock, each in one finding."""
    workers, expected = report["workers"], report["expected"]
    wrong = {_differs(worker["variables"], expected): worker["node"] for worker in reversed(workers)}
    trouble = next((words for words in sorted(wrong) if words), "")
    if trouble:
        remedy = "set them in the environment of the driver, which hands them on when it calls ray.init"
        yield Finding("ray", "fail", f"a worker on {wrong[trouble]} sees {trouble}", remedy)
    else:
        names = ", ".join(sorted(set(expected) - _NOT_COMPARED))
        yield Finding("ray", "ok", f"workers on {_nodes(workers)} see {names}, {report['way']}")
    yield _plugin(workers)
    ahead = max(workers, key=lambda worker: abs(worker["ahead"]))
    if abs(ahead["ahead"]) > CLOCK_TOLERANCE:
        direction = "ahead of" if ahead["ahead"] > 0 else "behind"
        text = f"{ahead['node']} is {abs(ahead['ahead']):.1f} s {direction} this node"
        yield Finding("ray-clock", "warn", text, "have chronyd or ntpd set the clocks of all nodes")
    else:
        yield Finding("ray-clock", "ok", f"the clocks of {_nodes(workers)} agree with this one")


def _plugin(workers: list[dict[str, Any]]) -> Finding:
    absent = [worker["node"] for worker in workers if worker["installed"] is None]
    if absent:
        remedy = "install verl-trace in the environment of every node: in the image, or on shared storage"
        return Finding("worker", "fail", f"verl-trace cannot be imported by a worker on {', '.join(absent)}", remedy)
    if any(worker["loads"] is False for worker in workers):
        node = next(worker["node"] for worker in workers if worker["loads"] is False)
        remedy = "set VERL_USE_EXTERNAL_MODULES=verl_trace.verl_plugin on the driver (verl 0.6 to 0.8)"
        return Finding("worker", "fail", f"`import verl` in a worker on {node} does not load the plugin", remedy)
    troubled = next((worker for worker in workers if worker["trouble"]), None)
    if troubled is not None:
        remedy = "VERL_TRACE_DIR must be a place that every node can write"
        return Finding("worker", "fail", f"a worker on {troubled['node']}: {troubled['trouble']}", remedy)
    loads = "verl loads the plugin there, records" if all(worker["loads"] for worker in workers) else "records"
    folders = ", ".join(sorted({str(worker["folder"]) for worker in workers}))
    return Finding("worker", "ok", f"{loads} go to {folders}")


def _differs(seen: dict[str, str], expected: dict[str, str]) -> str:
    wrong = []
    for name, value in sorted(expected.items()):
        if name not in _NOT_COMPARED and seen.get(name) != value:
            wrong.append(f"no {name}" if name not in seen else f"{name}={seen[name]} instead of {value}")
    return ", ".join(wrong)


def _nodes(workers: list[dict[str, Any]]) -> str:
    names = sorted({str(worker["node"]) for worker in workers})
    more = f" and {len(names) - _NODES_TOLD:,} more" if len(names) > _NODES_TOLD else ""
    return ", ".join(names[:_NODES_TOLD]) + more
