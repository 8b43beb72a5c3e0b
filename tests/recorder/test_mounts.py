"""What outlives the node: told from the table of mounts, and warned of once when a recording starts elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import verl_trace
from verl_trace.recorder.mounts import ephemeral, mount_of
from verl_trace.recorder.settings import VARIABLES

TABLE = r"""
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
22 21 0:21 / /proc rw - proc proc rw
23 21 0:23 / /dev/shm rw - tmpfs tmpfs rw,size=1k
24 21 259:1 / /mnt/local rw shared:3 - xfs /dev/nvme0n1p1 rw
25 21 0:44 / /mnt/home rw - nfs4 store:/home rw
26 25 0:45 / /mnt/home/quick rw master:1 - fuse.juicefs JuiceFS:quick rw
27 21 254:9 / /mnt/with\040blank rw - ext4 /dev/vdb rw
28 21 0:46 / /box rw - overlay overlay rw
29 21 0:47 / /mnt/local/over rw - lustre mds@tcp:/scratch rw
30 21 254:8 / /covered rw - ext4 /dev/vdc rw
31 21 0:48 / /covered rw - tmpfs none rw
garbage
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A cluster node's /proc/self/mountinfo."""
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    return str(path)


@pytest.mark.parametrize(
    ("folder", "point", "kind", "place"),
    [
        ("/data/runs", "/", "ext4", "disk"),
        ("/dev/shm/x", "/dev/shm", "tmpfs", "memory"),
        ("/mnt/local/verl-trace/12/exp1", "/mnt/local", "xfs", "nvme"),
        ("/mnt/locale", "/", "ext4", "disk"),
        ("/mnt/home/me/runs", "/mnt/home", "nfs4", "network"),
        ("/mnt/home/quick/runs", "/mnt/home/quick", "fuse.juicefs", "network"),
        ("/mnt/with blank/runs", "/mnt/with blank", "ext4", "disk"),
        ("/box/runs", "/box", "overlay", "container"),
        ("/covered", "/covered", "tmpfs", "memory"),
    ],
)
def test_what_holds_a_folder(table: str, folder: str, point: str, kind: str, place: str) -> None:
    """The deepest mount above it, and of two at one place the later; the folder need not exist."""
    found = mount_of(folder, table)

    assert found is not None
    assert (found.point, found.kind, found.place) == (point, kind, place)


def test_no_table(tmp_path: Path) -> None:
    """A system without /proc says nothing, and nothing is warned of but by the path."""
    assert mount_of("/mnt/local", str(tmp_path / "none")) is None
    assert ephemeral("/mnt/local/x", None, {}) != ""
    assert ephemeral("/data/x", None, {}) == ""


@pytest.mark.parametrize(
    ("folder", "environ", "goes"),
    [
        ("/mnt/local/verl-trace", {}, True),
        ("/mnt/local", {}, True),
        ("/mnt/localities", {}, False),
        ("/mnt/local/over/runs", {}, False),
        ("/dev/shm/runs", {}, True),
        ("/mnt/home/me/runs", {"SLURM_JOB_ID": "1"}, False),
        ("/data/runs", {}, False),
        ("/tmp/runs", {}, False),
        ("/tmp/runs", {"SLURM_JOB_ID": "1"}, True),
        ("/data/job1/runs", {"SLURM_JOB_ID": "1", "SLURM_TMPDIR": "/data/job1"}, True),
    ],
)
def test_what_goes_with_the_node(table: str, folder: str, environ: dict[str, str], goes: bool) -> None:
    """Memory, the usual names of a node's own disk, in a job the job's own places; never what is on the network."""
    assert bool(ephemeral(folder, mount_of(folder, table), environ)) == goes


PROGRAM = """
import os, sys
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
@rollout_trace_op
def act(n): return n
RolloutTraceConfig.init("p", "exp1", "jsonl")
with rollout_trace_attr(step=1):
    for n in range(3): act(n)
"""


@pytest.fixture
def stderr_of() -> Callable[..., str]:
    """What processes that record to `folder`, one after the other, say."""
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("VERL_TRACE", "SLURM"))}

    def record(folder: Path, processes: int = 1, **variables: str) -> str:
        environment = {**clean, "VERL_TRACE_DIR": str(folder), "VERL_TRACE_ATTEMPT": "1", **variables}
        said = ""
        for _ in range(processes):
            words = [sys.executable, "-c", PROGRAM]
            done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True)
            said += done.stderr
        return said

    return record


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder on this machine's tmpfs."""
    folder = Path(f"/dev/shm/verl-trace-test-{os.getpid()}-{os.urandom(4).hex()}")
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_a_recording_on_tmpfs_warns_once(stderr_of: Callable[..., str], memory: Path) -> None:
    """One line for a folder and attempt, however many processes record; with the remedy."""
    said = stderr_of(memory, processes=3)

    assert said.count("may not outlive the node") == 1
    assert "/dev/shm is tmpfs, which is memory" in said
    assert "VERL_TRACE_COLLECT" in said


def test_no_warning_where_it_is_collected(stderr_of: Callable[..., str], memory: Path, tmp_path: Path) -> None:
    """A collector is configured, or the folder is on a disk that stays: one line, as ever."""
    goes = bool(ephemeral(tmp_path, mount_of(tmp_path)))

    assert "warning:" not in stderr_of(memory, VERL_TRACE_COLLECT="/shared/runs")
    assert ("warning:" in stderr_of(tmp_path / "runs")) == goes


def test_every_setting_is_known() -> None:
    """A variable that the sources read and that is not in the list would be called mistyped."""
    package = Path(verl_trace.__file__).resolve().parent
    folders = ("recorder", "verl_plugin", "reader", "uploader", "collector", "commands", "demo", "wandb_runs")
    text = "".join(path.read_text() for folder in folders for path in (package / folder).rglob("*.py"))
    read = set(re.findall(r"\bVERL_TRACE_[A-Z_]*[A-Z]\b", text))

    assert read <= VARIABLES
