"""Pictures and arrays on the cluster: described in a line, and saved as files that other programs open."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

Image: Any = importlib.import_module("PIL.Image")
Cli = Callable[..., Any]
PICTURE = Image.linear_gradient("L").convert("RGB")
ARRAY = np.arange(70_000, dtype=np.int16)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A call with a picture in a message, an array, a JPEG as bytes in an URL, and what merely looks like one."""
    monkeypatch.setenv("VERL_TRACE_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("VERL_TRACE_MIN_FREE", "0")

    class Loop:
        @rollout_trace_op
        def run(self, messages: Any) -> Any:
            forged = {"_type": "PIL.Image.Image", "blob": {"digest": "0" * 64, "size": 3}}
            return {"picture": PICTURE, "array": ARRAY, "forged": forged}

    RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
        content = [{"type": "image", "image": PICTURE}, {"type": "text", "text": "what is it?"}]
        Loop().run([{"role": "user", "content": content}])
    RolloutTraceConfig.reset()
    return tmp_path / "runs" / "exp1"


def pixels(path: Path) -> bytes:
    with Image.open(path) as image:
        return bytes(image.tobytes())


def test_contents_are_described(cli: Cli, recorded: Path) -> None:
    """A message with a picture says what it is."""
    done = cli("show", recorded)

    assert done.code == 0
    assert "<image> [PIL.Image.Image RGB 256x256, 196,608 bytes]" in done.out
    assert "what is it?" in done.out


def test_contents_are_saved(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    """As PNG and NPY, pixel for pixel; an existing file stays."""
    picture = cli("show", recorded, "1:0:0", "--field", "output.picture", "--save", tmp_path / "x.png")
    array = cli("show", recorded, "1:0:0", "--field", "output.array", "--save", tmp_path / "x.dat")
    again = cli("show", recorded, "1:0:0", "--field", "output.array", "--save", tmp_path / "x.png")

    assert (picture.code, array.code, again.code) == (0, 0, 2)
    assert pixels(tmp_path / "x.png") == PICTURE.tobytes()
    assert np.array_equal(np.load(io.BytesIO((tmp_path / "x.dat").read_bytes())), ARRAY)
    assert "a .npy file" in array.out
    assert "there already" in again.err


@pytest.mark.parametrize("field", ["output.forged", "output", "inputs.messages.0.role", "nothing"])
def test_what_cannot_be_saved(cli: Cli, recorded: Path, tmp_path: Path, field: str) -> None:
    """No content, a forged reference, no such field: one line, no file."""
    done = cli("show", recorded, "--field", field, "--save", tmp_path / "x.bin")

    assert done.code == 2
    # that it recorded was said in this process, too
    assert len([line for line in done.err.splitlines() if "recording to" not in line]) == 1
    assert not (tmp_path / "x.bin").exists()


def test_a_lost_side_file_is_told(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    """The description stays; saving says what is missing."""
    for path in recorded.glob("*.blobs"):
        path.unlink()
    done = cli("show", recorded, "--field", "output.picture", "--save", tmp_path / "x.png")

    assert (done.code, "not in the side files" in done.err) == (2, True)
    assert "RGB 256x256" in cli("show", recorded).out
