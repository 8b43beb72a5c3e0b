"""`verl.utils.rollout_trace` of every wheel: with the plugin it does what it does without, and ours are recorded."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from verl_trace.demo.server_env import Server

pytestmark = pytest.mark.e2e

ONLINE = {"WANDB_MODE": "online", "WEAVE_PRINT_CALL_LINK": "false", "HTTPS_PROXY": "http://127.0.0.1:9"}


class Pair(NamedTuple):
    """What one version reported without and with the plugin, and the two projects on the server."""

    off: dict[str, Any]
    on: dict[str, Any]
    projects: tuple[str, str]


@pytest.fixture(scope="session")
def pair(version: str, program: Callable[..., Any], server: Server, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The behaviour program, once without and once with the plugin."""
    folder = tmp_path_factory.mktemp("behaviour")
    projects = tuple(f"me/{version.replace('.', '-')}-{name}" for name in ("off", "on"))
    variables = {**server.client_environment(), **ONLINE}
    off, on = (
        program(version, folder, "behaviour", project, plugin=plugin, **variables)
        for project, plugin in zip(projects, (False, True), strict=True)
    )
    assert list(folder.glob("runs/*")) == []
    return Pair(off, on, (projects[0], projects[1]))


def without_project(report: Any, project: str) -> Any:
    """The report with the one thing that differs by intent taken out."""
    return json.loads(json.dumps(report).replace(project, "PROJECT"))


def test_report_is_the_same(pair: Pair, version: str) -> None:
    """Results, errors, signatures, configuration, and every call of weave, mlflow and trackio (stand-ins): equal.

    Of these three, verl 0.5 to 0.7 know no trackio, which is an unknown backend there.
    """
    off, on = (without_project(report, project) for report, project in zip(pair[:2], pair.projects, strict=True))

    assert off["verl"].startswith(version)
    assert on == off
    calls = Counter(note[0] for note in off["log"])
    assert calls["create"] == calls["finish"] > 30
    assert calls["span"] > 15
    assert (calls["trackio log"] > 0) == (version >= "0.8")


def stored(server: Server, project: str) -> list[dict[str, Any]]:
    """All calls of a project, as the server's own query route gives them."""
    key = base64.b64encode(f"api:{server.api_key}".encode()).decode()
    request = urllib.request.Request(
        f"{server.url}/calls/stream_query",
        data=json.dumps({"project_id": project}).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Basic {key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return [json.loads(line) for line in answer]


def shape(calls: list[dict[str, Any]]) -> Counter[str]:
    """Every call with what its parent is, without ids, times and the project."""
    ops = {call["id"]: call["op_name"].rpartition("/")[2].partition(":")[0] for call in calls}
    return Counter(
        json.dumps(
            [
                ops[call["id"]],
                ops.get(call["parent_id"]),
                call["inputs"],
                call["output"],
                {name: value for name, value in call["attributes"].items() if name != "weave"},
                json.loads(call["exception"] or "{}").get("message"),
            ],
            sort_keys=True,
        )
        for call in calls
    )


def test_live_weave_stores_the_same(pair: Pair, server: Server) -> None:
    """With the real client online, the real server holds the same trees, whether the plugin is loaded or not."""
    off, on = (shape(stored(server, project)) for project in pair.projects)

    assert off.total() > 15
    assert on == off


@pytest.mark.parametrize(("backend", "variables"), [("jsonl", {}), ("weave", {"WANDB_MODE": "offline"})])
def test_ours_are_recorded(
    pair: Pair,
    version: str,
    backend: str,
    variables: dict[str, str],
    program: Callable[..., Any],
    read: Callable[[Path], list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    """`jsonl`, and `weave` while W&B is offline: the caller gets the same, and each call is a start and an end."""
    seen = program(version, tmp_path, "ours", backend, **variables)
    # without a backend: with one, verl 0.5 and 0.6 put the decoded text into the caller's object
    told = pair.off["None True"]
    records = read(tmp_path / "runs/exp")
    starts, ends = ([head for head in records if head["kind"] == kind] for kind in ("start", "end"))
    traced = len(told["trajectories"]) - sum(head["kind"] == "skip" for head in records)
    expected = {
        "Agent.run": traced + 1,
        "Agent.generate": 2 * traced + 2,
        "Agent.parse": traced,
        "Agent.execute": traced + 2,
    }

    assert seen["trajectories"] == told["trajectories"]
    assert seen["config"] == {**told["config"], "backend": backend, "project_name": "me/proj"}
    # verl raises for wrong arguments before the call, Python in it; the words are Python's either way
    assert [text.rpartition(": ")[2] for text in seen["raised"][2:]] == ["division by zero", "'divide'"]
    assert traced == 3
    assert Counter(head["op"] for head in starts) == expected
    assert {head["id"] for head in starts} == {head["id"] for head in ends}
    assert Counter(head["status"] for head in ends if head["op"] == "Agent.execute") == {"error": traced + 2}
    roots = [head for head in starts if head["op"] == "Agent.run" and head["sample_index"] is not None]
    assert sorted((head["sample_index"], head["validate"]) for head in roots) == [(0, False), (1, True), (2, False)]
    texts = [head["payload"] for head in records if head["kind"] == "text"]
    assert {text.get("prompt_text") for text in texts} >= {"0 7", "1 7", "2 7"}
