"""The same rollouts traced live by verl's `backend=weave`, and recorded and uploaded: W&B's own server holds the same.

The mask, which is all that may differ:
- ids of calls and trajectories, and times;
- the project in op refs (the two lie in two projects of one server);
- `attributes.weave` (client and system of the sender) and `attributes.uid` (the recorder adds it);
- `request_id` and `instance_id` (verl draws them) and `metrics` (measured seconds) in inputs and outputs;
- the outer frames of tracebacks, where the decorator's own lie;
- values that live tracing stores as a Python repr, where the recording has the value itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_trace.demo.server_env import Server, start_server

pytestmark = pytest.mark.e2e

Calls = list[dict[str, Any]]
FIVE = ("sample_index", "step", "rollout_n", "validate", "experiment_name")
MASKED = ("request_id", "instance_id", "metrics")
# What live tracing stores for a value that it cannot take apart, and the only fields where verl hands it such values.
REPR = re.compile(r"<.* object at 0x|np\.\w+\(", re.DOTALL)
REPR_FIELDS = {".inputs.priority", ".inputs.kwargs.agent_data"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """W&B's trace server on loopback."""
    with start_server(tmp_path_factory.mktemp("server") / "weave.db", entity="me") as running:
        yield running


@pytest.fixture(scope="module")
def folder(drive: Callable[..., Any], server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One driver with three managers: traced live, recorded, and recorded on the default trainer; both are uploaded."""
    folder = tmp_path_factory.mktemp("parity")
    # a closed port as proxy: Weave's client asks the internet for its newest version
    variables = {**server.client_environment(), "HTTPS_PROXY": "http://127.0.0.1:9", "WEAVE_PRINT_CALL_LINK": "false"}
    scenes = [
        {"worker": "v0", "backend": "weave", "experiment": "live", "project": "me/live"},
        {"worker": "v0", "backend": "jsonl", "experiment": "recorded", "project": "me/recorded"},
        {"worker": "tq", "backend": "jsonl", "experiment": "default", "project": "me/default", "validate": True},
    ]
    report = drive(folder, scenes=scenes, end="flush", variables={**variables, "WANDB_MODE": "online"})
    assert report["live"]["model_calls"] == report["recorded"]["model_calls"]
    return folder


def trajectories(calls: Calls) -> dict[tuple[Any, ...], Calls]:
    """(step, sample_index, rollout_n, validate) -> calls in the order in which they started, parents by position."""
    grouped: dict[str, Calls] = {}
    for call in sorted(calls, key=lambda call: call["started_at"]):
        grouped.setdefault(call["trace_id"], []).append(call)
    out: dict[tuple[Any, ...], Calls] = {}
    for group in grouped.values():
        place = tuple(group[0]["attributes"].get(name) for name in FIVE[:4])
        assert place not in out
        out[place] = group
    return out


def shape(group: Calls) -> list[tuple[Any, ...]]:
    """Operation, position of the parent and status of each call."""
    positions = {call["id"]: number for number, call in enumerate(group)}
    return [
        (
            call["op_name"].replace("/recorded/", "/live/"),
            positions.get(call["parent_id"]),
            call["summary"]["weave"]["status"],
            call["summary"].get("status_counts"),
        )
        for call in group
    ]


def differences(live: Any, recorded: Any, path: str = "") -> list[str]:
    """Where two values differ beyond the mask. Fields that live tracing stores as a repr begin with `repr `."""
    if path.rpartition(".")[2] in MASKED or live == recorded:
        return []
    if isinstance(live, dict) and isinstance(recorded, dict) and live.keys() == recorded.keys():
        return [found for key in live for found in differences(live[key], recorded[key], f"{path}.{key}")]
    if isinstance(live, list) and isinstance(recorded, list) and len(live) == len(recorded):
        pairs = enumerate(zip(live, recorded, strict=True))
        return [found for number, (a, b) in pairs for found in differences(a, b, f"{path}.{number}")]
    if isinstance(live, str) and REPR.match(live):
        return [f"repr {path}"]
    return [f"{path}: live {live!r:.300} recorded {recorded!r:.300}"]


@pytest.fixture(scope="module")
def pairs(
    folder: Path, server: Server, upload: Callable[[Server, Path], None], stored: Callable[[Server, str], Calls]
) -> list[tuple[Calls, Calls]]:
    """Each trajectory as the live backend and as the upload left it on the server."""
    upload(server, folder / "runs/recorded")
    live, recorded = (trajectories(stored(server, f"me/{name}")) for name in ("live", "recorded"))
    assert live.keys() == recorded.keys()
    assert len(live) == 16
    return [(live[place], recorded[place]) for place in sorted(live)]


def test_same_trees(pairs: list[tuple[Calls, Calls]]) -> None:
    """Calls, op refs, parents, statuses and their counts are the same."""
    for live, recorded in pairs:
        assert shape(live) == shape(recorded)
    assert {status for live, _ in pairs for _, _, status, _ in shape(live)} == {"success", "error", "descendant_error"}


def test_same_attributes(pairs: list[tuple[Calls, Calls]]) -> None:
    """The five attributes are verl's; the experiments differ in name because two runs were made."""
    for live, recorded in pairs:
        for a, b in zip(live, recorded, strict=True):
            assert set(a["attributes"]) - {"weave"} == set(FIVE)
            assert {name: a["attributes"][name] for name in FIVE[:4]} == {n: b["attributes"][n] for n in FIVE[:4]}
            assert (a["attributes"]["experiment_name"], b["attributes"]["experiment_name"]) == ("live", "recorded")


def test_same_inputs_and_outputs(pairs: list[tuple[Calls, Calls]]) -> None:
    """Under the mask, inputs and outputs are equal, decoded text included."""
    texts, found = 0, set()
    for live, recorded in pairs:
        for a, b in zip(live, recorded, strict=True):
            one, other = ({name: call[name] for name in ("inputs", "output")} for call in (a, b))
            found |= set(differences(one, other))
            texts += isinstance(a["output"], dict) and "response_text" in a["output"]
    assert found == {f"repr {field}" for field in REPR_FIELDS}
    assert {type(call["inputs"].get("priority", 0)) for _, recorded in pairs for call in recorded} == {int}
    assert texts > len(pairs)


def test_same_exceptions(pairs: list[tuple[Calls, Calls]]) -> None:
    """Type and message of an exception are the same, and its innermost frame is the tool's line."""
    found = 0
    for live, recorded in pairs:
        for a, b in zip(live, recorded, strict=True):
            assert (a["exception"] is None) == (b["exception"] is None)
            if a["exception"] is not None:
                one, other = json.loads(a["exception"]), json.loads(b["exception"])
                assert (one["type"], one["message"]) == (other["type"], other["message"])
                assert one["traceback"][-1] == other["traceback"][-1]
                found += 1
    assert found == 4


@pytest.mark.parametrize("experiment", ["recorded", "default"])
def test_server_holds_exactly_what_was_recorded(
    experiment: str,
    folder: Path,
    server: Server,
    upload: Callable[[Server, Path], None],
    stored: Callable[[Server, str], Calls],
    records: Callable[[Path], Any],
) -> None:
    """After an upload, and after a second one, the server has the recorded calls of either worker and no others."""
    for _ in range(2):
        upload(server, folder / "runs" / experiment)
        found = stored(server, f"me/{experiment}")
        starts = records(folder / "runs" / experiment).of("start")
        assert sorted(call["id"] for call in found) == sorted(head["id"] for head in starts)
        assert {(call["id"], call["parent_id"], call["trace_id"]) for call in found} == {
            (head["id"], head["parent_id"], head["trace_id"]) for head in starts
        }
