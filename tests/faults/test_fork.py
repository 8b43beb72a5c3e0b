"""Forked children while threads of the parent are inside of an append, and children of multiprocessing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from verl_trace.reader import find_runs

PRELUDE = """
import multiprocessing, os, pathlib, sys, threading, time
from verl_trace import RolloutTraceConfig, rollout_trace_op
from verl_trace.recorder import session
class Tool:
    @rollout_trace_op
    def execute(self, n): return n
def init(): RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
"""

FORKING = """
init()
done = threading.Event()
counts = [0, 0, 0]
def trace(k):
    while not done.is_set():
        Tool().execute(k)
        counts[k] += 1
threads = [threading.Thread(target=trace, args=(k,)) for k in range(3)]
for thread in threads: thread.start()
pids = []
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        for n in range(50): Tool().execute(n)
        os._exit(0)
    pids.append(pid)
for pid in pids: assert os.waitpid(pid, 0)[1] == 0
done.set()
for thread in threads: thread.join()
print(sum(counts))
"""

LONG_CHILD = """
init()
pid = os.fork()
if pid == 0:
    for n in range(3000): Tool().execute("x" * 100)
    folder = pathlib.Path(session.current().folder)
    deadline = time.monotonic() + 60
    while not any(f"-{os.getpid()}-" in p.name for p in folder.glob("*.zst")):
        if time.monotonic() > deadline: os._exit(5)
        time.sleep(0.01)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""

WHILE_LOADING = """
from verl_trace.recorder.loading import loading
init()
begun = threading.Event()
def load():
    with loading():
        begun.set()
        import slow
threading.Thread(target=load).start()
begun.wait()
time.sleep(0.1)
pid = os.fork()
if pid == 0:
    import slow
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""

TIME_LIMIT = """
import ctypes, functools, signal
from verl_trace.recorder import loading
class TimeIsUp(Exception): pass
def handler(*_): raise TimeIsUp
signal.signal(signal.SIGALRM, handler)
# by a call from C to C, so that the handler is not called before the hooks that follow
os.register_at_fork(after_in_parent=functools.partial(ctypes.CDLL(None)["raise"], int(signal.SIGALRM)))
init()
raised = False
try:
    if os.fork() == 0: os._exit(0)
except TimeIsUp:
    raised = True
os.wait()
free = []
def look():
    if loading._lock.acquire(timeout=5): free.append(True)
thread = threading.Thread(target=look)
thread.start(); thread.join()
print(raised, free)
"""

FORK_INSIDE = """
from verl_trace.recorder import loading
init()
with loading.loading():
    pid = os.fork()
def look():
    with loading.loading(): free.append(loading._lock.acquire(False))
free = []
thread = threading.Thread(target=look)
thread.start(); thread.join()
if pid == 0:
    os._exit(free != [True] or loading._lock._is_owned())
assert free == [True] and os.waitpid(pid, 0)[1] == 0
"""

HANGING = """
from verl_trace.recorder import loading
loading.PATIENCE = 0.1
init()
Tool().execute(1)
begun = threading.Event()
def load():
    with loading.loading():
        begun.set()
        threading.Event().wait()
threading.Thread(target=load, daemon=True).start()
begun.wait()
Tool().execute(2)
session.stop()
os._exit(0)
"""

CHILDREN = """
def child(n):
    init()
    Tool().execute(n)
if __name__ == "__main__":
    init()
    for n, method in enumerate(["fork", "spawn", "forkserver"]):
        process = multiprocessing.get_context(method).Process(target=child, args=(n,))
        process.start(); process.join(); assert process.exitcode == 0
"""


def run(root: Path, program: str, **settings: str) -> str:
    """Run a program of its own file; its output."""
    script = root / "main.py"
    script.write_text(PRELUDE + program)
    environment = os.environ | {"VERL_TRACE_DIR": str(root / "runs"), "VERL_TRACE_MIN_FREE": "0"} | settings
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_a_fork_in_the_middle_of_an_append(tmp_path: Path, found: Any) -> None:
    """Twenty children of a process whose threads trace all the time: nobody hangs, nothing is lost or written twice."""
    calls = int(run(tmp_path, FORKING))
    seen = found(tmp_path / "runs")

    assert seen.calls.total() == 2 * (calls + 20 * 50)
    assert set(seen.calls.values()) == {1}
    assert seen.damages == []


def test_a_child_that_records_for_long_rotates_and_seals(tmp_path: Path, found: Any) -> None:
    """Its first record gives it a background thread of its own."""
    run(tmp_path, LONG_CHILD, VERL_TRACE_SEGMENT_BYTES="64K")
    seen = found(tmp_path / "runs")

    assert seen.calls.total() == 6000
    assert set(seen.calls.values()) == {1}


def test_a_fork_while_a_thread_of_ours_loads_a_module(tmp_path: Path) -> None:
    """The child can load the same module: it does not wait for a thread that only its parent has."""
    (tmp_path / "slow.py").write_text("import time; time.sleep(0.5)")
    run(tmp_path, WHILE_LOADING)


def test_a_time_limit_that_ends_during_a_fork(tmp_path: Path) -> None:
    """What the signal's handler raises reaches the program, and no hook of ours is cut short by it."""
    # CPython 3.13 swallows it where any other thread lives, while it warns of that
    alone = run(
        tmp_path, TIME_LIMIT.replace("init()", "threading.Thread(target=time.sleep, args=[9], daemon=True).start()")
    )

    assert run(tmp_path, TIME_LIMIT) == alone
    assert alone == f"{sys.version_info < (3, 13)} [True]\n"


def test_a_fork_by_the_thread_that_loads(tmp_path: Path) -> None:
    """A signal handler may do that; both processes can load afterwards."""
    run(tmp_path, FORK_INSIDE)


def test_the_program_ends_while_a_thread_of_ours_hangs_in_an_import(tmp_path: Path, found: Any) -> None:
    """The file system that the packages lie on is gone: what was recorded is closed all the same."""
    run(tmp_path, HANGING)

    assert found(tmp_path / "runs").calls.total() == 4


def test_children_of_multiprocessing_close_their_files(tmp_path: Path) -> None:
    """They run no exit handlers of ours, but a run that ended well does not look like a killed one."""
    run(tmp_path, CHILDREN)
    (found_run,) = find_runs(tmp_path / "runs")

    assert [writer.state for writer in found_run.writers] == ["closed"] * 4
    assert not list((tmp_path / "runs" / "exp1").glob("*.jsonl"))
