"""Calls too large for a row of Weave arrive: the heaviest fields as files, a preview in place, the rest as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from verl_trace.demo.server_env import Server
from verl_trace.uploader.heavy import MOVED, ROW_BYTES, Lightener, lighten
from verl_trace.uploader.payload import Encoded
from verl_trace.uploader.pipeline import upload

# Reads a call with W&B's own client and puts a moved field together again.
WHOLE = """
import json, sys
import weave
client = weave.init(sys.argv[1])
call = client.get_call(sys.argv[2])
value = eval("call." + sys.argv[3])
whole = value["whole"]
parts = [whole] if hasattr(whole, "data") else list(whole)
print("ANSWER" + json.dumps(json.loads(b"".join(part.data for part in parts))))
"""


class Files:
    """Keeps the files that it is given."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    def create_file(self, name: str, content: bytes) -> str:
        digest = f"digest-{len(self.stored)}"
        self.stored[digest] = content
        return digest

    def whole(self, form: Any) -> Any:
        """The value of a moved field."""
        assert MOVED in form
        parts = form["whole"] if isinstance(form["whole"], list) else [form["whole"]]
        return json.loads(b"".join(self.stored[part["files"]["content"]] for part in parts))


def call(inputs: Any, output: Any, attributes: Any = None) -> Encoded:
    first, second, third = (orjson.dumps(part) for part in (attributes or {}, inputs, output))
    return Encoded("id", "id", "op", "me/p", b'"id":"id"', first, second, b'"ended_at":"now"', third)


def test_a_call_within_the_limit_is_left_alone() -> None:
    """The very same object, and no file."""
    files, small = Files(), call({"ids": list(range(1000))}, 1)

    assert lighten(small, files) is small
    assert files.stored == {}


def test_the_heaviest_fields_go_first() -> None:
    """What is small enough to filter by stays; what is moved is named, previewed and whole."""
    files = Files()
    ids, text = list(range(400_000)), "word " * 400_000
    before = call({"prompt_ids": ids, "priority": 1, "nested": [{"log": text}]}, {"reward": 0.5, "mask": [1] * 100})

    after = lighten(before, files)

    assert after.size < ROW_BYTES // 2
    inputs, output = json.loads(after.inputs), json.loads(after.output)
    assert (inputs["priority"], output) == (1, {"reward": 0.5, "mask": [1] * 100})
    assert files.whole(inputs["prompt_ids"]) == ids
    assert files.whole(inputs["nested"][0]["log"]) == text
    assert inputs["prompt_ids"]["preview"] == ids[:20]
    assert text.startswith(inputs["nested"][0]["log"]["preview"])
    assert [field.path for field in after.moved] == ["inputs.prompt_ids", "inputs.nested[0].log"]
    assert after.moved[0].bytes == len(orjson.dumps(ids))


@pytest.mark.parametrize(
    "output",
    [
        [{"a": i} for i in range(500_000)],
        {str(i): i for i in range(400_000)},
        {"messages": [{"role": "user", "content": "x" * 50} for _ in range(60_000)]},
        "x" * 5_000_000,
        list(range(900_000)),
        [[[i, None, {"_type": "float", "value": "nan"}] for i in range(10)] for _ in range(20_000)],
    ],
    ids=["many small", "many keys", "messages", "one text", "one list", "nested numbers"],
)
def test_whatever_makes_it_large(output: Any) -> None:
    """No shape of a call stays above the limit, and each is whole."""
    files = Files()

    after = lighten(call({"n": 1}, output), files)

    assert after.size < ROW_BYTES // 2
    form = json.loads(after.output)
    if MOVED in form:
        assert files.whole(form) == output
    else:
        assert {key: files.whole(field) for key, field in form.items()} == output
    assert json.loads(after.inputs) == {"n": 1}


def test_a_refused_call_is_made_smaller_still() -> None:
    """By all that is worth moving; nothing is offered for a call that has nothing to move."""
    files = Files()
    lightener = Lightener(files)
    medium = call({"ids": list(range(100_000)), "priority": 1}, {"log": "x" * 200_000})
    assert lightener.ready(medium) is medium

    after = lightener.refused(medium)

    assert after is not None
    assert after.size < 10_000
    assert [field.path for field in after.moved] == ["inputs.ids", "output.log"]
    assert json.loads(after.inputs)["priority"] == 1
    assert lightener.refused(after) is None
    assert lightener.refused(call({"a": 1}, "x" * 1000)) is None


