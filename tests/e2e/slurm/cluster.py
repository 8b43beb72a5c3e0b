"""A real Slurm on this machine: a controller and two nodes on one host."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
PATIENCE = 60

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
KillWait=5
JobRequeue=1
MpiDefault=none
MinJobAge=3600
SlurmctldPort={controller}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdLogFile={folder}/slurmd-%n.log
ReturnToService=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
PartitionName=cpu Nodes=n1 MaxTime=INFINITE State=UP OverSubscribe=YES
"""


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start it; the environment in which its commands work.

    Raises:
        RuntimeError: a program is missing, or it does not come up.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing:
        raise RuntimeError(f"not installed: {', '.join(missing)}; apt-get install slurmctld slurmd slurm-client munge")
    folder.mkdir(parents=True)
    (folder / "state").mkdir()
    for node in ("n1", "n2"):
        (folder / f"spool-{node}").mkdir()
    ports = dict(zip(("controller", "first", "second"), _ports(3), strict=True))
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=socket.gethostname(), folder=folder, **ports))
    environment = {**os.environ, "SLURM_CONF": str(conf), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    daemons = []
    try:
        _munge(environment)
        for command in (["slurmctld", "-D", "-c"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]):
            with (folder / f"{'-'.join(command)}.out").open("wb") as log:
                daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            daemons.append(daemon)
        _await_idle(environment, folder)
        yield environment
    finally:
        subprocess.run(["scancel", "--full", "--user=root"], env=environment, check=False, capture_output=True)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            daemon.wait()


def _munge(environment: dict[str, str]) -> None:
    """munged, unless it runs already; a key where there is none."""
    if subprocess.run(["munge", "-n"], env=environment, capture_output=True, check=False).returncode == 0:
        return
    key = Path("/etc/munge/munge.key")
    if not key.exists():
        key.write_bytes(os.urandom(128))
        shutil.chown(key, "munge", "munge")
        key.chmod(0o400)
    Path("/run/munge").mkdir(exist_ok=True)
    for place in ("/run/munge", "/var/log/munge", "/var/lib/munge", "/etc/munge"):
        shutil.chown(place, "munge", "munge")
    Path("/run/munge").chmod(0o755)
    subprocess.run(["runuser", "-u", "munge", "--", "munged", "--force"], env=environment, check=True)


def _await_idle(environment: dict[str, str], folder: Path) -> None:
    for _ in range(PATIENCE * 2):
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--partition=all", "--format=%T"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.stdout.split() == ["idle", "idle"]:
            return
        time.sleep(0.5)
    logs = "\n".join(f"{log}:\n{log.read_text(errors='replace')[-2000:]}" for log in folder.glob("*.log"))
    raise RuntimeError(f"Slurm does not come up: {done.stdout}{done.stderr}\n{logs}")


def _ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
