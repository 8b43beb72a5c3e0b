"""Real processes: what survives a kill, a fork, a hard exit; what a recording process must not do."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard

from verl_trace.recorder.identity import attempt_of

PRELUDE = """
import os, sys, time, threading, multiprocessing
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
class Tool:
    @rollout_trace_op
    def execute(self, n): return n
    @rollout_trace_op
    def forever(self):
        print("inside", flush=True)
        time.sleep(600)
def init(): RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
def calls(first, count):
    with rollout_trace_attr(step=1, sample_index=first):
        for n in range(first, first + count): Tool().execute(n)
"""


def environment(root: Path, **more: str) -> dict[str, str]:
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_TRACE", "SLURM_", "RAY_", "WANDB"))}
    return {**keep, "VERL_TRACE_DIR": str(root), "VERL_TRACE_MIN_FREE": "0", **more}


def start(root: Path, code: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PRELUDE + code],
        env=environment(root, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root,
    )


def run(root: Path, code: str, *, code_expected: int = 0, **more: str) -> tuple[str, str]:
    process = start(root, code, **more)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code_expected, err
    return out, err


def records(root: Path) -> list[dict[str, Any]]:
    out = []
    for path in sorted((root / "exp1").glob("*.jsonl*")):
        if path.suffix == ".tmp" or (path.with_name(path.name.removesuffix(".zst")).exists() and path.suffix == ".zst"):
            # the machine was too busy for sealing within the patience of an exit: the raw file is complete
            continue
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().decompress(data)
        out += [{**json.loads(line), "file": path.name} for line in data.splitlines()]
    return out


def executed(root: Path) -> list[int]:
    return [r["output"] for r in records(root) if r["kind"] == "end" and r["op"] == "Tool.execute"]


def test_sigkill_loses_no_record_of_a_returned_call(tmp_path: Path) -> None:
    """A thousand calls returned and one in progress: all are there, the last one with its start."""
    process = start(tmp_path, "init(); calls(0, 1000); Tool().forever()")
    assert process.stdout is not None
    assert process.stdout.readline() == "inside\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)

    assert executed(tmp_path) == list(range(1000))
    kinds = Counter((r["kind"], r.get("op")) for r in records(tmp_path))
    assert kinds["start", "Tool.forever"] == 1
    assert kinds["end", "Tool.forever"] == 0


def test_a_hard_exit_loses_nothing(tmp_path: Path) -> None:
    """os._exit runs no exit handler; the raw file is complete."""
    run(tmp_path, "init(); calls(0, 50); os._exit(3)", code_expected=3)
    assert executed(tmp_path) == list(range(50))
    assert [p.suffix for p in (tmp_path / "exp1").glob("2*")] == [".jsonl"]


def test_a_clean_exit_seals(tmp_path: Path) -> None:
    """No call to anything of ours at the end: the file is closed, compressed, and says `exit`."""
    run(tmp_path, "init(); calls(0, 50)")
    assert executed(tmp_path) == list(range(50))
    assert [p.suffix for p in (tmp_path / "exp1").glob("2*")] == [".zst"]
    assert records(tmp_path)[-1]["reason"] == "exit"


def test_a_child_process_that_returns_at_once(tmp_path: Path) -> None:
    """multiprocessing.Process(target=traced) without any flush: all its calls are there (fork and spawn)."""
    script = tmp_path / "main.py"
    script.write_text(
        PRELUDE
        + """
def child(first):
    init()
    calls(first, 20)
if __name__ == "__main__":
    for k, method in enumerate(["fork", "spawn", "forkserver"]):
        p = multiprocessing.get_context(method).Process(target=child, args=(k * 100,))
        p.start(); p.join(); assert p.exitcode == 0
"""
    )
    subprocess.run([sys.executable, script], env=environment(tmp_path), check=True, timeout=120, cwd=tmp_path)
    assert sorted(executed(tmp_path)) == [*range(20), *range(100, 120), *range(200, 220)]


def test_a_forked_child_writes_files_of_its_own(tmp_path: Path) -> None:
    """fork with a running recording: ids differ, files differ, nothing is written twice, nobody hangs."""
    code = """
init(); calls(0, 10)
pids = []
for k in (1, 2):
    pid = os.fork()
    if pid == 0:
        calls(k * 100, 10)
        import gc; gc.collect()
        os._exit(0) if k == 1 else sys.exit(0)
    pids.append(pid)
