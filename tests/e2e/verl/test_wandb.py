"""Metrics that verl's own `Tracking` wrote to offline W&B runs, and rollouts recorded beside them: one project."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from verl_trace.demo.server_env import Server, start_server

pytestmark = pytest.mark.e2e

HERE = Path(__file__).resolve().parent
STEPS, SAMPLES, N = 2, 2, 2
# A step that a start of before did not reach, however quick it was.
LATE = 1_000_000
# The official client in a process of its own: what it finds by run, by run and step, and in the order of rewards.
CLIENT = """
import json, sys, weave
client = weave.init(sys.argv[1])
def found(step=None, **query):
    if step is not None:
        query["query"] = {"$expr": {"$eq": [{"$getField": "wb_run_step"}, {"$literal": step}]}}
    return [
        [call.id, call.wb_run_id, call.wb_run_step, call.attributes.get("step"), call.attributes.get("reward")]
        for call in client.get_calls(**query)
    ]
mine = {"wb_run_ids": [sys.argv[2]]}
best = [{"field": "attributes.reward", "direction": "desc"}]
answer = {"run": found(filter=mine), "other": found(filter={"wb_run_ids": [sys.argv[2] + "x"]})}
answer["step"] = found(step=2, filter=mine)
answer["best"] = found(filter={**mine, "trace_roots_only": True}, sort_by=best)
print("ANSWER" + json.dumps(answer))
"""


class Uploaded(NamedTuple):
    """Of `verl-trace upload`."""

    code: int
    report: dict[str, Any]
    text: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """W&B's trace server on loopback."""
    with start_server(tmp_path_factory.mktemp("server") / "weave.db", entity="me") as running:
        yield running


@pytest.fixture
def upload(
    server: Server, wandb_backend: Any, verl_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> Callable[..., Uploaded]:
    """`upload(folder, option, …)`: metrics go to the back end, traces to the trace server."""

    def run(folder: Path, *options: str) -> Uploaded:
        program = "import sys; from verl_trace.cli import main; sys.exit(main())"
        urls = {"WANDB_BASE_URL": wandb_backend.url, "XDG_STATE_HOME": str(tmp_path / "state")}
        environment = verl_environment(**{**server.client_environment(), **urls})
        command = [sys.executable, "-c", program, "upload", str(folder), "--json", *options]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
        )
        text = done.stdout + done.stderr
        return Uploaded(done.returncode, json.loads(done.stdout) if done.stdout.startswith("{") else {}, text)

    return run


