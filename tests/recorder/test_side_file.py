"""Pictures, arrays, data URLs and long bytes: once in the side file, referred to from the line, before the call
returns."""

from __future__ import annotations

import base64
import builtins
import errno
import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from verl_trace import rollout_trace_op
from verl_trace.reader import find_runs
from verl_trace.reader.contents import SideFile
from verl_trace.reader.verify import DAMAGED, TORN, WHOLE, verify
from verl_trace.recorder import session


class Tool:
    @rollout_trace_op
    def echo(self, value: Any) -> Any:
        return value

    @rollout_trace_op
    def stream(self, values: list[Any]) -> Any:
        yield from values


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """A picture that does not compress."""
    bands = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}[mode]
    return Image.frombytes(mode, (width, height), random.Random(1).randbytes(width * height * bands))


def contents(folder: Path) -> dict[str, bytes]:
    """Everything in the side files, by digest; each there once."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.blobs")):
        for content in SideFile(path):
            data = content.read()
            assert data is not None
            assert content.digest not in found
            found[content.digest] = data
    return found


def stored(recording: Any, form: Any) -> bytes:
    """The content that a form refers to."""
    assert form["blob"]["size"] == len(contents(recording.folder)[form["blob"]["digest"]])
    return contents(recording.folder)[form["blob"]["digest"]]


def test_a_picture_is_on_disk_before_the_call_returns(recording: Any) -> None:
    """Its pixels once, whatever the number of calls that pass it; the line says what it is."""
    picture = noise(64, 48)

    assert Tool().echo({"image": picture, "n": 1})["image"] is picture
    (start, end) = recording.records("start", "end")
    form = start["inputs"]["value"]["image"]
    assert form.pop("blob") == end["output"]["image"]["blob"]
    assert form == {"_type": "PIL.Image.Image", "mode": "RGB", "width": 64, "height": 48, "format": "raw"}
    assert stored(recording, end["output"]["image"]) == picture.tobytes()
    assert start["blobs"] == end["blobs"] == list(contents(recording.folder))

    for _ in range(5):
        Tool().echo([picture.copy()])
    recording.finish()
    assert len(contents(recording.folder)) == 1
    assert [report.state for report in verify(recording.folder)] == [WHOLE]


def test_a_picture_that_was_opened_and_not_decoded_keeps_its_file(recording: Any, tmp_path: Path) -> None:
    """The JPEG or PNG itself is stored, and the image is as lazy as it was."""
    for number, (name, sort) in enumerate([("a.png", "PNG"), ("b.jpg", "JPEG")]):
        noise(40, 30).save(tmp_path / name)
        data = (tmp_path / name).read_bytes()
        with Image.open(tmp_path / name) as from_disk, Image.open(io.BytesIO(data)) as from_memory:
            Tool().echo([from_disk, from_memory])
            assert from_disk.tile
            assert from_memory.tile
            assert from_disk.convert("RGB").tobytes() == from_memory.convert("RGB").tobytes()
        forms = recording.records("end")[number]["output"]
        assert [form["format"] for form in forms] == [sort, sort]
        assert [stored(recording, form) for form in forms] == [data, data]


def test_a_closed_and_a_broken_picture_are_placeholders(recording: Any) -> None:
    """The call returns what it would have; the line says that there was a picture."""
    closed = noise(8, 8)
    closed.close()
    data = io.BytesIO()
    noise(64, 64).save(data, "GIF")
    broken = Image.open(io.BytesIO(data.getvalue()[:2000]))

    assert Tool().echo([closed, broken, 7])[2] == 7

    one, other, seven = recording.finish("end")[0]["output"]
    assert one["_omitted"].startswith("could not be read: ")
    assert other["_omitted"].startswith("could not be read: ")
    assert (one["width"], other["width"], seven) == (8, 64, 7)


@pytest.mark.parametrize("dtype", ["int16", "uint8", "float32", "bool", "complex64", ">i4"])
def test_a_large_array_goes_to_the_side_file(recording: Any, dtype: str) -> None:
    """Shape, dtype and a summary on the line; bytes in C order and the machine's own byte order."""
    array = (np.arange(300_000).reshape(100, 30, 100) % 120).astype(dtype)[:, ::-1]

    Tool().echo({"routed_experts": array, "token_ids": [1, 2]})

    form = recording.finish("end")[0]["output"]["routed_experts"]
    content = stored(recording, form)
    assert (form["_type"], form["shape"]) == ("ndarray", [100, 30, 100])
    back = np.frombuffer(content, dtype=form["dtype"]).reshape(form["shape"])
    assert (back == array).all()
    assert len(form["summary"]["head"]) == 8
    if dtype == "int16":
        assert (form["summary"]["min"], form["summary"]["max"]) == (0, 119)