for pid in pids: assert os.waitpid(pid, 0)[1] == 0
calls(10, 10)
"""
    run(tmp_path, code)
    assert sorted(executed(tmp_path)) == [*range(20), *range(100, 110), *range(200, 210)]
    headers = [r for r in records(tmp_path) if r["kind"] == "header"]
    assert len({h["writer"] for h in headers}) == len({h["pid"] for h in headers}) == 3
    assert len({h["attempt"] for h in headers}) == 1
    ids = [r["id"] for r in records(tmp_path) if r["kind"] == "start"]
    assert len(ids) == len(set(ids)) == 40


def test_a_forked_child_that_traces_nothing_leaves_no_file(tmp_path: Path) -> None:
    """Data-loader workers by the hundred must not make files by the hundred."""
    run(tmp_path, "init(); calls(0, 1)\nif os.fork() == 0: os._exit(0)\nos.wait()")
    assert len(list((tmp_path / "exp1").glob("2*"))) == 1


def test_a_daemon_thread_that_still_traces_at_exit(tmp_path: Path) -> None:
    """Neither a hang nor a traceback nor a lost line of what returned before."""
    code = """
init()
def loop():
    n = 0
    while True: Tool().execute(n); n += 1
threading.Thread(target=loop, daemon=True).start()
time.sleep(0.3)
"""
    _, err = run(tmp_path, code)
    assert "Traceback" not in err
    seen = executed(tmp_path)
    assert seen == list(range(len(seen)))
    assert len(seen) > 10


def test_sigterm_belongs_to_the_trainer(tmp_path: Path) -> None:
    """A handler installed before or after the recording starts is the one that runs."""
    for order in ("handler(); init()", "init(); handler()"):
        code = f"""
import signal
def handler(): signal.signal(signal.SIGTERM, lambda s, f: (print("mine", flush=True), sys.exit(7)))
{order}
calls(0, 5); print("ready", flush=True); time.sleep(600)
"""
        process = start(tmp_path, code)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, out) == (7, "mine\n")


def test_nothing_heavy_is_imported_and_no_socket_opened(tmp_path: Path) -> None:
    """A recording process: no network, no weave, wandb, typer, requests or numpy because of us."""
    code = """
import sys
def audit(event, args):
    if event.startswith("socket.") and event != "socket.gethostname":
        print("socket event", event, args)
sys.addaudithook(audit)
import dataclasses
@dataclasses.dataclass
class Item: x: int
class Thing: pass
init(); calls(0, 10)
for odd in (Item(1), Thing(), {1, 2}, b"x", float("nan")): Tool().execute(odd)
RolloutTraceConfig.reset()
print([m for m in ("weave", "wandb", "typer", "requests", "rich", "numpy", "torch", "http", "ssl") if m in sys.modules])
"""
    out, _ = run(tmp_path, code, http_proxy="http://127.0.0.1:1", https_proxy="http://127.0.0.1:1")
    assert out == "[]\n"


def test_signals_limits_and_logging_are_left_alone(tmp_path: Path) -> None:
    """Handlers, recursion limit, open-file limit, logging and the event-loop policy are the same after as before."""
    code = """
import asyncio, logging, resource, signal
def state():
    return (
        [signal.getsignal(s) for s in signal.valid_signals()], sys.getrecursionlimit(),
        resource.getrlimit(resource.RLIMIT_NOFILE), logging.root.handlers[:], logging.root.level,
        type(asyncio.get_event_loop_policy()), threading.excepthook, sys.excepthook,
    )
