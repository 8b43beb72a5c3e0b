"""Pictures, sound, video and arrays of a real recording, read back with W&B's own client."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.commands.upload import exit_code
from verl_trace.demo.server_env import Server
from verl_trace.reader import find_runs
from verl_trace.uploader.pipeline import upload
from verl_trace.uploader.result import WAITS_FOR_SEGMENT

RECORD = """
import base64, io, random, sys
import numpy as np
from PIL import Image
from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

def picture(mode, width=37, height=21, bands={"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "I;16": 2, "CMYK": 4}):
    if mode == "1":
        return picture("L").convert("1")
    if mode == "P":
        return picture("RGB").quantize(17)
    data = random.Random(mode).randbytes(width * height * bands[mode])
    return Image.frombytes(mode, (width, height), data)

class Tool:
    @rollout_trace_op
    def execute(self, **given):
        return given

RolloutTraceConfig.init(sys.argv[1], "exp1", "jsonl")
with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
    rng = np.random.default_rng(0)
    jpeg = io.BytesIO()
    picture("RGB", 300, 200).save(jpeg, "JPEG")
    Tool().execute(
        **{mode: picture(mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")},
        cmyk=picture("CMYK"),
        lazy=Image.open(jpeg),
        audios=[(np.sin(np.arange(100_000) / 20).astype("float32"), 16_000)],
        videos=[(rng.integers(0, 255, (8, 3, 60, 60), dtype="uint8"), {"fps": 2.0})],
        routed_experts=rng.integers(0, 127, (500, 24, 8), dtype="int16"),
        messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {
            "url": "data:image/jpeg;base64," + base64.b64encode(jpeg.getvalue()).decode()}}]}],
        small=[1, 2, 3],
        forged={"_type": "PIL.Image.Image", "blob": {"digest": "0" * 64, "size": 3}},
    )
RolloutTraceConfig.reset()
"""

READ = """
import base64, io, json, sys
import numpy as np
import weave
client = weave.init(sys.argv[1])
(call,) = client.get_calls()
out = call.output
def picture(image):
    return [image.mode, list(image.size), base64.b64encode(image.convert("RGBA").tobytes()).decode()]
