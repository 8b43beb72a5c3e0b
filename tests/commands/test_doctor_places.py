"""`verl-trace doctor` about the node: mistyped variables, disks, clocks, Ray's workers, and the upload host."""

from __future__ import annotations

import base64
import email.utils
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from verl_trace.commands import checks_disk, checks_ray, checks_upload
from verl_trace.commands.checks import check_names
from verl_trace.commands.findings import Finding
from verl_trace.recorder import read_settings
from verl_trace.recorder.mounts import Mount, mount_of
from verl_trace.uploader.reach import reach

Run = Callable[..., Any]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Finding]]:
    """Findings about a folder, by check, with variables and a mount of the test's choice."""
    for name in [name for name in os.environ if name.startswith(("VERL_TRACE_", "SLURM"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("VERL_TRACE_MIN_FREE", "0")

    def find(folder: Path = tmp_path / "runs", mount: Mount | None = None, **variables: str) -> dict[str, Finding]:
        monkeypatch.setenv("VERL_TRACE_DIR", str(folder))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if mount is not None:
            monkeypatch.setattr(checks_disk, "mount_of", lambda path: mount)
        return {finding.check: finding for finding in checks_disk.disk_findings(read_settings())}

    return find


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("VERL_TRACE_DIRR", "VERL_TRACE_DIR"),
        ("VERL_TRACE_STEP", "VERL_TRACE_STEPS"),
        ("VERL_TRACE_MAXBYTES", "VERL_TRACE_MAX_BYTES"),
        ("VERL_TRACEDIR", "VERL_TRACE_DIR"),
        ("VERLTRACE_DISABLE", "VERL_TRACE_DISABLED"),
        ("verl_trace_fsync", "VERL_TRACE_FSYNC"),
    ],
)
def test_a_mistyped_variable_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, meant: str) -> None:
    """It says nothing to the recorder: the doctor names the one that was meant."""
    monkeypatch.setattr(os, "environ", {name: "1", "VERL_TRACE_COLLECT": "/x", "VERL_USE_EXTERNAL_MODULES": "x"})
    (finding,) = check_names()

    assert finding.state == "fail"
    assert f"did you mean {meant}?" in finding.message
    assert meant in finding.remedy


def test_a_variable_of_another_version_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is like it: perhaps a newer version knows it."""
    monkeypatch.setattr(os, "environ", {"VERL_TRACE_QUUX": "1"})

    assert [finding.state for finding in check_names()] == ["warn"]


def test_how_fast_and_how_much_room(disk: Run, tmp_path: Path) -> None:
    """Measured, in figures; nothing is left behind, not even the folder."""
    findings = disk()

    assert findings["folder"].state == "ok"
    assert "MiB/s with fsync" in findings["speed"].message
    assert "µs an append" in findings["speed"].message
    assert "GiB free" in findings["space"].message
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_is_a_warning(disk: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that takes as long as a call of the model may not."""
    monkeypatch.setattr(checks_disk, "_append_time", lambda descriptor: 0.05)

    assert disk()["speed"].state == "warn"


@pytest.mark.parametrize(
    ("mount", "collected", "state", "words"),
    [
        (Mount("/dev/shm", "tmpfs", "tmpfs", "memory"), "", "warn", "memory"),
        (Mount("/dev/shm", "tmpfs", "tmpfs", "memory"), "/shared/runs", "warn", "memory"),
        (Mount("/mnt/local", "ext4", "/dev/nvme0n1", "nvme"), "", "warn", "NVMe"),
        (Mount("/mnt/local", "ext4", "/dev/nvme0n1", "nvme"), "/shared/runs", "ok", "collected to /shared/runs"),
        (Mount("/", "overlay", "overlay", "container"), "", "warn", "container"),
        (Mount("/mnt/local", "nfs4", "store:/x", "network"), "", "ok", "a network file system (nfs4, store:/x)"),
    ],
)
def test_what_the_disk_is(disk: Run, mount: Mount, collected: str, state: str, words: str) -> None:
    """What goes with the node is a warning, until somebody says that it is collected."""
    finding = disk(Path("/mnt/local/verl-trace"), mount, VERL_TRACE_COLLECT=collected)["disk"]

    assert finding.state == state
    assert words in finding.message
    assert bool(finding.remedy) == (state != "ok")


