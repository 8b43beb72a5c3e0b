"""What is stored of a call of which no end was recorded, and that other words for it are no difference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.demo.server_env import Server
from verl_trace.reader.repair import repair as repair_run
from verl_trace.uploader import check, payload
from verl_trace.uploader.pipeline import upload

NOW = "no end of this call was recorded, although the process 7 on n closed its recording; it was last seen at T"
BEFORE = "the recording process 7 on n ended before this call did; it was last seen at T"


def test_a_repaired_copy_of_a_killed_process(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """Whoever made the copy closed its files; the process did not."""
    recording = writer(tmp_path / "runs", project)
    root = recording.start("A.run")
    recording.age(3600)
    repair_run(recording.folder, tmp_path / "copy")
    upload(tmp_path / "copy", settle=0.0)

    assert "ended before this call did" in json.loads(stored(project)[root["id"]]["exception"])["message"]


def test_other_words_are_no_difference(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version said of a process that closed its recording, too, that it ended before; a deep check knows."""
    recording = writer(tmp_path, project)
    recording.start("A.run")
    recording.close()
    now = payload._exception
    whose = "no end of this call was recorded, although the process", "the recording process"
    ended = "closed its recording;", "ended before this call did;"
    with monkeypatch.context() as earlier:
        earlier.setattr(payload, "_exception", lambda call: (now(call) or "").replace(*whose).replace(*ended))
        upload(tmp_path, settle=0.0)
    result = upload(tmp_path, check="deep")

    assert (result.sent, result.runs[0].compared, result.runs[0].differences) == (0, 1, [])


@pytest.mark.parametrize(
    ("theirs", "same"),
    [
        ({"type": "Interrupted", "message": BEFORE}, True),
        ({"type": "Interrupted", "message": BEFORE.replace("7", "8")}, False),
        ({"type": "Interrupted", "message": BEFORE.replace(" T", " U")}, False),
        ({"type": "Interrupted", "message": "of the user's own"}, False),
        ({"type": "ValueError", "message": BEFORE}, False),
        ([], False),
    ],
)
def test_another_process_or_moment_is_one(theirs: Any, same: bool) -> None:
    """Only why there is no end may be told in other words."""
    mine = check._no_end(json.dumps({"type": "Interrupted", "message": NOW}))

    assert mine is not None
    assert (check._no_end(json.dumps(theirs)) == mine) is same
    assert check._no_end("no JSON") is check._no_end(None) is None
