"""After an upload W&B's own client sorts and filters trajectories by their rewards and their groups' figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verl_trace import RolloutTraceConfig, record_score, rollout_trace_attr, rollout_trace_op
from verl_trace.demo.server_env import Server
from verl_trace.recorder import session as sessions
from verl_trace.recorder.context import current_attributes
from verl_trace.recorder.score import Join, write_scores
from verl_trace.uploader.pipeline import upload

# (sample, rollout) -> reward
REWARDS = {(sample, n): round(((sample * 7 + n * 3) % 10) / 10, 1) for sample in range(4) for n in range(4)}


@rollout_trace_op
def run(sample: int) -> int:
    return generate(sample)


@rollout_trace_op
def generate(sample: int) -> int:
    return sample


def record(folder: Path, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 trajectories in 4 groups, as the plugin records them."""
    monkeypatch.setenv("VERL_TRACE_DIR", str(folder))
    monkeypatch.setenv("VERL_TRACE_MIN_FREE", "0")
    RolloutTraceConfig.init(project, "exp1", "jsonl")
    session = sessions.current()
    assert session is not None
    for (sample, n), reward in REWARDS.items():
        with rollout_trace_attr(step=1, sample_index=sample, rollout_n=n):
            run(sample)
            trace = current_attributes.get()
            assert trace is not None
            assert trace.place is not None
            assert trace.place.root is not None
            scores = {"reward": reward, "reward_extra_info": {"acc": reward > 0.5, "format.ok": n}, "num_turns": n}
            join = Join(uid=f"group-{sample}", group_size=4)
            write_scores(
                session, scores, source="agent_loop", trace=trace, trace_id=trace.place.root.trace_id, join=join
            )
            record_score("quality", sample)
    RolloutTraceConfig.reset()


def test_the_official_client_sorts_and_filters(
    wandb_login: Server, project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By reward, an extra, a score of one's own and the rank in the group, next to step and sample."""
    record(tmp_path / "runs", f"demo/{project}", monkeypatch)
    result = upload(tmp_path / "runs")
    assert (result.sent, result.failed) == (32, 0)

    ordered = calls(wandb_login, project, sort_by=[{"field": "attributes.reward", "direction": "desc"}])
    rewards = [call["reward"] for call in ordered if call["reward"] is not None]
    assert rewards == sorted(REWARDS.values(), reverse=True)
    assert {
        (call["sample_index"], call["rollout_n"]): call["reward"] for call in ordered if "reward" in call
    } == REWARDS

    high = calls(wandb_login, project, query=above("attributes.reward", 0.65))
    assert places(high) == {place for place, reward in REWARDS.items() if reward > 0.65}
    best = calls(wandb_login, project, query=above("attributes.group_rank", 0, below=2))
    assert places(best) == {
        (sample, n) for (sample, n), r in REWARDS.items() if r == max(REWARDS[sample, other] for other in range(4))
    }
    assert places(calls(wandb_login, project, query=above("attributes.reward_extra_format_ok", 2))) == {
        (sample, 3) for sample in range(4)
    }
    assert places(calls(wandb_login, project, query=above("attributes.score_quality", 2))) == {(3, n) for n in range(4)}
    assert all(call["group_size"] == 4 for call in high)

    again = upload(tmp_path / "runs")
    assert (again.sent, again.failed) == (0, 0)


def above(field: str, low: float, below: float | None = None) -> dict[str, Any]:
    """A query for calls in whose numeric `field` is more than `low`, and less than `below`."""

    def value() -> dict[str, Any]:
        return {"$convert": {"input": {"$getField": field}, "to": "double"}}

    more: dict[str, Any] = {"$gt": [value(), {"$literal": low}]}
    less: dict[str, Any] = {"$not": [{"$gte": [value(), {"$literal": below}]}]}
    return {"$expr": more if below is None else {"$and": [more, less]}}


# In a process of its own: the client's pools stay open.
CLIENT = """
import json, sys
from weave.trace.weave_client import WeaveClient
from weave.trace_server_bindings.remote_http_trace_server import RemoteHTTPTraceServer

url, key, project, options = json.loads(sys.argv[1])
client = WeaveClient("demo", project, RemoteHTTPTraceServer(url, username="api", password=key), False)
found = client.get_calls(filter={"trace_roots_only": True}, **options)
print("ANSWER" + json.dumps([dict(call.attributes or {}) for call in found], default=dict))
"""


def calls(server: Server, project: str, **options: Any) -> list[dict[str, Any]]:
    """Attributes of the root calls, in the order that the official client gives."""
    command = [sys.executable, "-c", CLIENT, json.dumps([server.url, server.api_key, project, options])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.rpartition("ANSWER")[2])
    return found


def places(found: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """Sample and rollout of each."""
    return {(call["sample_index"], call["rollout_n"]) for call in found}


def test_rewards_as_feedback(
    proxy: Any, project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    """Each root call gets its reward as feedback, once, whatever answers are lost; the official client shows it."""
    record(tmp_path / "runs", f"demo/{project}", monkeypatch)
    plain = upload(tmp_path / "runs")
    lost = [fault(502, after=True)] * 2
    proxy.decide = lambda path, body: lost.pop() if lost and path == "/feedback/batch/create" else None
    first = upload(tmp_path / "runs", feedback=True)
    again = upload(tmp_path / "runs", feedback=True)

    assert (plain.runs[0].feedback, first.runs[0].feedback, again.runs[0].feedback) == (0, 16, 0)
    assert (first.sent, len(lost)) == (0, 1)
    given = feedback_of(project, proxy.upstream)
    assert sorted(given.values()) == sorted(REWARDS.values())
    assert len(given) == 16


FEEDBACK = """
import sys, json, weave
client = weave.init(sys.argv[1])
found = {f.weave_ref.rpartition("/")[2]: f.payload["output"] for f in client.get_feedback()}
roots = {c.id: c.attributes["reward"] for c in client.get_calls(filter={"trace_roots_only": True})}
assert found == roots, (found, roots)
print("RESULT" + json.dumps(found))
"""


def feedback_of(project: str, url: str) -> dict[str, float]:
    """Root call -> what the official client shows as its feedback; it must be the call's own reward."""
    command = [sys.executable, "-c", FEEDBACK, f"demo/{project}"]
    environment = {**os.environ, "WF_TRACE_SERVER_URL": url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout.rpartition("RESULT")[2])
    return found
