"""Packed runs: written, interrupted, damaged, read in place."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from verl_trace.reader import closed_folders, find_runs, iter_trajectories
from verl_trace.reader.archive import Archive
from verl_trace.reader.pack import pack
from verl_trace.reader.verify import verify
from verl_trace.schemas.errors import BadTarget

OLD = (1_000_000_000, 1_000_000_000)


@pytest.fixture
def runs(writer: Any, tmp_path: Path) -> Path:
    """Two runs of four writers: two sealed files, one raw and closed, one raw and torn in the middle of a line."""
    folder = tmp_path / "runs"
    for number in range(4):
        recording = writer(folder, "proj", f"exp{number % 2}", pid=100 + number)
        for step in range(3):
            root = recording.start(
                "Loop.run", inputs={"text": "ä" * 50, "n": random.Random(step).getrandbits(64)}, step=step
            )
            recording.end(recording.start("Tool.execute", parent=root), [number, step])
            recording.end(root)
        if number < 3:
            recording.close()
        if number < 2:
            content = recording.path.read_bytes()
            sealed = recording.path.with_name(recording.path.name + ".zst")
            sealed.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(content))
            recording.path.unlink()
            os.utime(sealed, OLD)
        else:
            if number == 3:
                with recording.path.open("ab") as file:
                    file.write(b'{"kind":"sta')
            os.utime(recording.path, OLD)
    (folder / "exp0" / ".attempt-5c1d0a77be02").touch()
    return folder


def content(path: Path) -> list[tuple[Any, ...]]:
    """All that is read at a path."""
    return [
        (
            run.project_name,
            run.experiment_name,
            run.state,
            run.attempts,
            t.trace_id,
            [(c.head, c.inputs, c.output()) for c in t.calls],
        )
        for run in find_runs(path)
        for t in iter_trajectories(run)
    ]


def test_a_pack_reads_as_its_runs(runs: Path, tmp_path: Path) -> None:
    """The same trajectories, states and attempts; verify finds nothing wrong; plain tar unpacks it."""
    packed = pack(find_runs(runs), tmp_path / "X.tar")

    assert (packed.files, packed.kept, packed.damages) == (5, 0, [])
    assert content(tmp_path / "X.tar") == content(runs)
    assert [report.state for report in verify(tmp_path / "X.tar")] == [report.state for report in verify(runs)]
    assert closed_folders(tmp_path / "X.tar") == []
    assert Archive(tmp_path / "X.tar").check() == []
    assert content(tmp_path / "X.tar" / "exp1") == content(runs / "exp1")
    (tmp_path / "plain").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "X.tar", "-C", tmp_path / "plain"], check=True)
    assert content(tmp_path / "plain") == content(runs)


def test_sealed_files_are_copied_byte_for_byte(runs: Path, tmp_path: Path) -> None:
    """What is sealed stays what it was."""
    pack(find_runs(runs), tmp_path / "X.tar")
    with tarfile.open(tmp_path / "X.tar") as tar:
        for path in runs.glob("*/*.zst"):
            member = tar.extractfile(f"{path.parent.name}/{path.name}")
            assert member is not None
            assert member.read() == path.read_bytes()


def test_parts(runs: Path, tmp_path: Path) -> None:
    """Each part is a tar within the size; all are found from the first, or from any."""
    packed = pack(find_runs(runs), tmp_path / "X.tar", split=8192)

    assert len(packed.parts) > 1
    assert packed.parts[0] == tmp_path / "X.tar"
    assert all(tarfile.is_tarfile(part) and part.stat().st_size <= 8192 for part in packed.parts)
    assert sum(part.stat().st_size for part in packed.parts) == packed.size
    for part in packed.parts:
        assert content(part) == content(runs)


@pytest.mark.parametrize("split", [3000, *range(5000, 9000, 500), 20_000, 33_333])
def test_no_part_is_larger_than_asked_for(writer: Any, tmp_path: Path, split: int) -> None:
    """With headers, padding and lists; only a file that is larger itself has a part that is, as the list of all has."""
    for number in range(24):
        made = writer(tmp_path / "runs", "p")
        made.call("x", output=random.Random(number).randbytes(number * 150).hex())
        made.close()
    packed = pack(find_runs(tmp_path / "runs"), tmp_path / "X.tar", split=split)

    for part in packed.parts:
        with tarfile.open(part) as tar:
            files = [member.name for member in tar if member.name != "pack.json"]
        assert part.stat().st_size <= split or len(files) <= 1
    assert len(content(tmp_path / "X.tar")) == 24
    assert closed_folders(tmp_path / "X.tar") == []


def test_a_missing_part_is_named_and_the_rest_is_read(runs: Path, tmp_path: Path) -> None:
    """Whichever part is missing: all of the others are read, and what is missing is said."""
    whole = pack(find_runs(runs), tmp_path / "X.tar", split=1)
    assert len(whole.parts) == 5
    everything = content(runs)
    for gone in whole.parts:
        place = tmp_path / f"without-{gone.name}"
        place.mkdir()
        for part in whole.parts:
            if part != gone:
                shutil.copy2(part, place)
        given = place / (whole.parts[0] if gone != whole.parts[0] else whole.parts[1]).name
        words = " ".join(closed_folders(given))
        assert gone.name in words, words
        found = content(given)
        # one writer's file a part, or none in that of the marker
        assert {row[4] for row in found} < {row[4] for row in everything} or gone.name == "X.tar"
        assert len(found) in (9, 12)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_part_costs_what_was_hit(runs: Path, tmp_path: Path, seed: int) -> None:
    """A block overwritten anywhere: no exception, the damage is told, all other files are whole."""
    chance = random.Random(seed)
    pack(find_runs(runs), tmp_path / "X.tar")
    data = bytearray((tmp_path / "X.tar").read_bytes())
    at = chance.randrange(0, len(data) - 1024 - 700) if seed else 0
    data[at : at + 700] = chance.randbytes(700)
    (tmp_path / "X.tar").write_bytes(data)

    told = closed_folders(tmp_path / "X.tar") + Archive(tmp_path / "X.tar").check()
    found = content(tmp_path / "X.tar")

    assert told
    assert len({row[4] for row in found} & {row[4] for row in content(runs)}) >= 6


@pytest.mark.parametrize("split", [None, 4096, 5000])
def test_an_interrupted_pack_goes_on(runs: Path, tmp_path: Path, split: int | None) -> None:
    """Cut anywhere, begun again: the same pack as without an interruption, and what was whole was not written again."""
    (tmp_path / "whole").mkdir()
    pack(find_runs(runs), tmp_path / "whole" / "X.tar", split=split)
    parts = sorted((tmp_path / "whole").iterdir())
    digests = {part.name: hashlib.sha256(part.read_bytes()).hexdigest() for part in parts}
    chance = random.Random(split)
    kept = set()
    for attempt in range(12):
        place = tmp_path / f"again{attempt}"
        place.mkdir()
        number = chance.randrange(len(parts))
        names = ["X.tar", *[f"X.part{n}.tar" for n in range(2, len(parts) + 1)]][: number + 1]
        for name in names:
            shutil.copy2(tmp_path / "whole" / name, place / f"{name}.tmp")
        last = place / f"{names[-1]}.tmp"
        os.truncate(last, chance.randrange(last.stat().st_size + 1))

        again = pack(find_runs(runs), place / "X.tar", split=split)

        kept.add(again.kept)
        assert {part.name: hashlib.sha256(part.read_bytes()).hexdigest() for part in place.iterdir()} == digests
    assert len(kept) > 1


def test_a_choice_of_trajectories(runs: Path, tmp_path: Path) -> None:
    """Only what was chosen is in it; verify finds it whole; another choice does not go on from it."""
    wanted = {row[4] for row in content(runs)[::2]}
    packed = pack(find_runs(runs), tmp_path / "X.tar", chosen=wanted.__contains__, choice="every second")

    assert {row[4] for row in content(tmp_path / "X.tar")} == wanted
    assert packed.left_out == sum(2 * len(row[5]) for row in content(runs) if row[4] not in wanted)
    assert [report.state for report in verify(tmp_path / "X.tar")] == [report.state for report in verify(runs)]

    os.rename(tmp_path / "X.tar", tmp_path / "Y.tar.tmp")
    other = pack(find_runs(runs), tmp_path / "Y.tar")
    assert other.kept == 0
    assert content(tmp_path / "Y.tar") == content(runs)


def test_a_file_that_grew_meanwhile_is_packed_again(runs: Path, tmp_path: Path) -> None:
    """Interrupted, and the writer went on: the later content counts."""
    pack(find_runs(runs), tmp_path / "X.tar")
    os.rename(tmp_path / "X.tar", tmp_path / "X.tar.tmp")
    (raw,) = (path for path in runs.glob("exp1/*.jsonl") if not path.read_bytes().endswith(b"\n"))
    data = raw.read_bytes()
    line = data.splitlines(keepends=True)[1].replace(b"Loop.run", b"Late.run")
    raw.write_bytes(data[: data.rindex(b"\n") + 1] + line)

    pack(find_runs(runs), tmp_path / "X.tar")

    assert len(content(tmp_path / "X.tar")) == len(content(runs))
    assert {c[0]["op"] for row in content(tmp_path / "X.tar") for c in row[5]} == {
        c[0]["op"] for row in content(runs) for c in row[5]
    }


def test_runs_of_one_name_are_kept_apart(writer: Any, tmp_path: Path) -> None:
    """a/exp1 and b/exp1 in one pack are two runs."""
    for place in ("a", "b"):
        recording = writer(tmp_path / place, f"proj-{place}")
        recording.call("Loop.run")
        recording.close()
    pack([*find_runs(tmp_path / "a"), *find_runs(tmp_path / "b")], tmp_path / "X.tar")
    assert {row[0] for row in content(tmp_path / "X.tar")} == {"proj-a", "proj-b"}


def test_names_that_lead_elsewhere_are_passed_over(tmp_path: Path, runs: Path) -> None:
    """A hostile tar names files outside: they are told and not read."""
    with tarfile.open(tmp_path / "X.tar", "w") as tar:
        for path in runs.glob("exp0/*"):
            tar.add(path, f"../../{path.name}")
            tar.add(path, f"exp0/{path.name}")
    assert len(content(tmp_path / "X.tar")) == 6
    assert "../../" in " ".join(closed_folders(tmp_path / "X.tar"))


def test_what_cannot_be_written(tmp_path: Path, runs: Path) -> None:
    """An existing file, a name without .tar, a folder that is not there: an error that says what to do."""
    (tmp_path / "X.tar").touch()
    for out, words in (
        (tmp_path / "X.tar", "there already"),
        (tmp_path / "X.zip", "tar"),
        (tmp_path / "no" / "X.tar", "No such"),
    ):
        with pytest.raises(BadTarget, match=words):
            pack(find_runs(runs), out)


def test_side_files_are_packed_and_read_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contents too large for a line: in the pack, found there, checked by verify; grown ones are packed again."""
    import numpy as np

    import verl_trace

    monkeypatch.setenv("VERL_TRACE_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("VERL_TRACE_MIN_FREE", "0")

    class Loop:
        @verl_trace.rollout_trace_op
        def run(self, array: Any) -> Any:
            return "ok"

    arrays = [np.arange(n, n + 70_000) for n in range(3)]
    verl_trace.RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
    for array in arrays[:2]:
        Loop().run(array)
    pack(find_runs(tmp_path / "runs"), tmp_path / "X.tar", split=1 << 20)
    os.rename(tmp_path / "X.tar", tmp_path / "X.tar.tmp")
    Loop().run(arrays[2])
    verl_trace.RolloutTraceConfig.reset()
    packed = pack(find_runs(tmp_path / "runs"), tmp_path / "X.tar", split=1 << 20)

    assert len(packed.parts) > 1
    sizes = [sum(run.content_bytes for run in find_runs(tmp_path / name)) for name in ("X.tar", "runs")]
    assert sizes[0] == sizes[1] > 3 * 70_000 * 8
    found = []
    for run in find_runs(tmp_path / "X.tar"):
        for trajectory in iter_trajectories(run):
            (call,) = trajectory.calls
            (digest,) = call.blobs
            data = call.writer.contents.get(digest)
            assert data is not None
            found.append(np.frombuffer(data, dtype=arrays[0].dtype)[0])
    assert sorted(found) == [0, 1, 2]
    assert [report.state for report in verify(tmp_path / "X.tar")] == ["whole"]


def test_contents_of_others_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a choice of trajectories their pictures are packed, and no others."""
    import verl_trace

    monkeypatch.setenv("VERL_TRACE_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("VERL_TRACE_MIN_FREE", "0")
    data = [bytes([n]) * 100_000 for n in range(4)]

    @verl_trace.rollout_trace_op
    def run(both: bytes, own: bytes) -> bytes:
        return own

    verl_trace.RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
    for own in data[1:]:
        run(data[0], own)
    verl_trace.RolloutTraceConfig.reset()
    chosen = [trajectory.trace_id for trajectory in iter_trajectories(find_runs(tmp_path / "runs")[0])][1]
    pack(find_runs(tmp_path / "runs"), tmp_path / "X.tar", chosen=lambda trace_id: trace_id == chosen, choice="one")

    (packed,) = find_runs(tmp_path / "X.tar")
    (trajectory,) = iter_trajectories(packed)
    contents = trajectory.calls[0].writer.contents
    assert [contents.get(digest) for digest in trajectory.calls[0].blobs] == [data[0], data[2]]
    assert (tmp_path / "X.tar").stat().st_size < 300_000
    assert [report.state for report in verify(tmp_path / "X.tar")] == ["whole"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["X.tar", "runs"]