def test_a_real_tmpfs(disk: Run) -> None:
    """This machine's own."""
    found = mount_of("/dev/shm/verl-trace")

    assert found is not None
    assert (found.kind, found.place) == ("tmpfs", "memory")
    assert disk(Path("/dev/shm/verl-trace"))["disk"].state == "warn"


def test_where_it_is_collected_to(disk: Run, tmp_path: Path) -> None:
    """The target is tried as the folder is; one that cannot be made fails."""
    (tmp_path / "file").touch()

    assert disk(VERL_TRACE_COLLECT=str(tmp_path / "shared"))["collect"].state == "ok"
    assert disk(VERL_TRACE_COLLECT=str(tmp_path / "file" / "shared"))["collect"].state == "fail"
    assert disk(VERL_TRACE_COLLECT="")["collect"].state == "skip"


@pytest.mark.parametrize(
    ("off", "state", "words"), [(0.0, "ok", "agrees"), (90.0, "warn", "ahead of"), (-90.0, "warn", "behind")]
)
def test_the_clock_of_the_file_server(
    disk: Run, monkeypatch: pytest.MonkeyPatch, off: float, state: str, words: str
) -> None:
    """The time that a file gets when it is written is the server's."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + off)
    finding = disk()["clock"]

    assert finding.state == state
    assert words in finding.message


def test_files_of_nodes_whose_clock_is_ahead(disk: Run, writer: Any, tmp_path: Path) -> None:
    """A span file that was written after now: its node's clock is ahead of ours, or ours behind."""
    made = writer(tmp_path / "runs", "p", host="n7")
    made.age(-60)
    finding = disk()["clock"]

    assert finding.state == "warn"
    assert "-n7-" in finding.message


def worker(node: str = "n1", **more: Any) -> dict[str, Any]:
    """What a worker says in which all is well."""
    variables = {"VERL_TRACE_DIR": "/mnt/local/x", "VERL_TRACE_STEPS": "1:"}
    about = {
        "python": "python3",
        "installed": "0.1.0",
        "loads": True,
        "folder": "/mnt/local/x",
        "trouble": "",
        "ahead": 0.0,
    }
    return {"node": node, "variables": variables, **about, **more}


@pytest.mark.parametrize(
    ("wrong", "check", "state", "words"),
    [
        ({}, "ray", "ok", "n1, n2 see VERL_TRACE_DIR, VERL_TRACE_STEPS"),
        ({"variables": {"VERL_TRACE_STEPS": "1:"}}, "ray", "fail", "on n2 sees no VERL_TRACE_DIR"),
        ({"variables": {"VERL_TRACE_DIR": "/y", "VERL_TRACE_STEPS": "1:"}}, "ray", "fail", "VERL_TRACE_DIR=/y instead"),
        ({"installed": None, "trouble": "x"}, "worker", "fail", "cannot be imported by a worker on n2"),
        ({"loads": False}, "worker", "fail", "on n2 does not load the plugin"),
        ({"loads": None}, "worker", "ok", "records go to /mnt/local/x"),
        ({"trouble": "/mnt cannot be written"}, "worker", "fail", "n2: /mnt cannot be written"),
        ({"ahead": -8.0}, "ray-clock", "warn", "n2 is 8.0 s behind this node"),
    ],
)
def test_what_ray_workers_say(wrong: dict[str, Any], check: str, state: str, words: str) -> None:
    """One worker of two is not as it should be: it is named, with what to do."""
    expected = worker()["variables"] | {"VERL_TRACE_ATTEMPT": "1"}
    report = {"workers": [worker(), worker("n2", **wrong)], "expected": expected, "way": "somehow"}
    finding = next(finding for finding in checks_ray.assess(report) if finding.check == check)

    assert finding.state == state
    assert words in finding.message
    assert bool(finding.remedy) == (state != "ok")


def test_ray_is_looked_at_where_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not installed: nothing to say, unless asked. A Ray that does not start: its last words, and a remedy."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(checks_ray, "_RUNNING", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert [f.state for f in checks_ray.ray_findings(None)] == ["skip"]
    assert [f.state for f in checks_ray.ray_findings(True)] == ["fail"]

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "ray.py").write_text("raise RuntimeError('no such luck')")
    assert [f.state for f in checks_ray.ray_findings(None)] == ["skip"]
    (finding,) = checks_ray.ray_findings(True)
    assert (finding.state, "no such luck" in finding.message) == ("fail", True)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    (finding,) = checks_ray.ray_findings(None)
    assert (finding.state, "127.0.0.1:1" in finding.message) == ("warn", True)


