"""A sealed file that rots where it lies, with its name, size and times: what notices it, and what does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from verl_trace.reader import verify
from verl_trace.reader.filters import Filters
from verl_trace.uploader import Choosing
from verl_trace.uploader.pipeline import upload


def recorded(writer: Any, folder: Path, project: str) -> Path:
    """Three steps of five trajectories in one sealed file."""
    made = writer(folder, project)
    for step in range(1, 4):
        for sample in range(5):
            # does not compress
            noise = {"noise": os.urandom(20_000).hex()}
            made.end(made.start("Loop.run", inputs=noise, step=step, sample_index=sample), {"ok": True})
    made.close()
    sealed: Path = made.path.with_name(made.path.name + ".zst")
    sealed.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(made.path.read_bytes()))
    made.path.unlink()
    return sealed


def rot(path: Path) -> None:
    """Other bytes, and nothing else that can be seen from outside."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    middle = len(data) * 3 // 4
    data[middle : middle + 1000] = bytes(1000)
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_what_rots_before_it_is_sent(
    wandb_login: Any, writer: Any, project: str, stored: Callable[[str], Any], tmp_path: Path
) -> None:
    """The cache knows the file as whole; the file that is sent is read, so it is named as damaged, not as gone."""
    path = recorded(writer, tmp_path / "runs", project)
    for _ in range(2):
        upload(path.parent, settle=0.0, state_dir=tmp_path / "state", choosing=Choosing(filters=Filters.of(step="1")))
    rot(path)
    result = upload(path.parent, settle=0.0, state_dir=tmp_path / "state")

    assert 5 < len(stored(project)) < 15
    assert [name for name in result.unreadable if name == f"{path} is damaged (`verl-trace verify` says where)"]
    assert not [name for name in result.unreadable if "have gone" in name]
    assert [note for note in result.runs[0].notes if note.startswith(f"damaged: {path.name} at byte")]


def test_what_rots_after_it_was_sent(wandb_login: Any, writer: Any, project: str, tmp_path: Path) -> None:
    """Nothing of it is read again, as docs/verify.md says: `verify` and a deep check see it."""
    path = recorded(writer, tmp_path / "runs", project)
    for _ in range(2):
        assert upload(path.parent, settle=0.0, state_dir=tmp_path / "state").unreadable == []
    rot(path)
    again = upload(path.parent, settle=0.0, state_dir=tmp_path / "state")

    assert (again.failed, again.waiting, again.unreadable) == (0, 0, [])
    assert [report.state for report in verify.verify(path.parent)] == ["damaged"]
    assert upload(path.parent, settle=0.0, state_dir=tmp_path / "state", check="deep").unreadable != []
