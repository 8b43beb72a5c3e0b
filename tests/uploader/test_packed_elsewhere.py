"""Across the gap: packed on one machine, uploaded from another path by another user, with parts that did not arrive."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from verl_trace.demo.server_env import Server

from ..conftest import line

NOBODY = 65_534
WRITERS = 6
SCRIPT = Path(sys.executable).with_name("verl-trace")

# The interpreter's and the packages' files may lie where only root may read: what an upload imports is there before the
# process becomes somebody else. `status --ask` goes the whole way to the server, and changes nothing.
_AS_SOMEBODY_ELSE = f"""
import contextlib, os, sys
import encodings.ascii, encodings.idna
from verl_trace.cli import main
pack = sys.argv[1]
for words in (["status", pack, "--ask"], ["upload", pack, "--dry-run"]):
    sys.argv[1:] = words
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):
        main()
if os.getuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
print("user", os.getuid(), file=sys.stderr)
sys.argv[1:] = ["upload", pack, "--json"]
main()
"""


class Done(NamedTuple):
    code: int
    report: dict[str, Any]
    user: int


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that other users can enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="verl-trace-elsewhere-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def record(writer: Callable[..., Any], runs: Path, project: str) -> dict[int, set[str]]:
    """Six processes with four trajectories each, of two calls; the last one tells the score of one of the first's.

    Gives the ids of the calls in each file. `noise` does not compress: damage in the middle hits records.
    """
    ids: dict[int, set[str]] = {}
    awaiting: dict[str, Any] = {}
    for number in range(WRITERS):
        made = writer(runs, project, pid=100 + number)
        ids[number] = set()
        for sample in range(4):
            numbers = {"step": 1, "sample_index": 10 * number + sample, "rollout_n": 0}
            root = made.start("Loop.run", inputs={"noise": os.urandom(3000).hex()}, **numbers)
            ids[number] |= {root["id"], made.call("Tool.execute", 1, parent=root)["id"]}
            made.end(root, {"noise": os.urandom(3000).hex()})
            if not awaiting:
                awaiting = root
                made.append(score(awaiting, "partial", awaiting["id"], {"num_turns": 2}))
        if number == WRITERS - 1:
            made.append(score(awaiting, "scored", None, {"reward": 0.75}))
        made.close()
        made.age(3600)
    ids[-1] = {key for key in ids[0] if key == awaiting["id"]}
    return ids


def score(root: dict[str, Any], status: str, trace_id: str | None, scores: dict[str, Any]) -> bytes:
    """What verl's agent loop, and its trainer, tell of a trajectory."""
    head = {name: root[name] for name in ("step", "sample_index", "rollout_n", "validate", "experiment_name")}
    head |= {"source": "agent_loop" if trace_id else "trainer", "status": status, "id": root["id"][:-4] + status[:4]}
    head |= {"trace_id": trace_id, "uid": "group", "session": 0, "row": None, "response": None, "group_size": None}
    head |= {"recorded_at": "2026-03-01T12:30:00.000000Z", "exception": None}
    return line("score", head, "scores", scores)


def upload(server: Server, pack: Path, home: Path) -> Done:
    """`verl-trace upload` as another user with a home of its own; as the same one where the tests may not change it."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **server.client_environment()}
    done = subprocess.run(
        [sys.executable, "-c", _AS_SOMEBODY_ELSE, str(pack)],
        env=environment, cwd=home, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return Done(done.returncode, json.loads(done.stdout), int(done.stderr.split("user ")[1].split()[0]))


def owner(path: Path) -> dict[str, tuple[int, bytes]]:
    """All that could be changed of the files in a folder."""
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir()}


def test_the_rest_arrives_and_later_what_was_missing(
    weave_server: Server, writer: Callable[..., Any], project: str, tmp_path: Path, elsewhere: Path,
    stored: Callable[[str], dict[str, Any]],
) -> None:  # fmt: skip
    """One part is missing, one was damaged: both are named, the exit code says it, and all that is not touched by them
    is stored. Once the whole pack is there the same command sends exactly the rest, and nothing tells of the damage."""
    ids = record(writer, tmp_path / "runs", project)
    subprocess.run([SCRIPT, "pack", tmp_path / "runs" / "exp1", "-o", tmp_path / "X.tar", "--split", "1"], check=True)
    parts = {writer_of(part): part for part in sorted(tmp_path.glob("X*.tar"))}
    assert set(parts) == set(range(WRITERS))
    home, place = elsewhere / "home", elsewhere / "carried"
    home.mkdir()
    place.mkdir()
    if os.getuid() == 0:
        os.chown(home, NOBODY, NOBODY)
    missing, damaged = WRITERS - 1, 2
    for number, part in parts.items():
        if number != missing:
            shutil.copy(part, place)
    spoil(place / parts[damaged].name)
    for part in place.iterdir():
        part.chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
    carried = owner(place)

    first = upload(weave_server, place / "X.tar", home)
    between = set(stored(project))

    assert first.user != os.getuid() or os.getuid() != 0
    assert first.code == 1
    told = " ".join(first.report["unreadable"])
    assert f"{parts[missing].name} is missing" in told
    assert f"{parts[damaged].name}: exp1/" in told
    # all of the other files, but what waits for a score that may be in the part that is missing
    waiting = {key for key in ids[0] if key in ids[-1]}
    due = set().union(*(ids[number] for number in range(WRITERS) if number not in (missing, damaged)))
    assert between < due
    assert due - between >= waiting
    assert len(due - between) == 2
    assert owner(place) == carried

    for part in place.iterdir():
        part.unlink()
    for part in parts.values():
        shutil.copy(part, place)
    second = upload(weave_server, place / "X.tar", home)
    rows = stored(project)

    assert (second.code, second.report["unreadable"]) == (0, [])
    assert second.report["sent"] == len(rows) - len(between)
    assert second.report["skipped"] == {"already stored": len(between)}
    assert set(rows) == set().union(*ids.values())
    assert all(set(row["attributes"]["verl_trace"]) == {"attempt", "host", "pid", "version"} for row in rows.values())
    assert [row["attributes"]["reward"] for key, row in rows.items() if key in waiting] == [0.75]


def writer_of(part: Path) -> int:
    """Which of the six processes' file a part holds."""
    with tarfile.open(part) as tar:
        name = next(member.name for member in tar if ".jsonl" in member.name)
    return int(name.split("-")[2]) - 100


def spoil(part: Path) -> None:
    """Other bytes in the middle of the file in it."""
    with tarfile.open(part) as tar:
        member = next(member for member in tar if ".jsonl" in member.name)
    with part.open("r+b") as file:
        file.seek(member.offset_data + member.size // 2)
        file.write(os.urandom(200))
