"""Uploading some of a run: chosen trajectories, fields left out, and what it will cost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from verl_trace.demo.server_env import Server
from verl_trace.reader.filters import Filters, Numbers
from verl_trace.schemas.errors import BadFilter
from verl_trace.uploader.choose import Choosing
from verl_trace.uploader.lessen import LEFT_OUT
from verl_trace.uploader.pipeline import upload
from verl_trace.uploader.result import ALREADY_STORED, NOT_CHOSEN, STORED_OTHERWISE

ERROR = {"type": "ValueError", "message": "no", "traceback": []}


@pytest.fixture
def run(wandb_login: Server, writer: Any, project: str, tmp_path: Path) -> Path:
    """Ten steps of two groups of three rollouts; one call fails in step 7; ids, log-probs, text of any alphabet."""
    recording, chance = writer(tmp_path / "runs", project), random.Random(1)
    for step in range(10):
        for sample in range(2):
            for rollout in range(3):
                fields = {"step": step, "sample_index": sample, "rollout_n": rollout}
                root = recording.start("Loop.run", inputs={"text": "Frage № 漢字 " * 9}, **fields)
                ids = {"prompt_ids": chance.choices(range(150_000), k=400), "logprobs": [-chance.random()] * 60}
                llm = recording.start("Client.generate", parent=root, inputs=ids)
                recording.end(llm, {"token_ids": chance.choices(range(150_000), k=60), "logprobs": [-0.5] * 60})
                failed = (step, sample, rollout) == (7, 1, 2)
                recording.end(recording.start("Calc.execute", parent=root), exception=ERROR if failed else None)
                recording.end(root, {"ok": True})
    recording.close()
    return tmp_path / "runs"


def steps(rows: dict[str, Any]) -> Counter[int]:
    return Counter(row["attributes"]["step"] for row in rows.values())


def test_filters_now_and_the_rest_later(run: Path, project: str, stored: Callable[[str], Any]) -> None:
    """What is chosen arrives whole; the rest is told as not chosen and follows; nothing is sent twice."""
    first = upload(run, choosing=Choosing(Filters(steps=Numbers("0:9:5", "--step"))))

    assert steps(stored(project)) == {0: 18, 5: 18}
    assert (first.sent, first.skipped[NOT_CHOSEN], first.recorded) == (36, 144, 180)

    rest = upload(run)
    assert (rest.sent, rest.skipped[ALREADY_STORED]) == (144, 36)
    assert len(stored(project)) == 180


def test_single_calls(run: Path, project: str, stored: Callable[[str], Any]) -> None:
    """With `calls` only those that are meant; the others of their trajectories follow later."""
    filters = Filters(status="error")
    whole = upload(run, choosing=Choosing(filters), dry_run=True)
    one = upload(run, choosing=Choosing(filters, calls=True))
    rows = stored(project)
    rest = upload(run)

    assert (whole.runs[0].to_send, one.sent, one.skipped[NOT_CHOSEN]) == (3, 1, 179)
    assert [row["op_name"].split("/")[-1].split(":")[0] for row in rows.values()] == ["Calc.execute"]
    assert (rest.sent, rest.skipped[ALREADY_STORED]) == (179, 1)


@pytest.mark.parametrize("where", ["setp == 1", "not setp and step == 1", "step == 1 or setp == 1"])
def test_a_name_that_no_trajectory_has(
    run: Path, proxy: Any, project: str, stored: Callable[[str], Any], where: str
) -> None:
    """An error before anything is sent, also where the expression holds for some."""
    with pytest.raises(BadFilter, match="no trajectory has 'setp'"):
        upload(run, choosing=Choosing(Filters.of(where=where)))

    assert {path for path, _ in proxy.requests} == {"/calls/query_stats"}, "more than the question for access"
    assert stored(project) == {}


def test_a_name_that_only_another_run_has(run: Path, writer: Any, project: str, stored: Callable[[str], Any]) -> None:
    """Of several runs, one that has it is enough; while one is written, the name may still come."""
    where = Choosing(Filters.of(where="not temperature and step == 1"))
    live = writer(run, project, "exp2")
    live.call("A.run")
    told = upload(run, dry_run=True, choosing=where).runs[-1]
    live.call("A.run", temperature=0.5)
    live.close()
    sent = upload(run, choosing=where)

    assert [note for note in told.notes if "no trajectory has 'temperature' so far" in note]
    assert len(stored(project)) == sent.sent == 18
    assert not [note for report in sent.runs for note in report.notes if "no trajectory has" in note]


def test_a_share_and_a_limit_are_whole_groups(run: Path, project: str, stored: Callable[[str], Any]) -> None:
    """A share of the groups, and so many trajectories at most; the same again sends nothing new."""
    share = Choosing(sample_rate=0.3, seed=4)
    sent = upload(run, choosing=share).sent
    groups = Counter((row["attributes"]["step"], row["attributes"]["sample_index"]) for row in stored(project).values())
    again = upload(run, choosing=share)
    few = upload(run, choosing=Choosing(limit=7), dry_run=True)

    assert set(groups.values()) == {9}
    assert 0 < sent == 9 * len(groups) < 180
    assert again.sent == 0
    assert few.runs[0].to_send == 2 * 9
    assert "54 of 60 trajectories" in few.runs[0].notes[0]


def test_what_a_dry_run_says_is_what_the_server_counts(run: Path, project: str, wandb_login: Server) -> None:
    """The estimate of the bytes, and a budget, in the server's own count: within 5 %."""
    every = upload(run, dry_run=True).runs[0].stored_bytes
    budget = every * 6 // 10
    planned = upload(run, dry_run=True, choosing=Choosing(budget=budget)).runs[0].stored_bytes
    sent = upload(run, choosing=Choosing(budget=budget))
    some = counted(wandb_login, project)
    upload(run)
    whole = counted(wandb_login, project)

    assert abs(planned / some - 1) < 0.05
    assert some <= budget * 1.05
    assert some > budget * 0.7
    assert abs(every / whole - 1) < 0.05
    assert "10 of 10 steps" in sent.runs[0].notes[0]
    assert "1 of 1 trajectory that failed" in sent.runs[0].notes[0]


def counted(server: Server, project: str) -> int:
    """What the server says that the project takes."""
    body = {"project_id": f"demo/{project}", "include_total_storage_size": True}
    answer = requests.post(f"{server.url}/calls/query_stats", json=body, auth=("api", server.api_key), timeout=30)
    answer.raise_for_status()
    return int(answer.json()["total_storage_size_bytes"])


def test_fields_that_are_left_out(run: Path, project: str, stored: Callable[[str], Any]) -> None:
    """Marks stand in their place and on the call; sending all later is told as stored otherwise, changing nothing."""
    less = upload(run, drop_fields="logprobs", max_field=2000)
    rows = stored(project)
    later = upload(run)

    llm = next(row for row in rows.values() if "generate" in row["op_name"])
    assert llm["output"]["logprobs"] == {"_omitted": LEFT_OUT, "_type": "list", "items": 60, "bytes": 301}
    assert llm["inputs"]["prompt_ids"]["items"] == 400
    assert len(llm["output"]["token_ids"]) == 60
    assert llm["attributes"]["verl_trace"]["fields_left_out"] == 3
    assert (less.sent, less.runs[0].fields_left_out) == (180, 180)
    assert (later.sent, later.skipped[STORED_OTHERWISE], later.skipped[ALREADY_STORED]) == (0, 60, 120)
    assert stored(project) == rows
