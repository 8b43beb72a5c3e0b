"""A sealed file that is not whole: what looks unfinished in it waits for a whole copy, all else is stored."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from verl_trace.reader.repair import repair
from verl_trace.schemas.errors import CannotStart
from verl_trace.uploader.pipeline import upload

Spoil = Callable[[bytes], bytes]


def cut_off(content: bytes) -> bytes:
    """A copy under way, or one that was interrupted."""
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    """A bit that a disk or a network has turned, in the checksum, so that every line looks whole."""
    return content[:-2] + bytes([content[-2] ^ 1]) + content[-1:]


def recorded(writer: Any, folder: Path, project: str) -> tuple[Path, Path, bytes]:
    """Two processes with eleven trajectories each, one of them over all that time, both sealed; the run's folder, the
    first one's file and its content."""
    files = []
    for pid in (4711, 4712):
        made = writer(folder, project, pid=pid)
        long = made.start("Long.run", inputs={}, step=1, sample_index=10)
        for sample in range(10):
            # does not compress, so that the first half holds records
            noise = {"noise": os.urandom(20_000).hex()}
            made.end(made.start("Loop.run", inputs=noise, step=1, sample_index=sample), {"ok": True})
        made.end(long, {"ok": True})
        made.close()
        sealed = made.path.with_name(made.path.name + ".zst")
        sealed.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(made.path.read_bytes()))
        made.path.unlink()
        files.append(sealed)
    return made.folder, files[0], files[0].read_bytes()


@pytest.mark.parametrize("spoil", [cut_off, flipped])
def test_nothing_is_stored_as_half_of_itself(
    wandb_login: Any, writer: Any, project: str, stored: Callable[[str], Any], tmp_path: Path, spoil: Spoil
) -> None:
    """What is whole in it arrives with the other process's calls; with the whole file in place, exactly the rest."""
    folder, path, whole = recorded(writer, tmp_path / "runs", project)
    path.write_bytes(spoil(whole))
    first = upload(folder, settle=0.0, state_dir=tmp_path / "state")
    before = stored(project)
    path.write_bytes(whole)
    second = upload(folder, settle=0.0, state_dir=tmp_path / "state")

    assert len(before) == first.sent
    assert first.sent == 22 if spoil is flipped else 11 < first.sent < 21
    assert all(call["output"] == {"ok": True} for call in before.values())
    assert any(path.name in name for name in first.unreadable)
    assert (first.sent + second.sent, second.unreadable, len(stored(project))) == (22, [], 22)


def test_scores_that_may_lie_in_it_are_awaited(
    wandb_login: Any, writer: Any, project: str, stored: Callable[[str], Any], tmp_path: Path
) -> None:
    """Also where another process tells them: no call is stored for ever without its reward."""
    worker, trainer = (writer(tmp_path / "runs", project, pid=pid) for pid in (4711, 4712))
    for sample in range(10):
        head = worker.call("Loop.run", step=1, sample_index=sample)
        told = {"kind": "score", "step": 1, "sample_index": sample, "uid": str(sample), "session": 0}
        partial = {"status": "partial", "trace_id": head["trace_id"], "scores": {"num_turns": 2}}
        scored = {"status": "scored", "trace_id": None, "scores": {"reward": 1.0}}
        worker.write({**told, "source": "agent_loop", **partial})
        trainer.write({**told, "source": "trainer", "noise": os.urandom(20_000).hex(), **scored})
    worker.close()
    trainer.close()
    path = trainer.path.with_name(trainer.path.name + ".zst")
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(trainer.path.read_bytes())
    trainer.path.unlink()
    path.write_bytes(cut_off(whole))

    first = upload(trainer.folder, settle=0.0, state_dir=tmp_path / "state")
    every = upload(trainer.folder, settle=0.0, partial=True, dry_run=True).runs[0].to_send
    path.write_bytes(whole)
    second = upload(trainer.folder, settle=0.0, state_dir=tmp_path / "state")

    assert 0 < first.sent < 10
    assert (first.sent + first.waiting, every) == (10, 10)
    assert (first.sent + second.sent, second.waiting) == (10, 0)
    assert [call["attributes"]["reward"] for call in stored(project).values()] == [1.0] * 10


def test_what_there_is_can_be_sent(
    wandb_login: Any, writer: Any, project: str, stored: Callable[[str], Any], tmp_path: Path
) -> None:
    """`partial`, or a copy by `repair`, which says itself what it lacks."""
    folder, path, whole = recorded(writer, tmp_path / "runs", project)
    path.write_bytes(cut_off(whole))
    repair(folder, tmp_path / "copy")
    whole_ones = upload(folder, settle=0.0, dry_run=True).runs[0].to_send

    # with the one that was cut off between its start and its end, maybe also with the last one before the cut
    assert upload(tmp_path / "copy", settle=0.0, dry_run=True).runs[0].to_send > whole_ones
    assert upload(folder, settle=0.0, partial=True, dry_run=True).runs[0].to_send > whole_ones


def test_a_file_without_its_beginning(writer: Any, project: str, tmp_path: Path) -> None:
    """The error names the file, not only the project name that it would have told."""
    folder, _, whole = recorded(writer, tmp_path / "runs", project)
    for sealed in folder.glob("*.zst"):
        sealed.write_bytes(whole[:100])

    with pytest.raises(CannotStart, match=r"\.jsonl\.zst does not begin with its header: it is cut off or damaged"):
        upload(folder, dry_run=True)


def test_what_has_nothing_to_do_with_it(proxy: Any, writer: Any, fault: Any, project: str, tmp_path: Path) -> None:
    """Where the project is named, a file without its header is not what the upload could not start for."""
    folder, _, whole = recorded(writer, tmp_path / "runs", project)
    for sealed in folder.glob("*.zst"):
        sealed.write_bytes(whole[:100])
    proxy.decide = lambda path, body: fault(403)

    with pytest.raises(CannotStart, match=r"refuses access.*HTTP 403"):
        upload(folder, project=project)
