"""Which file system a folder lies on, and whether it outlives the node: read from /proc/self/mountinfo."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Mount", "Place", "ephemeral", "mount_of"]

Place = Literal["memory", "network", "container", "nvme", "disk", "unknown"]

_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
_NETWORK = frozenset({
    "9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "cvmfs", "daos", "glusterfs", "gpfs", "lustre", "mmfs",
    "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
})  # fmt: skip
_CONTAINER = frozenset({"overlay", "aufs", "fuse-overlayfs", "fuse.fuse-overlayfs"})
# Where clusters mount a disk of the node that is wiped when the node, or the job, goes.
_NODE_LOCAL = (
    "/mnt/local", "/mnt/localdisk", "/mnt/local_disk", "/mnt/local-ssd", "/mnt/disks", "/mnt/nvme", "/mnt/resource",
    "/local", "/localdisk", "/localscratch", "/local_scratch", "/local-scratch", "/lscratch", "/scratch/local",
    "/scratch-local", "/nvme",
)  # fmt: skip
# The same in a job of Slurm, which may give each job places of its own under these names.
_JOB_LOCAL = ("/tmp", "/var/tmp")
_JOB_VARIABLES = ("SLURM_TMPDIR", "TMPDIR")


class Mount(NamedTuple):
    """`point` is where it is mounted, `kind` the file system's name, `source` what is mounted."""

    point: str
    kind: str
    source: str
    place: Place


def mount_of(folder: str | Path, table: str = "/proc/self/mountinfo") -> Mount | None:
    """What holds `folder`, which need not exist yet; None where the system does not tell."""
    path = os.path.realpath(folder)
    best: tuple[str, str, str, str] | None = None
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                about, _, rest = line.rstrip("\n").partition(" - ")
                fields, kinds = about.split(" "), rest.split(" ")
                if len(fields) < 5 or len(kinds) < 2:
                    continue
                point = _plain(fields[4])
                # a later line hides an earlier one of the same place
                if _is_below(path, point) and (best is None or len(point) >= len(best[0])):
                    best = (point, kinds[0], _plain(kinds[1]), fields[2])
    except OSError:
        return None
    if best is None:
        return None
    point, kind, source, device = best
    return Mount(point, kind, source, _place(kind, source, device))


def ephemeral(folder: str | Path, mount: Mount | None, environ: Mapping[str, str] = os.environ) -> str:
    """Why what is in `folder` may be gone with the node or the job; "" where nothing says so."""
    if mount is not None and mount.place == "memory":
        return f"{mount.point} is {mount.kind}, which is memory"
    if mount is not None and mount.place == "network":
        return ""
    path = os.path.realpath(folder)
    known = list(_NODE_LOCAL)
    if environ.get("SLURM_JOB_ID"):
        known += [*_JOB_LOCAL, *(os.path.realpath(environ[name]) for name in _JOB_VARIABLES if environ.get(name))]
    for place in known:
        # either may be a link: the name that was given says as much as where it leads
        if _is_below(path, place) or _is_below(os.path.abspath(folder), place):
            return f"{place} is usually the node's own disk, wiped with the node or the job"
    return ""


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point if point.endswith("/") else f"{point}/")


def _plain(text: str) -> str:
    """Without the octal escapes of the kernel, for blanks and the like."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _place(kind: str, source: str, device: str) -> Place:
    if kind in _MEMORY:
        return "memory"
    if kind in _CONTAINER:
        return "container"
    if kind in _NETWORK or kind.startswith("fuse."):
        # nearly all that is mounted by a program of a user's is somewhere else: sshfs, s3fs, ceph-fuse, JuiceFS
        return "network"
    if not source.startswith("/dev/") and device.startswith("0:"):
        # no block device: zfs and the like
        return "unknown"
    return "nvme" if _on_nvme(source, device) else "disk"


def _on_nvme(source: str, device: str) -> bool:
    """Whether the block device, or one that it is made of (RAID, LVM, encryption), is an NVMe."""
    if "nvme" in os.path.basename(source):
        return True
    here = f"/sys/dev/block/{device}"
    if "/nvme/" in os.path.realpath(here) or "nvme" in os.path.basename(os.path.realpath(here)):
        return True
    try:
        return any("nvme" in name for name in os.listdir(f"{here}/slaves"))
    except OSError:
        return False
