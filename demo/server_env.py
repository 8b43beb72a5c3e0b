"""The environment that W&B's trace server runs in, made on first use, and the server as a process.

    with start_server("weave.db") as server:
        …  # server.url, server.client_environment()

The server needs an older `weave` with its `trace-server` extra, which must not meet the user's own packages: it gets
a venv in the cache folder (`$VERL_TRACE_CACHE`, default `~/.cache/verl-trace`), named by a hash of its content. It
is built under a temporary name and published by rename, so that nobody ever sees half of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..schemas.errors import VerlTraceError

__all__ = ["REQUIREMENTS", "Server", "environment_python", "server_python", "start_server"]

# 0.52.41 carries W&B's trace server with SQLite storage. The others are what it imports without declaring it, and HTTP.
REQUIREMENTS = (
    "weave[trace-server]==0.52.41",
    "fastapi>=0.115,<1",
    "uvicorn>=0.30,<1",
    "python-multipart>=0.0.9",
    "sqlparse>=0.5",
    "emoji>=2.10",
    "numpy>=1.26",
    "clickhouse-connect>=0.8,<2",
)
# Importing the server takes about ten seconds on two cores, and a minute on a cold network file system.
START_TIMEOUT = 180.0
# More than the interval in which uvicorn looks whether it shall stop.
STOP_TIMEOUT = 10.0
# The hosted service's keys have this form; the client asks for nothing more.
ANY_KEY = "local" * 8
_TAIL = 3000


@dataclass(frozen=True)
class Server:
    """A running trace server."""

    url: str
    entity: str
    api_key: str
    log: Path

    def client_environment(self) -> dict[str, str]:
        """Environment variables that point W&B's and Weave's clients, and ours, to this server."""
        return {
            "WANDB_BASE_URL": self.url,
            "WF_TRACE_SERVER_URL": self.url,
            "WANDB_API_KEY": self.api_key,
            "WANDB_ENTITY": self.entity,
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_DISABLE_WEAVE": "1",
        }


def server_python(progress: Callable[[str], None] | None = None) -> Path:
    """The interpreter of the server's environment, made when it is not there yet (about a minute, needs pip's index).

    `VERL_TRACE_SERVER_PYTHON` names another interpreter that has the packages.

    Raises:
        VerlTraceError: the environment cannot be made.
    """
    named = os.environ.get("VERL_TRACE_SERVER_PYTHON")
    return Path(named) if named else environment_python(REQUIREMENTS, progress=progress)


def environment_python(
    requirements: Sequence[str], *, cache: Path | None = None, progress: Callable[[str], None] | None = None
) -> Path:
    """The interpreter of a cached venv that holds `requirements`; safe when several processes ask at once.

    Raises:
        VerlTraceError: the venv cannot be made; the message ends with the tool's own last words.
    """
    cache = cache or cache_folder()
    recipe = "\n".join([sys.version, sys.base_prefix, *requirements])
    folder = cache / f"server-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if python.exists():
        return python
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_one(cache / f"{folder.name}.lock"):
            if not python.exists():
                _build(folder, requirements, progress or (lambda _: None))
    except OSError as error:
        raise VerlTraceError(
            f"cannot make the environment of the Weave server in {cache}: {error.strerror or error}",
            hint="set VERL_TRACE_CACHE to a folder that can be written",
        ) from error
    return python


def cache_folder() -> Path:
    """Where environments are kept between runs."""
    named = os.environ.get("VERL_TRACE_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "verl-trace"


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Wait for another process that builds the same; where the file system has no locks, both build and one wins."""
    with lock.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(folder: Path, requirements: Sequence[str], progress: Callable[[str], None]) -> None:
    progress(f"making the environment of the Weave server in {folder} (once)")
    # what is there without an interpreter lost its Python (an upgrade, a moved home)
    shutil.rmtree(folder, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        options = [] if requirements else ["--without-pip"]
        _run([sys.executable, "-m", "venv", *options, str(scratch)], "python -m venv failed")
        if requirements:
            pip = [str(scratch / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            progress(f"installing {requirements[0]} and {len(requirements) - 1} more")
            _run([*pip, *requirements], "pip could not install the Weave server")
        with contextlib.suppress(FileExistsError):
            _publish(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _publish(scratch: Path, folder: Path) -> None:
    try:
        scratch.rename(folder)
    except OSError:
        # somebody else was faster, which is as good
        if not (folder / "bin" / "python").exists():
            raise


def _run(command: list[str], what: str) -> None:
    # PYTHONPATH would let packages of the caller in
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    )
    if done.returncode != 0:
        raise VerlTraceError(
            f"{what}: {done.stdout.strip()[-_TAIL:]}",
            hint="the first use needs a package index that pip can reach (PIP_INDEX_URL)",
        )


@contextlib.contextmanager
def start_server(
    db_path: str | Path,
    *,
    entity: str = "demo",
    port: int = 0,
    api_key: str | None = None,
    forbid: Sequence[str] = (),
    max_body: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Server]:
    """W&B's trace server on loopback with its data in `db_path`, ready when the block begins, stopped when it ends.

    The process also ends when this one dies. `api_key`: the only key accepted (default: any). `forbid`: entities that
    get 403.

    Raises:
        VerlTraceError: it does not come up; the message ends with its last output.
    """
    python = server_python(progress)
    with tempfile.TemporaryDirectory(prefix="verl-trace-server-") as scratch:
        ready, log = Path(scratch, "url"), Path(scratch, "log")
        script = Path(__file__).with_name("weave_server.py")
        command = [str(python), str(script), str(db_path), "--exit-on-eof", "--ready", str(ready)]
        command += ["--port", str(port), "--entity", entity, *(f"--forbid={name}" for name in forbid)]
        command += [f"--api-key={api_key}"] if api_key is not None else []
        command += [f"--max-body={max_body}"] if max_body is not None else []
        with log.open("wb") as output:
            process = _spawn(command, output.fileno())
        try:
            _await_ready(process, ready, log)
            yield Server(ready.read_text(encoding="utf-8"), entity, api_key or ANY_KEY, log)
        finally:
            _stop(process)


def _spawn(command: list[str], output: int) -> subprocess.Popen[bytes]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment |= {"WANDB_ERROR_REPORTING": "false", "WANDB_DISABLE_WEAVE": "1", "PYTHONUNBUFFERED": "1"}
    try:
        # a session of its own: Ctrl-C at the terminal must not stop it before its client is done
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    except OSError as error:
        raise VerlTraceError(
            f"cannot start the Weave server with {command[0]}: {error.strerror}",
            hint="unset VERL_TRACE_SERVER_PYTHON, or let it name a Python that has the server's packages",
        ) from error


def _await_ready(process: subprocess.Popen[bytes], ready: Path, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not ready.exists():
        try:
            code = process.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            if time.monotonic() < deadline:
                continue
            raise VerlTraceError(f"the Weave server was not ready after {START_TIMEOUT:.0f} s: {_tail(log)}") from None
        raise VerlTraceError(
            f"the Weave server ended with code {code}: {_tail(log)}",
            hint="is the port free, and can the database file be written?",
        )


def _tail(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    return text[-_TAIL:] or "it printed nothing"


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(timeout=STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