@pytest.fixture
def official(
    server: Server, verl_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> Callable[[str, str], dict[str, list[list[Any]]]]:
    """`official(project, run)`: what W&B's own client finds, [id, run, run step, step, reward] of each call."""

    def ask(project: str, run: str) -> dict[str, list[list[Any]]]:
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, f"me/{project}", f"me/{project}/{run}"],
            env=verl_environment(**server.client_environment(), HTTPS_PROXY="http://127.0.0.1:9"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        answer: dict[str, list[list[Any]]] = json.loads(done.stdout.rpartition("ANSWER")[2])
        return answer

    return ask


def test_a_training_of_verl(
    drive: Callable[..., Any],
    upload: Callable[..., Uploaded],
    official: Callable[..., Any],
    wandb_backend: Any,
    tmp_path: Path,
) -> None:
    """Agent loops and reward workers of a real verl, `trainer.logger=['console','wandb']`, WANDB_MODE=offline.

    Nobody says where the run is or what its id is: the plugin has noted it. History, config and calls arrive.
    """
    logger = ["console", "wandb"]
    scene = {"worker": "tq", "backend": "jsonl", "experiment": "exp", "project": "real", "logger": logger}
    sizes = {"steps": STEPS, "samples": SAMPLES, "n": N}
    variables = {"WANDB_MODE": "offline"}
    drive(
        tmp_path, {**variables, "VERL_TRACE_EXTRA": "1"}, "reward_driver.py", scenes=[{**scene, "validate": True}],
        variables=variables, **sizes,
    )  # fmt: skip
    result = upload(tmp_path / "runs" / "exp", "--settle", "0", "--check", "deep")
    again = upload(tmp_path / "runs" / "exp", "--settle", "0")

    assert (result.code, again.code) == (0, 0), result.text + again.text
    (report,) = result.report["runs"]
    (found,) = report["wandb"]
    (run_id,) = wandb_backend.runs
    assert (found["run_id"], found["state"]) == (run_id, "synced")
    assert [one["state"] for one in again.report["runs"][0]["wandb"]] == ["synced before"]
    arrived = wandb_backend.runs[run_id]
    assert (arrived["project"], arrived["display_name"]) == ("real", "exp")
    rows = [row for row in arrived["history"].values() if "critic/rewards/mean" in row]
    assert [(row["_step"], row["training/global_step"]) for row in rows] == [(1, 1), (2, 2)]
    config = arrived["config"]
    assert config["actor_rollout_ref"]["value"]["rollout"]["trace"]["backend"] == "jsonl"
    assert config["trainer"]["value"]["experiment_name"] == "exp"

    answer = official("real", run_id)
    assert len(answer["run"]) == report["sent"] == report["recorded"] > 0
    assert answer["other"] == []
    assert {(run, run_step == step) for _, run, run_step, step, _ in answer["run"]} == {(f"me/real/{run_id}", True)}
    assert {step for *_, step, _ in answer["step"]} == {2}
    assert len(answer["step"]) == sum(step == 2 for *_, step, _ in answer["run"])
    rewards = [reward for *_, reward in answer["best"]]
    assert len(rewards) == STEPS * SAMPLES * (N + 1)
    assert rewards == sorted(rewards, reverse=True)
    assert len(set(rewards)) > len(rewards) // 2
    mean = sum(row["critic/rewards/mean"] for row in rows) / len(rows)
    assert 0 < mean < 1


@pytest.fixture
def train(verl_environment: Callable[..., dict[str, str]], tmp_path: Path) -> Callable[..., None]:
    """`train(project, first, steps, …)`: one start of `tracked.py`; `killed`: SIGKILL to all its processes then."""

    def start(project: str, first: int, steps: int, *, killed: bool = False, **variables: str) -> None:
        environment = verl_environment(
            WANDB_MODE="offline", WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL="0.2", WANDB_SILENT="true", **variables
        )
        words = [project, "exp", str(first), str(steps), "goes-on" if killed else "finish"]
        process = subprocess.Popen(
            [sys.executable, str(HERE / "tracked.py"), *words],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        if killed:
            while process.stdout.readline().strip() != f"did {first + steps}":
                assert process.poll() is None
            # what was logged is on the disk soon afterwards, while it logs on
            time.sleep(1)
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=300)
        assert process.returncode == (-signal.SIGKILL if killed else 0)

    return start


def test_a_job_that_was_killed_and_requeued(
    train: Callable[..., None],
    upload: Callable[..., Uploaded],
    official: Callable[..., Any],
    wandb_backend: Any,
    tmp_path: Path,
) -> None:
    """Three starts with one WANDB_RUN_ID, the second killed while it writes: one run, each row once, all calls linked.

    And three starts without, each with a run of its own: each call leads to the run of its attempt.
    """
    ours = {"WANDB_RUN_ID": "ours", "WANDB_RESUME": "allow"}
    train("requeued", 1, 3, **ours)
    train("requeued", 4, 3, killed=True, **ours)
    train("requeued", LATE, 3, **ours)
    result = upload(tmp_path / "runs" / "exp", "--settle", "0")
    again = upload(tmp_path / "runs" / "exp", "--settle", "0")

    assert (result.code, again.code) == (0, 0), result.text + again.text
    states = [found["state"] for found in result.report["runs"][0]["wandb"]]
    assert states == ["synced"] * 3, result.text
    assert "it was killed" in result.text
    assert set(wandb_backend.runs) == {"ours"}
    steps = [row["step"] for _, row in sorted(wandb_backend.runs["ours"]["history"].items()) if "step" in row]
    # the second start got further than it was seen to
    assert steps == [*range(1, len(steps) - 2), LATE, LATE + 1, LATE + 2]
    assert len(steps) > 3 + 3 + 3
    answer = official("requeued", "ours")
    assert len(answer["run"]) == result.report["recorded"]
    assert {run_step == step for _, _, run_step, step, _ in answer["run"]} == {True}
    assert max(reward for *_, reward in answer["best"]) == answer["best"][0][-1] == LATE + 2.1


def test_attempts_with_runs_of_their_own_and_one_that_is_refused(
    train: Callable[..., None],
    upload: Callable[..., Uploaded],
    stored: Callable[[Server, str], list[dict[str, Any]]],
    server: Server,
    wandb_backend: Any,
    tmp_path: Path,
) -> None:
    """The trainer's notes match them; the refused one holds back its own calls, with a line and an exit code."""
    for start in range(3):
        train("restarted", 10 * start + 1, 2)
    ids = [folder.name.rpartition("-")[2] for folder in sorted((tmp_path / "wandb").glob("offline-run-*"))]
    assert len(set(ids)) == 3
    wandb_backend.mode, wandb_backend.refused = "graphql-error", {ids[1]}
    refused = upload(tmp_path / "runs" / "exp", "--settle", "0")
    before = steps_by_run(stored(server, "me/restarted"))
    wandb_backend.mode = "ok"
    later = upload(tmp_path / "runs" / "exp", "--settle", "0")
    after = steps_by_run(stored(server, "me/restarted"))

    assert (refused.code, later.code) == (1, 0), refused.text + later.text
    assert f"W&B run {ids[1]} was not synced: wandb sync: " in refused.text
    assert before == {ids[0]: {1, 2}, ids[2]: {21, 22}}
    assert after == {**before, ids[1]: {11, 12}}


def steps_by_run(calls: list[dict[str, Any]]) -> dict[str, set[int]]:
    """W&B run -> the training steps of the calls that lead to it."""
    out: dict[str, set[int]] = {}
    for call in calls:
        out.setdefault(call["wb_run_id"].rpartition("/")[2], set()).add(call["wb_run_step"])
    return out