class Host(BaseHTTPRequestHandler):
    """Answers as W&B's API and trace server, for one key; its clock is two minutes late."""

    KEY = "a" * 36 + "9876"

    def do_POST(self) -> None:
        given = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        self.rfile.read(int(self.headers["Content-Length"]))
        viewer = {"data": {"viewer": {"username": "me", "defaultEntity": {"name": "team"}}}}
        self._answer(200, viewer) if given == f"api:{self.KEY}" else self._answer(401, {})

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/health" else 404, {})

    def date_time_string(self, timestamp: float | None = None) -> str:
        return email.utils.formatdate(time.time() - 120, usegmt=True)

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _answer(self, code: int, body: object) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


class Said(NamedTuple):
    code: int
    findings: dict[str, dict[str, str]]
    text: str


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Callable[..., Said]]:
    """`doctor --upload` as its user runs it, against `Host`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("VERL_", "WANDB_", "WF_", "WEAVE_"))}
    url = f"http://127.0.0.1:{server.server_address[1]}"
    host = {"WANDB_BASE_URL": url, "WF_TRACE_SERVER_URL": url, "WANDB_API_KEY": Host.KEY, "NO_PROXY": "127.0.0.1"}
    here = {"VERL_TRACE_DIR": str(tmp_path / "runs"), "VERL_TRACE_MIN_FREE": "0", "HOME": str(tmp_path)}

    def ask(**variables: str) -> Said:
        program = "from verl_trace.cli import main; main()"
        words = [sys.executable, "-c", program, "doctor", "--no-ray", "--upload", "--json"]
        environment = {**clean, **host, **here, **variables}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
        findings = {finding["check"]: finding for finding in json.loads(done.stdout)["checks"]}
        return Said(done.returncode, findings, done.stdout + done.stderr)

    yield ask
    server.shutdown()
    server.server_close()


def test_the_upload_host_and_the_key(asked: Callable[..., Said]) -> None:
    """Whom the host takes us for, and what time it is there; the key is in no output."""
    said = asked()

    assert (said.code, said.findings["host"]["state"]) == (0, "ok")
    assert "me, default entity team" in said.findings["host"]["message"]
    assert said.findings["host-clock"]["state"] == "warn"
    assert re.search(r"1(19|20|21) s ahead of http://127", said.findings["host-clock"]["message"])
    assert Host.KEY not in said.text


def test_a_key_that_the_host_does_not_take(asked: Callable[..., Said]) -> None:
    """Exit code 1 where it was asked for, with the remedy; the key is in no output."""
    key = "f" * 35 + "01234"
    said = asked(WANDB_API_KEY=key)

    assert (said.code, said.findings["host"]["state"]) == (1, "fail")
    assert "does not accept the API key" in said.findings["host"]["message"]
    assert "WANDB_API_KEY" in said.findings["host"]["remedy"]
    assert key not in said.text


def test_weaves_own_server(wandb_login: Any) -> None:
    """The question is one that W&B's API answers."""
    found = reach(20.0)

    assert (found.base_url, found.entity) == (wandb_login.url, wandb_login.entity)
    # its clock is this machine's, and its header may be a second old
    assert found.ahead is not None
    assert abs(found.ahead) < 2.0


def test_no_network(asked: Callable[..., Said], free_port: int) -> None:
    """Nobody is there: said soon, and where to do it instead."""
    began = time.monotonic()
    said = asked(WANDB_BASE_URL=f"http://127.0.0.1:{free_port}")

    assert said.findings["host"]["state"] == "fail"
    assert "cannot reach" in said.findings["host"]["message"]
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(("asked_for", "state"), [(None, "warn"), (True, "fail")])
def test_a_node_without_a_network_may_train(
    monkeypatch: pytest.MonkeyPatch, asked_for: bool | None, state: str
) -> None:
    """Not asked for, it is a warning: `doctor || exit 1` in a job's script is about recording."""

    def nobody(seconds: float) -> None:
        raise OSError("no route")

    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr("verl_trace.uploader.reach.reach", nobody)
    findings = {finding.check: finding for finding in checks_upload.upload_findings(asked_for)}

    assert findings["host"].state == state
