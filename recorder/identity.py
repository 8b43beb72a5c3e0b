"""Whose file this is: process, host, attempt, and the versions and ids that the environment tells."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Mapping

from ..schemas.files import writer_id
from ..schemas.lines import SCHEMA_VERSION
from ..schemas.sha256 import sha256_hex
from .ids import timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "ATTEMPT_VARIABLE",
    "Identity",
    "ProcessStat",
    "attempt_of",
    "boot_id",
    "node_name",
    "pid_namespace",
    "process_stat",
]

# Handed to child processes by the first process of a start that has neither Ray nor Slurm to name it.
ATTEMPT_VARIABLE = "VERL_TRACE_ATTEMPT"

# Slurm's name of the node that a step runs on: several may share a host, and a container has a host name of its own.
NODE_VARIABLE = "SLURMD_NODENAME"

_HEX = frozenset("0123456789abcdef")
_SLURM = ("JOB_ID", "RESTART_COUNT", "STEP_ID", "PROCID", "NODEID", "ARRAY_TASK_ID", "CLUSTER_NAME")
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
_WANDB = {"WANDB_RUN_ID": "run_id", "WANDB_DIR": "dir", "WANDB_ENTITY": "entity", "WANDB_PROJECT": "project"}


class Identity:
    """The header of one writer. Made anew after a fork; `attempt` then stays the parent's."""

    def __init__(self, attempt: str | None = None) -> None:
        now = time.time_ns()
        environ = os.environ
        self.host, node = os.uname().nodename, node_name(environ)
        self.pid = os.getpid()
        self.started_at = timestamp(now)
        started = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 1_000_000_000))
        self.writer = writer_id(started, node, self.pid, os.urandom(6).hex())
        self.slurm = {name.lower(): environ[f"SLURM_{name}"] for name in _SLURM if environ.get(f"SLURM_{name}")}
        if environ.get(NODE_VARIABLE):
            self.slurm["node_name"] = node
        self.ray = _ray_ids()
        self.rank = {name: environ[name] for name in _RANKS if environ.get(name)}
        self.wandb = {key: environ[name] for name, key in _WANDB.items() if environ.get(name)}
        self.attempt = attempt or attempt_of(self.slurm, self.ray, environ)

    def header(self, about: dict[str, Any], segment: int) -> dict[str, Any]:
        """The header record of segment `segment`; `about` holds what the recording was started with."""
        return {
            "kind": "header",
            "schema": SCHEMA_VERSION,
            "writer": self.writer,
            "segment": segment,
            **about,
            "attempt": self.attempt,
            "host": self.host,
            "pid": self.pid,
            "pid_start": stat.start if (stat := process_stat("self")) is not None else None,
            "pid_ns": pid_namespace(),
            "boot_id": boot_id(),
            "started_at": self.started_at,
            "opened_at": timestamp(time.time_ns()),
            "slurm": self.slurm,
            "ray": self.ray,
            "rank": self.rank,
            "versions": _versions(),
            "wandb": self.wandb,
        }


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """What people call this node: Slurm's name of it, else the host's."""
    return environ.get(NODE_VARIABLE) or os.uname().nodename


def attempt_of(slurm: Mapping[str, str], ray: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> str:
    """12 hex digits that name this training start, the same in all its processes, found without communication.

    With Ray: Slurm job and restart count, Ray session, Ray job (the Slurm step differs from node to node there).
    Without: Slurm job, restart count and step. Where there is no step either, a token that child processes inherit;
    the first process that asks puts it into the environment as VERL_TRACE_ATTEMPT, and outside of Slurm it is the name.
    """
    parts = [slurm.get("job_id", ""), slurm.get("restart_count", "")]
    if ray:
        parts += ["ray", ray.get("session", ""), ray.get("job_id", "")]
    elif slurm.get("step_id"):
        parts += ["step", slurm["step_id"], environ.get("TORCHELASTIC_RESTART_COUNT", "")]
    else:
        token = environ.get(ATTEMPT_VARIABLE)
        if not token:
            token = os.urandom(6).hex()
            os.environ[ATTEMPT_VARIABLE] = token
        if not any(parts) and len(token) == 12 and _HEX.issuperset(token):
            return token
        parts += ["token", token]
    return sha256_hex("\0".join(parts).encode("utf-8", "surrogateescape"))[:12]


def _ray_ids() -> dict[str, str]:
    """Ray's session, job, node, actor where this process is part of a Ray cluster; ray is never imported for it."""
    ray = sys.modules.get("ray")
    try:
        if ray is None or not ray.is_initialized():
            return {}
        context = ray.get_runtime_context()
        out = {"job_id": context.get_job_id(), "node_id": context.get_node_id(), "worker_id": context.get_worker_id()}
        actor = context.get_actor_id() if sys.modules["ray._private.worker"].global_worker.mode == 1 else None
        if actor:
            out["actor_id"] = actor
        session = getattr(sys.modules["ray._private.worker"]._global_node, "session_name", None)
        if session:
            out["session"] = session
        return {key: str(value) for key, value in out.items() if value}
    except Exception:  # noqa: BLE001
        return {}


def _versions() -> dict[str, str]:
    out = {"python": sys.version.split()[0]}
    own = getattr(sys.modules.get(__name__.partition(".")[0]), "__version__", "")
    for name in ("verl", "vllm", "ray"):
        version = _version(name) if name in sys.modules else ""
        if version:
            out[name] = version
    return out | {"verl_trace": own} if own else out


@functools.cache
def _version(package: str) -> str:
    """Version of an installed package, "" when unknown; looked up once, since that reads folders.

    Told by the name of its folder, `verl_trace-0.1.0.dist-info`: `importlib.metadata` takes longer to load than all of
    the recorder.
    """
    stem = package.replace("-", "_") + "-"
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info") and name.startswith(stem):
                return name[len(stem) : -len(".dist-info")]
    return ""


def boot_id() -> str | None:
    """Names the current boot of this host, None where there is no /proc."""
    return _read("/proc/sys/kernel/random/boot_id")


class ProcessStat:
    """What /proc says of a process.

    Attributes:
        start: clock ticks since boot.
        ended: it waits to be reaped, and none of its threads runs.
    """

    __slots__ = ("ended", "start")

    def __init__(self, start: int, ended: bool) -> None:
        self.start = start
        self.ended = ended


def process_stat(pid: int | str) -> ProcessStat | None:
    """Of a pid or "self"; None where there is no such process or no /proc."""
    text = _read(f"/proc/{pid}/stat")
    try:
        # from field 3 on: the state; 20: number of threads; 22: start
        fields = text.rpartition(")")[2].split() if text else []
        return ProcessStat(int(fields[19]), fields[0] in ("Z", "X") and int(fields[17]) <= 1)
    except (ValueError, IndexError):
        return None


def pid_namespace() -> int | None:
    """Inode of this process's pid namespace, None where there is no /proc."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None