before = state()
init(); calls(0, 10)
assert state() == before
"""
    run(tmp_path, code)


def test_sixty_four_processes_in_one_second(tmp_path: Path) -> None:
    """One folder, one name: every process has its file, no two share one, and all lines are there."""
    processes = [start(tmp_path, f"init(); calls({k * 10}, 10)") for k in range(64)]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert sorted(executed(tmp_path)) == list(range(640))
    assert len({path.name.split(".")[0] for path in (tmp_path / "exp1").glob("2*")}) == 64


ATTEMPTS = [
    ({"SLURM_JOB_ID": "1", "SLURM_RESTART_COUNT": "0", "SLURM_STEP_ID": "0"}, "one step of a job"),
    ({"SLURM_JOB_ID": "1", "SLURM_RESTART_COUNT": "1", "SLURM_STEP_ID": "0"}, "the job, requeued"),
    ({"SLURM_JOB_ID": "1", "SLURM_RESTART_COUNT": "1", "SLURM_STEP_ID": "1"}, "a second training in the allocation"),
    ({"VERL_TRACE_ATTEMPT": "t1"}, "no Slurm: children of one parent"),
    ({"VERL_TRACE_ATTEMPT": "t2"}, "no Slurm: another start"),
]


def test_attempts_are_told_apart_without_communication(tmp_path: Path) -> None:
    """5 starts with 3 processes each are 5 attempts of one run; each attempt announces itself once."""
    announced = []
    for variables, _ in ATTEMPTS:
        processes = [start(tmp_path, "init(); calls(0, 1)", **variables) for _ in range(3)]
        errors = [p.communicate(timeout=60)[1] for p in processes]
        announced.append(sum(err.count(f"verl-trace: recording to {tmp_path / 'exp1'}") for err in errors))
    attempts = Counter(r["attempt"] for r in records(tmp_path) if r["kind"] == "header")
    assert sorted(attempts.values()) == [3] * 5
    assert announced == [1] * 5


def test_an_attempt_is_named_by_its_token_outside_of_slurm_only() -> None:
    """A job that is requeued with the same variables is another attempt."""
    token = {"VERL_TRACE_ATTEMPT": "0123456789ab"}
    jobs = [attempt_of({"job_id": "1", "restart_count": count}, {}, token) for count in "01"]

    assert attempt_of({}, {}, token) == "0123456789ab"
    assert len({"0123456789ab", *jobs}) == 3
    assert all(
        re.fullmatch(r"[0-9a-f]{12}", attempt_of({}, {}, {"VERL_TRACE_ATTEMPT": text})) for text in ("t", "A" * 12)
    )


@pytest.mark.parametrize("name", ["a/b", "../up", ".hidden", "spaces and\nlines", "ünïcode", "x" * 300])
def test_any_experiment_name(tmp_path: Path, name: str) -> None:
    """One folder below the root whatever the name is; the original is in the header."""
    run(tmp_path, f"RolloutTraceConfig.init('p', {name!r}, 'jsonl'); calls(0, 1)")
    (folder,) = tmp_path.iterdir()
    (sealed,) = folder.glob("*.zst")
    header = json.loads(zstandard.ZstdDecompressor().decompress(sealed.read_bytes()).split(b"\n")[0])
    assert header["experiment_name"] == name


@pytest.mark.parametrize("reused", [False, True])
def test_a_program_that_closes_all_descriptors(tmp_path: Path, reused: bool) -> None:
    """As it becomes a daemon, and one whose next file has our number: recording goes on in a new file, and what was
    lost meanwhile is counted."""
    code = f"""
init()
calls(0, 5)
time.sleep(1)  # as below
os.closerange(3, 200)
mine = open("mine", "w") if {reused} else None
calls(5, 5)
time.sleep(1.5)
calls(10, 5)
"""
    process = start(tmp_path, code)
    assert (process.communicate(timeout=60)[0], process.returncode) == ("", 0)
    data = b"".join(
        zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True).read()
        for path in sorted((tmp_path / "exp1").glob("*.zst"))
    )
    kinds = Counter(json.loads(line)["kind"] for line in data.splitlines())
    lost = sum(json.loads(line)["records"] for line in data.splitlines() if b'"kind":"lost"' in line)
    assert (kinds["start"], kinds["end"]) == (10, 10)
    assert lost == 10


TAKEN = """
init()
calls(0, 5)
Tool().execute(os.urandom(100_000))
time.sleep(1)  # threads that have just begun may have a folder open, whose number nobody can save
os.closerange(3, 200)
mine = [open(f"mine{n}", "wb", buffering=0) for n in range(9)]
"""


@pytest.mark.parametrize(
    "then",
    [
        "calls(5, 5)",
        "if os.fork(): assert os.wait()[1] == 0\nelse: calls(5, 5)",
        "for _ in range(3): Tool().execute(os.urandom(100_000))\ntime.sleep(1.2)\ncalls(5, 5)",
    ],
    ids=["end", "fork", "large values"],
)
def test_files_that_take_our_numbers(tmp_path: Path, then: str) -> None:
    """They stay open, and hold the records of half a second at most: no large value, no end of a file of ours."""
    run(tmp_path, TAKEN + then + "\nRolloutTraceConfig.reset()\nfor file in mine: os.fstat(file.fileno())")

    strays = b"".join(path.read_bytes() for path in tmp_path.glob("mine*"))
    assert {json.loads(line)["kind"] for line in strays.splitlines()} <= {"start", "end"}
    found = records(tmp_path)
    lost = sum(record["records"] for record in found if record["kind"] == "lost")
    assert lost == len(strays.splitlines())
    blobs = b"".join(path.read_bytes() for path in (tmp_path / "exp1").glob("*.blobs"))
    assert all(digest.encode() in blobs for record in found for digest in record.get("blobs", ()))
    assert sum(record["kind"] == "end" for record in found) >= 6