answer = {mode: picture(out[mode]) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "lazy")}
sound = out["audios"][0][0].whole
answer["sound"] = [sound.mimetype, base64.b64encode(sound.data).decode(), out["audios"][0][1]]
video = out["videos"][0][0]
frames = np.load(io.BytesIO(video.whole.data)).tolist()
answer["video"] = [frames, picture(video.first_frame), out["videos"][0][1]["fps"]]
answer["experts"] = np.load(io.BytesIO(out["routed_experts"].whole.data)).tolist()
url = out["messages"][0]["content"][0]["image_url"]["url"]
answer["url"] = [url.mimetype, base64.b64encode(url.data).decode()]
answer["cmyk"] = base64.b64encode(out["cmyk"].whole.data).decode()
answer["small"] = list(out["small"])
print("ANSWER" + json.dumps(answer))
"""


@pytest.fixture
def recorded(wandb_login: Server, project: str, tmp_path: Path) -> Path:
    """A recording made by a process of its own, since PIL and numpy belong to the traced program."""
    environment = {**os.environ, "VERL_TRACE_DIR": str(tmp_path / "runs"), "VERL_TRACE_MIN_FREE": "0"}
    subprocess.run([sys.executable, "-c", RECORD, project], env=environment, check=True, timeout=60)
    return tmp_path / "runs"


def pixels(mode: str) -> Any:
    """The picture of this mode that the program made."""
    from PIL import Image

    bands = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "I;16": 2, "CMYK": 4}
    if mode == "1":
        return pixels("L").convert("1")
    if mode == "P":
        return pixels("RGB").quantize(17)
    return Image.frombytes(mode, (37, 21), random.Random(mode).randbytes(37 * 21 * bands[mode]))


def test_media_reads_back_as_it_was(
    recorded: Path, wandb_login: Server, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """Each picture is a PIL image equal to the original; sound, video and arrays hold every sample."""
    import numpy as np

    result = upload(recorded)

    assert (result.sent, result.failed, result.runs[0].missing_contents) == (1, 0, 0)
    (row,) = stored(project).values()
    form = row["output"]["RGB"]
    assert (form["_type"], form["weave_type"], list(form["files"])) == (
        "CustomWeaveType", {"type": "PIL.Image.Image"}, ["image.png"],
    )  # fmt: skip
    assert list(row["output"]["lazy"]["files"]) == ["image.jpg"]
    assert row["output"]["forged"] == {"_type": "PIL.Image.Image", "blob": {"digest": "0" * 64, "size": 3}}
    command = [sys.executable, "-c", READ, f"demo/{project}"]
    done = subprocess.run(
        command, env=os.environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.rpartition("ANSWER")[2])
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        original = pixels(mode)
        data = base64.b64encode(original.convert("RGBA").tobytes()).decode()
        assert answer[mode] == [mode, list(original.size), data], mode
    assert answer["lazy"][:2] == ["RGB", [300, 200]]
    assert base64.b64decode(answer["cmyk"]) == pixels("CMYK").tobytes()
    mimetype, data, rate = answer["sound"]
    samples = np.frombuffer(base64.b64decode(data)[44:], dtype="<i2")
    assert (mimetype, rate, len(samples)) == ("audio/wav", 16_000, 100_000)
    assert np.abs(samples / 32767 - np.sin(np.arange(100_000) / 20)).max() < 1e-4
    rng = np.random.default_rng(0)
    video = rng.integers(0, 255, (8, 3, 60, 60), dtype="uint8")
    assert (answer["video"][0], answer["video"][2]) == (video.tolist(), 2.0)
    first = np.dstack([video[0].transpose(1, 2, 0), np.full((60, 60), 255, dtype="uint8")])
    assert answer["video"][1] == ["RGB", [60, 60], base64.b64encode(first.tobytes()).decode()]
    assert answer["experts"] == rng.integers(0, 127, (500, 24, 8), dtype="int16").tolist()
    assert answer["url"][0] == "image/jpeg"
    assert base64.b64decode(answer["url"][1]).startswith(b"\xff\xd8\xff")
    assert answer["small"] == [1, 2, 3]


def test_each_file_is_sent_once(recorded: Path, proxy: Any, project: str) -> None:
    """A picture that is both input and output, and in many calls, is one file."""
    upload(recorded)
    bodies = [body.partition(b"\r\n\r\n")[2][:200] for body in proxy.sent("/file/create")]
    assert len(bodies) > 10
    names = [body for body in proxy.sent("/file/create") if b'filename="image.png"' in body]
    # seven pictures and the first frame
    assert len(names) == 8


def test_a_missing_side_file_is_told(
    recorded: Path, wandb_login: Server, project: str, stored: Callable[[str], Any]
) -> None:
    """It may still arrive; else the call is sent with marks where its contents were, and the report counts them."""
    for path in recorded.rglob("*.blobs"):
        path.unlink()

    waiting = upload(recorded)
    result = upload(recorded, partial=True)

    assert (waiting.sent, dict(waiting.skipped)) == (0, {WAITS_FOR_SEGMENT: 1})
    assert ".00000.blobs" in waiting.runs[0].notes[0]
    assert (result.sent, result.failed) == (1, 0)
    assert result.runs[0].missing_contents == 2 * 13
    assert exit_code(result) == 1
    (row,) = stored(project).values()
    assert row["output"]["RGB"]["_omitted"] == "the content is missing from the side file, or damaged"
    assert row["output"]["small"] == [1, 2, 3]


def test_recorded_data_is_never_an_object_of_weaves(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """A dict that claims to be one would make the reader's client run what a recorded text had put into a file."""
    recording = writer(tmp_path, project)
    evil = {"_type": "CustomWeaveType", "weave_type": {"type": "Op"}, "files": {"obj.py": "digest"}}
    time = {"_type": "CustomWeaveType", "weave_type": {"type": "datetime.datetime"}, "val": "2026-01-02T03:04:05+00:00"}
    recording.call("A.run", {"evil": [evil], "time": time, "false_time": {**time, "files": {"a": "b"}}})
    recording.close()

    result = upload(tmp_path)

    (row,) = stored(project).values()
    assert row["output"]["evil"] == [{**evil, "_type": "text:CustomWeaveType"}]
    assert row["output"]["time"] == time
    assert row["output"]["false_time"]["_type"] == "text:CustomWeaveType"
    assert result.runs[0].marked_texts == 2


def test_keys_left_out_at_upload(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """`redact` adds to what the recording left out: attributes, inputs and outputs at any depth."""
    recording = writer(tmp_path, project)
    root = recording.start("A.run", inputs={"User_Email": "a@b", "n": 1}, step=1, email="a@b")
    recording.end(root, [{"deep": [{"email": {"x": "a@b"}}]}, "text"])
    recording.close()

    result = upload(tmp_path, redact=["*email*"])

    (row,) = stored(project).values()
    assert (result.sent, row["inputs"]) == (1, {"User_Email": "REDACTED", "n": 1})
    assert row["output"] == [{"deep": [{"email": "REDACTED"}]}, "text"]
    assert (row["attributes"]["email"], row["attributes"]["step"]) == ("REDACTED", 1)
    assert "a@b" not in json.dumps(row)


def test_the_reader_finds_contents_by_digest(recorded: Path) -> None:
    """From the files alone, for whoever wants a recorded picture without Weave."""
    (run,) = find_runs(recorded)
    (writer,) = run.writers
    (path,) = writer.side_files
    assert path.name.endswith(".00000.blobs")
    assert writer.contents.get("0" * 64) is None
