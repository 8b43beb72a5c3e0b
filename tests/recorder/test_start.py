"""The first moments of a recording: what its thread leaves alone, and what stands in for what is loaded later."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest

import verl_trace
from verl_trace.recorder.background import CALM
from verl_trace.schemas import sha256

FIRST = """
import sys, threading, time, verl_trace

class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            loaded.append((time.monotonic() - begun, name))

loaded = []
sys.meta_path.insert(0, Watch())
begun = time.monotonic()
verl_trace.RolloutTraceConfig.init("project", "exp1", "jsonl")
"""
LATER = """
while "verl_trace.recorder.mounts" not in sys.modules and time.monotonic() - begun < 30:
    time.sleep(0.01)
print("\\n".join(f"{after} {name}" for after, name in loaded))
"""
AT_ONCE = """
verl_trace.RolloutTraceConfig.reset()
print("\\n".join(sys.modules))
"""
OTHER_QUEUE = """
import queue, time, verl_trace

class Patient(queue.Queue):
    def get(self, *args, **kwargs):
        print("asked")
        return super().get(*args, **kwargs)

queue.SimpleQueue = Patient
verl_trace.RolloutTraceConfig.init("project", "exp1", "jsonl")
verl_trace.RolloutTraceConfig.reset()
"""
FORGOTTEN = """
import sys, verl_trace

call = verl_trace.rollout_trace_op(lambda n: n)
start = verl_trace.RolloutTraceConfig.init
del sys.modules["verl_trace"]
start("project", "exp1", "jsonl")
call(1)
"""
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def run(program: str, folder: Path) -> str:
    """What it prints where nothing but orjson and the recorder can be found."""
    package = Path(verl_trace.__file__).resolve().parent
    for name, place in (("verl_trace", package), ("orjson", Path(orjson.__file__).resolve().parent)):
        (folder / name).symlink_to(place)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{program}"],
        env={"VERL_TRACE_DIR": str(folder / "runs")}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


def test_the_thread_loads_nothing_in_the_first_moment(tmp_path: Path) -> None:
    """In the first process of an attempt, which has the place of its files to look at as well."""
    loaded = [line.split() for line in run(FIRST + LATER, tmp_path).splitlines()]

    assert {"_hashlib", "verl_trace.recorder.mounts"} <= {name for _, name in loaded}
    assert [name for after, name in loaded if float(after) < CALM] == []


def test_a_process_that_ends_at_once_loads_nothing_for_later(tmp_path: Path) -> None:
    loaded = set(run(FIRST + AT_ONCE, tmp_path).split())

    assert "verl_trace.recorder.background" in loaded
    assert loaded & {"ctypes", "_hashlib", "verl_trace.recorder.leftovers"} == set()


def test_the_programs_own_queue_is_waited_at(tmp_path: Path) -> None:
    """gevent and eventlet put theirs in the place of `queue.SimpleQueue`; C's would stop all of their threads."""
    assert "asked" in run(OTHER_QUEUE, tmp_path)


def test_a_package_that_is_no_longer_listed(tmp_path: Path) -> None:
    """Tools that load modules again take them out of `sys.modules`."""
    run(FORGOTTEN, tmp_path)
    lines = [json.loads(line) for file in tmp_path.glob("runs/exp1/*.jsonl") for line in file.read_bytes().splitlines()]

    assert [line["kind"] for line in lines][:3] == ["header", "start", "end"]


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("state", ["absent", "half loaded", "blocked", "not allowed", "whole"])
def test_digests_are_right(monkeypatch: pytest.MonkeyPatch, state: str, loaded: bool) -> None:
    """Whatever is in the place of hashlib, before and after the quick one was loaded."""
    monkeypatch.setattr(sha256, "_quick", None)
    stub: Any = ModuleType("hashlib")
    if state == "not allowed":
        stub.sha256 = refuse
    if state == "absent":
        monkeypatch.delitem(sys.modules, "hashlib")
    elif state != "whole":
        monkeypatch.setitem(sys.modules, "hashlib", None if state == "blocked" else stub)
    if loaded:
        sha256.prepare()
        assert sha256._quick is not None
    large = os.urandom(1 << 20)

    assert sha256.sha256_hex(b"abc") == ABC
    assert sha256.sha256_hex(large) == hashlib.sha256(large).hexdigest()


def refuse(*_: Any) -> Any:
    raise ValueError("[digital envelope routines] unsupported")


def test_without_openssl_the_own_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sha256, "_quick", None)
    monkeypatch.setitem(sys.modules, "_hashlib", None)
    sha256.prepare()

    assert sha256._quick is None
    assert sha256.sha256_hex(b"abc") == ABC