def test_arrays_up_to_the_limit_stay_numbers(recording: Any) -> None:
    """Token ids of a long context can be read and searched on the line."""
    ids = np.arange(65_536)
    Tool().echo([ids, ids.astype("float64") + 0.5])
    first, second = recording.finish("end")[0]["output"]
    assert first == ids.tolist()
    assert second == (ids + 0.5).tolist()
    assert contents(recording.folder) == {}


def test_a_data_url_is_stored_decoded(recording: Any) -> None:
    """Long ones; icons, and what is no canonical base64, stay texts."""
    data = random.Random(2).randbytes(20_000)
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    odd = url[:-4] + "=" * 4
    message = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": odd}],
    }

    Tool().echo({"messages": [message], "icon": url[:1022]})

    output = recording.finish("end")[0]["output"]
    image, text = output["messages"][0]["content"]
    form = image["image_url"]["url"]
    assert stored(recording, form) == data
    assert (form["prefix"], form["mimetype"]) == ("data:image/png;base64,", "image/png")
    assert (text["text"], output["icon"]) == (odd, url[:1022])


def test_long_bytes_and_their_type(recording: Any) -> None:
    """Encoded media is recognised by its first bytes."""
    sound = b"RIFF\x00\x00\x00\x00WAVE" + bytes(100_000)
    Tool().echo([sound, bytearray(b"short")])
    long, short = recording.finish("end")[0]["output"]
    assert (long["mimetype"], stored(recording, long)) == ("audio/wav", sound)
    assert short == {"_type": "bytearray", "size": 5, "base64": "c2hvcnQ="}


def test_items_of_a_generator(recording: Any) -> None:
    """The end record names the contents of all items."""
    pictures = [noise(8, 8), noise(9, 9), noise(8, 8)]
    list(Tool().stream(pictures))
    end = recording.finish("end")[0]
    assert [item["width"] for item in end["output"]] == [8, 9, 8]
    assert end["blobs"] == list(contents(recording.folder))
    assert len(end["blobs"]) == 2