def test_large_attributes_are_moved_too() -> None:
    """The five of verl stay."""
    files = Files()

    after = lighten(call({}, 1, {"step": 3, "notes": "x" * 4_000_000}), files)

    attributes = json.loads(after.attributes)
    assert attributes["step"] == 3
    assert files.whole(attributes["notes"]) == "x" * 4_000_000


def test_a_file_too_large_for_a_request_is_several() -> None:
    """Joined they are the field's JSON."""
    files = Files()
    text = "0123456789" * 4_000_000

    after = lighten(call({}, {"text": text}), files)

    form = json.loads(after.output)["text"]
    assert len(form["whole"]) == 3
    assert files.whole(form) == text


@pytest.mark.parametrize("size", [3_700_000, 40_000_000])
def test_a_large_call_arrives_whole(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any], size: int
) -> None:
    """Through the real server: neighbours stored, the call filterable, W&B's client gets the field back, told of."""
    recording = writer(tmp_path, project)
    ids = list(range(100_000, 100_000 + size // 7))
    root = recording.start("A.run", inputs={"prompt_ids": ids, "priority": 7}, step=3)
    recording.end(root, {"reward": 1.5})
    for number in range(5):
        recording.call("B.run", number)
    recording.close()

    result = upload(tmp_path)

    assert (result.sent, result.failed) == (6, 0)
    (moved,) = result.runs[0].moved
    assert (moved.id, moved.op, moved.path, moved.bytes) == (
        root["id"], "A.run", "inputs.prompt_ids", len(orjson.dumps(ids)),
    )  # fmt: skip
    rows = stored(project)
    row = rows[root["id"]]
    assert (row["inputs"]["priority"], row["output"], len(rows)) == (7, {"reward": 1.5}, 6)
    assert row["inputs"]["prompt_ids"]["preview"] == ids[:20]
    assert len(orjson.dumps(row)) < 3_500_000
    command = [sys.executable, "-c", WHOLE, f"demo/{project}", root["id"], "inputs['prompt_ids']"]
    done = subprocess.run(
        command, env=os.environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.rpartition("ANSWER")[2]) == ids


def test_a_refused_file_fails_its_call_alone(
    proxy: Any, writer: Any, project: str, tmp_path: Path, fault: Any, stored: Callable[[str], Any]
) -> None:
    """When the server takes no file, the large call is named with the reason and the others arrive."""
    recording = writer(tmp_path, project)
    heavy = recording.call("A.run", "x" * 5_000_000)
    light = recording.call("B.run", 1)
    recording.close()
    proxy.decide = lambda path, body: fault(413) if path == "/file/create" and len(body) > 1_000_000 else None

    result = upload(tmp_path)

    assert (result.sent, result.failed) == (1, 1)
    (failure,) = result.runs[0].failures
    assert failure.id == heavy["id"]
    assert "a file of it is refused: HTTP 413" in failure.reason
    assert set(stored(project)) == {light["id"]}


def test_one_poisoned_call_among_a_thousand(
    proxy: Any, writer: Any, project: str, tmp_path: Path, fault: Any, stored: Callable[[str], Any]
) -> None:
    """999 are stored, the one that the server refuses is named in its words."""
    recording = writer(tmp_path, project)
    heads = [recording.call("A.run", "poison" if number == 617 else number) for number in range(1000)]
    recording.close()
    proxy.decide = lambda path, body: fault(422) if path.endswith("/calls/complete") and b'"poison"' in body else None

    result = upload(tmp_path)

    assert (result.sent, result.failed) == (999, 1)
    (failure,) = result.runs[0].failures
    assert (failure.id, failure.reason) == (heads[617]["id"], "HTTP 422: as told by the test")
    assert set(stored(project)) == {head["id"] for head in heads} - {heads[617]["id"]}
