"""What a Weave project holds after an upload, read back with W&B's own client."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from verl_trace.demo.server_env import Server
from verl_trace.uploader.ops import OBJECT_DIGEST
from verl_trace.uploader.pipeline import upload
from verl_trace.uploader.result import ALREADY_STORED, STILL_OPEN
from verl_trace.uploader.target import resolve

ERROR = {"type": "ValueError", "message": "no such tool", "traceback": []}
# The tree of `record_tree`, as verl's live backend traces it with W&B's client.
LIVE_TREE = """
root = client.create_call("ToolAgentLoop.run", {"prompt": [1, 2]}, attributes={"step": 3})
llm = client.create_call("AsyncLLMServerManager.generate", {"ids": [1]}, parent=root, attributes={"step": 3})
client.finish_call(llm, output={"token_ids": [5, 6]})
tool = client.create_call("ToolAgentLoop._call_tool", {"name": "calc"}, parent=root, attributes={"step": 3})
inner = client.create_call("CalcTool.execute", {}, parent=tool, attributes={"step": 3})
client.finish_call(inner, exception=ValueError("no such tool"))
client.finish_call(tool, output=None)
client.finish_call(root, output={"reward": 1.5})
"""


def record_tree(writer: Any) -> dict[str, str]:
    """A root, a generation, a tool call with a failing call below; returns the end times by op."""
    root = writer.start("ToolAgentLoop.run", inputs={"prompt": [1, 2]}, step=3)
    llm = writer.start("AsyncLLMServerManager.generate", parent=root, inputs={"ids": [1]})
    ended = {"AsyncLLMServerManager.generate": writer.end(llm, {"token_ids": [5, 6]})}
    tool = writer.start("ToolAgentLoop._call_tool", parent=root, inputs={"name": "calc"})
    inner = writer.start("CalcTool.execute", parent=tool)
    ended["CalcTool.execute"] = writer.end(inner, exception=ERROR)
    ended["ToolAgentLoop._call_tool"] = writer.end(tool)
    ended["ToolAgentLoop.run"] = writer.end(root, {"reward": 1.5})
    return ended


def test_tree_equals_a_live_trace(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, official_client: Callable[..., Any]
) -> None:
    """The same calls, traced live by W&B's client and replayed by us, differ in ids, times and our mark only."""
    recording = writer(tmp_path / "runs", project)
    record_tree(recording)
    recording.close()

    result = upload(tmp_path / "runs")
    replayed = by_op(official_client(project))
    live = by_op(official_client(f"{project}-live", LIVE_TREE))

    assert (result.recorded, result.sent, result.failed) == (4, 4, 0)
    assert set(replayed) == set(live)
    for op, call in replayed.items():
        twin = live[op]
        assert call["op_name"] == twin["op_name"].replace(f"{project}-live", project)
        assert (call["inputs"], call["output"]) == (twin["inputs"], twin["output"])
        assert call["summary"]["status_counts"] == twin["summary"]["status_counts"]
        assert call["summary"]["weave"]["status"] == twin["summary"]["weave"]["status"]
        assert parent_op(call, replayed) == parent_op(twin, live)
        assert (call["exception"] is None) == (twin["exception"] is None)
        assert call["attributes"]["step"] == twin["attributes"]["step"] == 3