def test_large_pixels_are_written_in_the_background(unstarted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above VERL_TRACE_MEDIA_SYNC they wait in memory, and are there when the recording ends."""
    monkeypatch.setenv("VERL_TRACE_MEDIA_SYNC", "1k")
    unstarted.start()
    picture = noise(100, 100)
    for _ in range(3):
        Tool().echo(picture)
    form = unstarted.finish("end")[2]["output"]
    assert stored(unstarted, form) == picture.tobytes()
    assert len(contents(unstarted.folder)) == 1


def test_what_does_not_fit_is_marked_and_counted(unstarted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue leaves a mark on the line and a count in the close record; verify finds nothing wrong."""
    monkeypatch.setenv("VERL_TRACE_MEDIA_SYNC", "1k")
    monkeypatch.setattr("verl_trace.recorder.side_file.QUEUE_BYTES", 40_000)
    unstarted.start()
    running = session.current()
    assert running is not None
    with running.side._lock:
        # the background thread cannot write meanwhile
        for seed in range(3):
            Tool().echo(np.random.default_rng(seed).integers(0, 255, (100, 100, 3), dtype="uint8").repeat(3, axis=0))
    outputs = [end["output"] for end in unstarted.finish("end")]
    assert ["blob" in output for output in outputs] == [True, False, False]
    assert outputs[1]["_omitted"] == "the side file did not take it: too many large values wait to be written"
    (close,) = unstarted.records("close")
    assert close["counters"]["contents_lost"] == {"too many large values wait to be written": 4}
    assert [report.state for report in verify(unstarted.folder)] == [WHOLE]


def test_a_disk_that_refuses_costs_the_value_only(recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is written with a mark, and later values are stored again."""
    real = os.writev

    def full(fd: int, parts: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    monkeypatch.setattr("verl_trace.recorder.side_file.RETRY_AFTER", 0.0)
    Tool().echo([noise(8, 8), 1])
    monkeypatch.setattr(os, "writev", real)
    Tool().echo([noise(8, 8), 2])
    first, second = (end["output"] for end in recording.finish("end"))
    assert first[0]["_omitted"] == "the side file did not take it: No space left on device"
    assert (first[1], second[1], stored(recording, second[0])) == (1, 2, noise(8, 8).tobytes())
    assert verify(recording.folder)[0].state == WHOLE


def test_half_a_content_is_taken_out_again(recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that the disk takes in part is finished or leaves no trace."""
    monkeypatch.setattr(os, "writev", lambda fd, parts: os.write(fd, b"".join(parts)[:10]))
    Tool().echo(noise(8, 8))
    form = recording.finish("end")[0]["output"]
    assert stored(recording, form) == noise(8, 8).tobytes()
    assert verify(recording.folder)[0].state == WHOLE


KILLED = """
import os, signal, sys
from PIL import Image
from verl_trace import RolloutTraceConfig, rollout_trace_op

@rollout_trace_op
def echo(value):
    return value

RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
for n in range(50):
    echo({"n": n, "image": Image.frombytes("L", (100, 100), bytes([n]) * 10_000)})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_sigkill_costs_no_picture(tmp_path: Path) -> None:
    """Every content that a line refers to is there, checked by its digest."""
    environment = {**os.environ, "VERL_TRACE_DIR": str(tmp_path), "VERL_TRACE_MIN_FREE": "0"}
    done = subprocess.run([sys.executable, "-c", KILLED], env=environment, timeout=60, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    (report,) = verify(tmp_path)
    assert (report.calls, report.state) == (50, TORN)
    assert [len(file.contents) for file in report.contents[0].files] == [50]
    assert report.contents[0].missing == []


def test_sigkill_costs_what_waits_and_it_is_counted(tmp_path: Path) -> None:
    """Pixels above VERL_TRACE_MEDIA_SYNC, not written yet: the calls are there, and verify counts what is missing."""
    program = KILLED.replace(
        "for n in", "from verl_trace.recorder import session\nsession.current().side._lock.acquire()\nfor n in"
    )
    environment = {
        **os.environ,
        "VERL_TRACE_DIR": str(tmp_path),
        "VERL_TRACE_MIN_FREE": "0",
        "VERL_TRACE_MEDIA_SYNC": "1k",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, timeout=60, check=False, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL
    (report,) = verify(tmp_path)
    assert (report.calls, report.state) == (50, TORN)
    assert (len(report.contents[0].missing), report.contents[0].killed) == (50, True)


def test_a_forked_child_has_a_side_file_of_its_own(recording: Any) -> None:
    """The parent's contents are not referred to from the child's lines."""
    Tool().echo(noise(8, 8))
    if os.fork() == 0:
        Tool().echo(noise(8, 8))
        session.stop()
        os._exit(0)
    assert os.wait()[1] == 0
    recording.finish()
    assert len(list(recording.folder.glob("*.blobs"))) == 2
    (report,) = verify(recording.folder)
    assert (report.state, [len(c.files[0].contents) for c in report.contents]) == (WHOLE, [1, 1])


def test_one_file_for_many_contents(recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files grow in number with bytes, not with values; a full one is finished and the next one begun."""
    for n in range(200):
        Tool().echo(Image.frombytes("L", (20, 20), bytes([n]) * 400))
    assert len(list(recording.folder.glob("*.blobs"))) == 1
    monkeypatch.setattr("verl_trace.recorder.side_file.FILE_BYTES", 1)
    Tool().echo(noise(8, 8))
    recording.finish()
    assert len(list(recording.folder.glob("*.blobs"))) == 2
    assert len(contents(recording.folder)) == 201
    (run,) = find_runs(recording.folder)
    assert run.content_bytes == sum(path.stat().st_size for path in recording.folder.glob("*.blobs")) < run.stored_bytes
    assert verify(recording.folder)[0].state == WHOLE


def test_a_full_side_file_is_finished_in_the_background(
    recording: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The call that fills it neither syncs nor imports anything, also where finishing it fails."""
    Tool().echo(noise(8, 8))
    monkeypatch.setattr("verl_trace.recorder.side_file.FILE_BYTES", 1)
    running, here = session.current(), threading.current_thread()
    assert running is not None
    done: list[str] = []
    imported, fsync = builtins.__import__, os.fsync

    def noted_import(name: str, *rest: Any) -> Any:
        if threading.current_thread() is here:
            done.append(f"import {name}")
        return imported(name, *rest)

    def refused(fd: int) -> None:
        if threading.current_thread() is here:
            done.append("fsync")
        raise OSError(errno.EIO, "Input/output error")

    content = noise(16, 16).tobytes()
    with monkeypatch.context() as watched:
        watched.setattr(os, "fsync", refused)
        watched.setattr(builtins, "__import__", noted_import)
        assert running.side.keep("d" * 64, content, in_background=True) == ""
        assert done == []
        watched.setattr(builtins, "__import__", imported)
        running.background.wake()
        deadline = time.monotonic() + 20
        while (err := capsys.readouterr().err) == "" and time.monotonic() < deadline:
            time.sleep(0.01)
    recording.finish()

    assert os.fsync is fsync
    assert "00000.blobs: Input/output error while finishing the file; its contents are kept" in err
    assert [SideFile(path).path.name[-11:] for path in sorted(recording.folder.glob("*.blobs"))] == [
        "00000.blobs",
        "00001.blobs",
    ]
    for path in recording.folder.glob("*.blobs"):
        file = SideFile(path)
        assert len(list(file)) == 1
        assert file.closed


def test_a_removed_side_file_is_noticed(recording: Any) -> None:
    """What is met again is stored again, in a new file."""
    Tool().echo(noise(8, 8))
    next(recording.folder.glob("*.blobs")).unlink()
    running = session.current()
    assert running is not None
    running.side.check_health()
    Tool().echo(noise(8, 8))
    recording.finish()
    assert len(contents(recording.folder)) == 1
    assert verify(recording.folder)[0].state == WHOLE


@pytest.mark.parametrize("place", ["content", "head", "tail", "all"])
def test_damage_of_a_side_file_is_named(recording: Any, tmp_path: Path, place: str) -> None:
    """The file, the bytes and what is missing; a repaired copy holds the rest and is whole."""
    from verl_trace.reader.repair import repair

    for n in range(3):
        Tool().echo(Image.frombytes("L", (100, 100), bytes([n]) * 10_000))
    recording.finish()
    (path,) = recording.folder.glob("*.blobs")
    second = list(SideFile(path))[1]
    data = bytearray(path.read_bytes())
    if place == "content":
        data[second.offset + 7] ^= 1
    elif place == "head":
        data[second.offset - 5] ^= 1
    elif place == "tail":
        del data[-10_050:]
    path.write_bytes(data)
    if place == "all":
        path.unlink()

    (report,) = verify(recording.folder)

    (found,) = report.contents
    assert report.state == DAMAGED
    assert len(found.missing) == (3 if place == "all" else 1)
    if place in ("content", "head"):
        assert found.missing == [second.digest]
        assert [(p.path.name, p.kind) for p in found.files[0].problems] == [(path.name, "blob")]
    copy = repair(recording.folder, tmp_path / "copy")
    assert (copy.copy, copy.missing_contents) == (WHOLE, len(found.missing))
    assert not copy.complete
    assert len(contents(tmp_path / "copy")) == 3 - len(found.missing)


def test_many_threads_store_each_content_once(recording: Any) -> None:
    """Offsets and digests stay right when contents come from everywhere at once."""
    from concurrent.futures import ThreadPoolExecutor

    pictures = [Image.frombytes("L", (50, 50), bytes([n]) * 2500) for n in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Tool().echo, pictures * 20))
    recording.finish()
    assert len(contents(recording.folder)) <= 20
    assert verify(recording.folder)[0].state == WHOLE


def test_a_picture_is_quick(recording: Any) -> None:
    """No encoding in the caller's thread: a picture of a megabyte takes some milliseconds at most."""
    picture = noise(640, 480)
    Tool().echo(picture)
    began = time.perf_counter()
    for _ in range(20):
        Tool().echo(picture)
    assert (time.perf_counter() - began) / 20 < 0.1
