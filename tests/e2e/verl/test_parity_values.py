"""Every kind of value traced live by verl's `backend=weave`, and recorded and uploaded: what the real server holds.

The table is that of docs/values.md, *Against live tracing*: where the two differ, the recording keeps more. Any other
difference fails.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.demo.server_env import Server, start_server

pytestmark = pytest.mark.e2e

HERE = Path(__file__).resolve().parent
# What live tracing loses -> values that show it. All others are the same in both.
DIFFERENCES = {
    "live keeps a repr": {
        "numpy scalars", "array", "small array", "object array", "tensor", "bf16", "bytes", "decimal", "enum",
        "set", "deque", "plain object", "exception", "date", "path", "uuid",
    },
    "live keeps no field names": {"namedtuple"},
    "live keeps null": {"nan", "infinities"},
    "another file of the same picture": {"image", "gray image", "tool response"},
    "live keeps a number that other readers round": {"big int"},
}  # fmt: skip


def post(server: Server, path: str, body: Any) -> bytes:
    """The answer of a route."""
    key = base64.b64encode(f"api:{server.api_key}".encode()).decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {key}"}
    request = urllib.request.Request(server.url + path, data=json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def differences(live: Any, recorded: Any, path: str) -> list[tuple[str, str]]:
    """(kind, where) of everything that is not the same."""
    if type(live) is type(recorded) and not isinstance(live, (dict, list)) and live == recorded:
        return []
    if isinstance(live, dict) and isinstance(recorded, dict):
        if live.get("weave_type") == recorded.get("weave_type") == {"type": "PIL.Image.Image"}:
            same_form = {"files", "load_op"} >= {k for k in live if live[k] != recorded.get(k)}
            return [("another file of the same picture" if same_form else "other", path)]
        # the code that rebuilds a time is a reference to an op of the live client's; its reader needs none
        live = {key: value for key, value in live.items() if key != "load_op"}
        if live.keys() == recorded.keys():
            return [found for key in live for found in differences(live[key], recorded[key], f"{path}.{key}")]
    if isinstance(live, list) and isinstance(recorded, list) and len(live) == len(recorded):
        pairs = enumerate(zip(live, recorded, strict=True))
        return [found for number, (a, b) in pairs for found in differences(a, b, f"{path}[{number}]")]
    if isinstance(live, list) and isinstance(recorded, dict) and live == list(recorded.values()):
        return [("live keeps no field names", path)]
    if live is None and isinstance(recorded, dict) and recorded.get("_type") == "float":
        return [("live keeps null", path)]
    if isinstance(live, int) and isinstance(recorded, dict) and recorded == {"_type": "int", "value": str(live)}:
        return [("live keeps a number that other readers round", path)]
    if isinstance(live, str) and re.match(r"<|[\w.]+\(|np\.|\{|b'|\[|tensor|array", live):
        return [("live keeps a repr", path)]
    return [(f"other: live {live!r:.200} recorded {recorded!r:.200}", path)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """W&B's trace server on loopback."""
    with start_server(tmp_path_factory.mktemp("server") / "weave.db", entity="me") as running:
        yield running


@pytest.fixture(scope="module")
def pairs(
    server: Server, tmp_path_factory: pytest.TempPathFactory, verl_environment: Callable[..., dict[str, str]]
) -> dict[str, tuple[Any, Any]]:
    """Name of the value -> (live call, recorded call) as the server has them."""
    folder = tmp_path_factory.mktemp("values")
    online = {**server.client_environment(), "HTTPS_PROXY": "http://127.0.0.1:9", "WANDB_MODE": "online"}
    live = verl_environment(**online, VERL_TRACE_DISABLED="1", WEAVE_PRINT_CALL_LINK="false")
    recorded = verl_environment(**online, VERL_TRACE_DIR=str(folder / "runs"), VERL_TRACE_MIN_FREE="0")
    for arguments, environment in (
        ([str(HERE / "rich_values.py"), "me/live", "exp", "weave"], live),
        ([str(HERE / "rich_values.py"), "me/recorded", "exp", "jsonl"], recorded),
        (["-c", "from verl_trace.cli import main; main()", "upload", str(folder / "runs")], recorded),
    ):
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = []
    for project in ("me/live", "me/recorded"):
        rows = [
            json.loads(row) for row in post(server, "/calls/stream_query", {"project_id": project}).split(b"\n") if row
        ]
        found.append({row["inputs"]["name"]: row for row in rows})
    assert found[0].keys() == found[1].keys()
    return {name: (found[0][name], found[1][name]) for name in found[0]}


def test_every_difference_is_in_the_table(pairs: dict[str, tuple[Any, Any]]) -> None:
    """Inputs and outputs of each value: the same, or of the kind that the table gives."""
    assert len(pairs) > 35
    kinds = {name: kind for kind, names in DIFFERENCES.items() for name in names}
    wrong = {}
    for name, (live, recorded) in pairs.items():
        found = {kind for side in ("inputs", "output") for kind, _ in differences(live[side], recorded[side], side)}
        if found != ({kinds[name]} if name in kinds else set()):
            wrong[name] = found
    assert wrong == {}


def test_the_rest_of_the_calls_is_the_same(pairs: dict[str, tuple[Any, Any]]) -> None:
    """Op names, statuses and the attributes of verl."""
    for live, recorded in pairs.values():
        assert live["op_name"].replace("me/live", "me/recorded") == recorded["op_name"]
        assert live["summary"]["weave"]["status"] == recorded["summary"]["weave"]["status"] == "success"
        for key in ("step", "sample_index", "rollout_n", "validate", "experiment_name"):
            assert live["attributes"].get(key) == recorded["attributes"].get(key)


def test_pictures_have_their_pixels(server: Server, pairs: dict[str, tuple[Any, Any]]) -> None:
    """Those of the recording; the file of a live one is not always there when its client has finished."""
    from PIL import Image

    for name in ("image", "gray image"):
        for side in ("inputs", "output"):
            (file,) = pairs[name][1][side]["value"]["files"].items()
            data = post(server, "/file/content", {"project_id": "me/recorded", "digest": file[1]})
            image = Image.open(io.BytesIO(data))
            digest = hashlib.sha256(image.tobytes()).hexdigest()
            assert (file[0], image.mode, digest) == ("image.png", *pairs[f"pixels of {name}"][1]["inputs"]["value"])