def test_recorded_ids_times_and_attributes_arrive(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """Ids, parents and times are the recorded ones to the microsecond; the root's id is the trace id."""
    recording = writer(tmp_path, project)
    root = recording.start("A.run", inputs={"x": [1, None, "ü"]}, step=1, sample_index=2, rollout_n=0, validate=False)
    child = recording.start("B.run", parent=root)
    child_end = recording.end(child, exception=ERROR)
    root_end = recording.end(root, "done")
    recording.close()

    upload(tmp_path)

    rows = stored(project)
    first, second = rows[root["id"]], rows[child["id"]]
    assert (first["started_at"], first["ended_at"]) == (root["started_at"], root_end)
    assert (second["started_at"], second["ended_at"]) == (child["started_at"], child_end)
    assert first["trace_id"] == second["trace_id"] == second["parent_id"] == root["id"]
    assert first["parent_id"] is None
    assert (first["inputs"], first["output"]) == ({"x": [1, None, "ü"]}, "done")
    assert json.loads(second["exception"]) == ERROR
    origin = {"attempt": "5c1d0a77be02", "host": "node3", "pid": 4711, "version": "0.1.0"}
    assert first["attributes"] == {**root["attributes"], "verl_trace": origin}
    assert first["op_name"] == f"weave:///demo/{project}/op/A.run:{OBJECT_DIGEST}"


def test_second_upload_sends_no_call(proxy: Any, writer: Any, project: str, tmp_path: Path) -> None:
    """A repeated upload asks for ids and publishes nothing twice; every call counts as already stored."""
    recording = writer(tmp_path, project)
    record_tree(recording)
    upload(tmp_path)
    proxy.requests.clear()
    recording.call("late")
    recording.close()

    again = upload(tmp_path)
    third = upload(tmp_path)

    assert (again.recorded, again.sent, dict(again.skipped)) == (5, 1, {ALREADY_STORED: 4})
    assert (third.recorded, third.sent, dict(third.skipped)) == (5, 0, {ALREADY_STORED: 5})
    assert len(proxy.sent("/calls/complete")) == 1


def test_a_copy_uploads_from_anywhere(proxy: Any, writer: Any, project: str, tmp_path: Path) -> None:
    """A run moved to another place under another name has the same ids: what is stored is not sent again."""
    recording = writer(tmp_path / "runs", project)
    record_tree(recording)
    recording.close()
    upload(tmp_path / "runs")
    (run,) = (tmp_path / "runs").iterdir()
    copy = tmp_path / "elsewhere" / "of another user"
    shutil.copytree(run, copy)
    shutil.rmtree(tmp_path / "runs")
    proxy.requests.clear()

    again = upload(copy)

    assert (again.recorded, again.sent, dict(again.skipped)) == (4, 0, {ALREADY_STORED: 4})
    assert not proxy.sent("/calls/complete")


def test_sample_indexes_of_mixed_types(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """An int, a UUID and a negative step in one run arrive as they are."""
    recording = writer(tmp_path, project)
    wanted = {}
    for index in (7, "0b7cc0e2-8a4c-4c35-9d68-6c3c5a2b11b0", "7"):
        root = recording.start("A.run", step=-1, sample_index=index)
        recording.end(root)
        wanted[root["id"]] = index
    recording.close()

    upload(tmp_path)

    rows = stored(project)
    assert {key: row["attributes"]["sample_index"] for key, row in rows.items()} == wanted
    assert {row["attributes"]["step"] for row in rows.values()} == {-1}


def test_sample_indexes_filter_and_sort(
    wandb_login: Server, weave_server: Server, writer: Any, project: str, tmp_path: Path
) -> None:
    """A numpy int is a number on the line: ints sort as numbers, and each type is found by its own value."""
    recording = writer(tmp_path, project)
    for index in (10, 9, 100, "uuid-b", "uuid-a"):
        recording.call("A.run", step=index if isinstance(index, int) else -1, sample_index=index)
    recording.close()
    upload(tmp_path)

    def query(**body: Any) -> list[Any]:
        request = {"project_id": f"demo/{project}", **body}
        answer = requests.post(
            f"{weave_server.url}/calls/stream_query", json=request, auth=("api", weave_server.api_key), timeout=30
        )
        answer.raise_for_status()
        return [json.loads(row)["attributes"]["sample_index"] for row in answer.content.split(b"\n") if row]

    def where(value: Any, name: str = "sample_index") -> dict[str, Any]:
        convert = {"$convert": {"input": {"$getField": f"attributes.{name}"}, "to": "string"}}
        field = {"$getField": f"attributes.{name}"} if isinstance(value, str) else convert
        return {"$expr": {"$eq": [field, {"$literal": str(value)}]}}

    by_step = [{"field": "attributes.step", "direction": "desc"}]
    assert query(sort_by=by_step)[:3] == [100, 10, 9]
    assert query(query=where("uuid-a")) == ["uuid-a"]
    assert query(query=where(9)) == [9]
    assert sorted(query(query=where(-1, "step"))) == ["uuid-a", "uuid-b"]


def test_calls_of_a_killed_process(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """What a killed worker was doing arrives as ended with an error, at the last moment known of the worker."""
    recording = writer(tmp_path, project)
    root = recording.start("A.run", inputs={"n": 1})
    recording.end(recording.start("B.run", parent=root), 1)
    last = recording.call("C.run", parent=root)
    recording.age(3600)

    result = upload(tmp_path)

    row = stored(project)[root["id"]]
    assert json.loads(row["exception"])["type"] == "Interrupted"
    assert row["ended_at"] > last["started_at"]
    assert row["attributes"]["verl_trace"]["interrupted"] is True
    assert row["summary"]["status_counts"] == {"success": 2, "error": 1}
    assert (result.sent, result.runs[0].interrupted) == (3, 1)


@pytest.mark.parametrize(("closed", "words"), [(True, "closed its recording"), (False, "ended before this call did")])
def test_why_a_call_has_no_end(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Any, closed: bool, words: str
) -> None:
    """A process that closed its recording was not killed: the record was not written, say at VERL_TRACE_MAX_BYTES."""
    recording = writer(tmp_path, project)
    root = recording.start("A.run")
    recording.close() if closed else recording.age(3600)
    upload(tmp_path)

    assert words in json.loads(stored(project)[root["id"]]["exception"])["message"]


def test_open_calls_of_a_live_process_wait(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """A trajectory that may still go on is not sent, with none of its calls; later it arrives whole."""
    recording = writer(tmp_path, project)
    done = recording.call("A.run")
    root = recording.start("A.run")
    recording.call("B.run", parent=root)

    first = upload(tmp_path)
    seen = set(stored(project))
    recording.end(root, 1)
    recording.close()
    second = upload(tmp_path)

    assert (first.recorded, first.sent, dict(first.skipped)) == (3, 1, {STILL_OPEN: 2})
    assert seen == {done["id"]}
    assert (second.sent, dict(second.skipped)) == (2, {ALREADY_STORED: 1})


def test_orphans_are_kept_and_marked(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """A call whose parent is not in the files keeps its parent id; one whose start is lost arrives without inputs."""
    recording = writer(tmp_path, project)
    root = recording.start("A.run", on_disk=False)
    child = recording.call("B.run", parent=root)
    startless = recording.start("C.run", parent=child, on_disk=False)
    recording.end(startless, 5)
    recording.close()

    result = upload(tmp_path)

    rows = stored(project)
    assert set(rows) == {child["id"], startless["id"]}
    assert rows[child["id"]]["parent_id"] == root["id"]
    assert rows[child["id"]]["attributes"]["verl_trace"]["orphan"] is True
    assert rows[startless["id"]]["attributes"]["verl_trace"]["inputs_lost"] is True
    assert (rows[startless["id"]]["inputs"], rows[startless["id"]]["output"]) == ({}, 5)
    assert result.runs[0].orphans == 1


def test_decoded_text_is_merged(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """A text record's keys become keys of the output, and the ids stay."""
    recording = writer(tmp_path, project)
    head = recording.start("A.run")
    recording.end(head, {"prompt_ids": [1]}, text={"prompt_text": "one"})
    recording.close()

    upload(tmp_path)

    assert stored(project)[head["id"]]["output"] == {"prompt_ids": [1], "prompt_text": "one"}


def test_text_that_looks_like_a_reference(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """Strings that Weave would resolve or refuse arrive as text with a mark; others like them are untouched."""
    text = "weave:///me/p/object/x:y"
    recording = writer(tmp_path, project)
    head = recording.start("A.run", inputs={"a": ["weave:///bad", {"b": text}], "quoted": f'he said "{text}"'})
    recording.end(head, "weave-trace-internal:///bad")
    recording.close()

    result = upload(tmp_path)

    row = stored(project)[head["id"]]
    assert row["inputs"] == {"a": ["text:weave:///bad", {"b": f"text:{text}"}], "quoted": f'he said "{text}"'}
    assert row["output"] == "text:weave-trace-internal:///bad"
    assert (result.sent, result.runs[0].marked_texts) == (1, 3)


def test_call_that_the_server_refuses(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """A damaged call is reported with the server's words; all others arrive, its own children included."""
    recording = writer(tmp_path, project)
    for number in range(30):
        root = recording.start("A.run")
        recording.call("B.run", parent=root)
        if number == 11:
            bad = root
            outcome = {"duration": 0.1, "text": False, "status": "success", "exception": None, "output": None}
            recording.write({"kind": "end", **root, "ended_at": "yesterday", **outcome})
        else:
            recording.end(root)
    recording.close()

    result = upload(tmp_path)

    assert (result.recorded, result.sent, result.failed) == (60, 59, 1)
    assert len(stored(project)) == 59
    [failure] = result.runs[0].failures
    assert (failure.id, failure.op, failure.reason[:8]) == (bad["id"], "A.run", "HTTP 422")


def test_inputs_that_are_no_object(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """Weave takes objects only: other inputs are put into one."""
    recording = writer(tmp_path, project)
    head = recording.call("A.run", inputs=[1, 2])
    recording.close()

    upload(tmp_path)

    assert stored(project)[head["id"]]["inputs"] == {"value": [1, 2]}


def test_project_name_beyond_ascii(proxy: Any, writer: Any, project: str, tmp_path: Path) -> None:
    """The server's own id of this project would hold a `/`, were it not encoded for references."""
    recording = writer(tmp_path, f"é-{project}")
    recording.call("A.run")
    recording.close()

    assert upload(recording.folder).sent == 1


def test_two_projects_in_one_folder(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """Runs of two projects that share an experiment's folder go to their own projects; `project` sends all to one."""
    heads = {}
    for name in (project, f"{project}-b"):
        recording = writer(tmp_path, f"demo/{name}")
        heads[name] = recording.call("A.run")
        recording.close()

    result = upload(tmp_path / "exp1")

    assert [report.target for report in result.runs] == [f"demo/{name}" for name in heads]
    assert {name: set(stored(name)) for name in heads} == {name: {head["id"]} for name, head in heads.items()}


def test_project_that_the_server_renames(
    wandb_login: Server, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """The server decides how a project is called; the calls go where it says."""
    recording = writer(tmp_path, f"{project}:x")
    recording.call("A.run")
    recording.close()

    result = upload(tmp_path)

    assert result.runs[0].target == f"demo/{project}-x"
    assert len(stored(f"{project}-x")) == 1
    found = resolve(f"{project}:x", make=False)
    assert (found.project, found.exists) == (f"{project}-x", True)


def test_large_trajectory_is_spread(
    proxy: Any, writer: Any, project: str, tmp_path: Path, stored: Callable[[str], Any]
) -> None:
    """One trajectory of more than a request's calls and bytes arrives whole, in requests of bounded size."""
    recording = writer(tmp_path, project)
    root = recording.start("A.run", inputs={"big": "x" * (5 << 20)})
    for _ in range(1100):
        recording.call("B.run", parent=root, inputs={"big": "y" * 10_000})
    recording.end(root, {"big": "z" * (5 << 20)})
    recording.close()

    result = upload(tmp_path)

    sizes = [len(body) for body in proxy.sent("/calls/complete")]
    assert (result.sent, result.failed) == (1101, 0)
    # the root alone is larger than a request; everything else keeps to the limit
    assert sorted(sizes)[-2] <= 8 << 20
    assert max(body.count(b'"op_name"') for body in proxy.sent("/calls/complete")) <= 500
    assert stored(project)[root["id"]]["summary"]["status_counts"] == {"success": 1101, "error": 0}


def test_server_that_dies_half_way(proxy: Any, writer: Any, project: str, tmp_path: Path, fault: Any) -> None:
    """The upload ends by itself, and its numbers add up: what arrived is sent, the rest failed and says why."""
    recording = writer(tmp_path, project)
    for _ in range(2000):
        recording.call("A.run")
    recording.close()
    good: list[bytes] = []

    def decide(path: str, body: bytes) -> Any:
        if path.endswith("/complete") and not good:
            good.append(body)
            return None
        return fault(503) if good else None

    proxy.decide = decide

    result = upload(tmp_path, max_wait=0.3)

    assert (result.recorded, result.sent, result.failed) == (2000, 500, 1500)
    reason = result.runs[0].failures[0].reason
    assert reason.startswith("not sent: ")
    assert "the server did not recover within" in reason
    proxy.decide = lambda path, body: None
    rest = upload(tmp_path)
    assert (rest.sent, dict(rest.skipped), rest.failed) == (1500, {ALREADY_STORED: 500}, 0)


def test_dry_run_uses_no_network(
    writer: Any, project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    """`dry_run` counts calls, trajectories and bytes with no key and no host."""
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port}")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    recording = writer(tmp_path, project)
    record_tree(recording)
    recording.close()

    result = upload(tmp_path, dry_run=True)

    report = result.runs[0]
    assert (report.recorded, report.to_send, report.trajectories, report.sent) == (4, 4, 1, 0)
    assert 1000 < report.bytes < 10_000


def by_op(calls: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Calls by the name of their op, each of which occurs once."""
    found = {call["op_name"].rpartition("/op/")[2].partition(":")[0]: call for call in calls}
    assert len(found) == len(calls)
    return found


def parent_op(call: dict[str, Any], calls: dict[str, dict[str, Any]]) -> str | None:
    """The op of a call's parent."""
    return next((op for op, other in calls.items() if other["id"] == call["parent_id"]), None)
