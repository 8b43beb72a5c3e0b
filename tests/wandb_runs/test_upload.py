"""Metrics and traces in one project: real offline runs, the real Weave server, and calls that lead to their run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from verl_trace.demo.server_env import Server
from verl_trace.reader.filters import Filters
from verl_trace.schemas.errors import BadFilter
from verl_trace.uploader.choose import Choosing
from verl_trace.uploader.pipeline import upload
from verl_trace.uploader.wandb_options import WandbOptions
from verl_trace.wandb_runs.offline import read_offline_run

from .backend import Backend
from .conftest import ENTITY


def test_metrics_first_then_linked_calls(
    both: Server, backend: Backend, recorded: Any, make_run: Any, calls: Any, project: str
) -> None:
    """History and config arrive; each call names its run and its step, never -1; again, nothing is sent or synced."""
    run = recorded(project)
    folder = make_run("exp1", run_id="abc123", project=project)
    result = upload(run)
    rows = calls(project, wb_run_ids=[f"{ENTITY}/{project}/abc123"])
    again = upload(run)

    assert (result.sent, result.failed, result.runs[0].stopped) == (4, 0, "")
    assert [found["state"] for found in result.runs[0].wandb] == ["synced"]
    assert backend.losses("abc123") == [1, 0.5, 1 / 3, 0.25]
    assert backend.runs["abc123"]["config"]["lr"]["value"] == 0.5
    assert len(rows) == 4
    assert {row["wb_run_step"] for row in rows} == {3, None}
    assert {row["attributes"]["step"] for row in rows if row["wb_run_step"] is None} == {-1}
    assert (again.sent, [found["state"] for found in again.runs[0].wandb]) == (0, ["synced before"])
    assert read_offline_run(folder) is not None


@pytest.mark.parametrize("where", ["setp == 1", "not setp"])
def test_nothing_is_synced_for_a_mistyped_name(
    both: Server, backend: Backend, recorded: Any, make_run: Any, project: str, where: str
) -> None:
    """The names in --where are looked for before W&B's runs are sent, which cannot be taken back either."""
    run = recorded(project)
    folder = make_run("exp1", run_id="abc123", project=project)
    with pytest.raises(BadFilter, match="no trajectory has 'setp'"):
        upload(run, choosing=Choosing(Filters.of(where=where)))
    found = read_offline_run(folder)

    assert "abc123" not in backend.runs
    assert found is not None
    assert not found.synced


def test_calls_that_are_stored_without_a_link_are_named(
    both: Server, backend: Backend, recorded: Any, make_run: Any, calls: Any, project: str
) -> None:
    """A stored call is final: a later upload with the run counts and names what lacks the link."""
    run = recorded(project)
    upload(run)
    make_run("exp1", run_id="abc123", project=project)
    later = upload(run)
    report = later.runs[0]

    assert (later.sent, report.unlinked) == (0, 4)
    assert {call["id"] for call in report.unlinked_calls} == {call["id"] for call in calls(project)}
    (note,) = [note for note in report.notes if "without a link" in note]
    assert f"{ENTITY}/{project}/abc123" in note
    assert report.unlinked_calls[0]["id"] in note


def test_a_run_of_another_project_is_not_linked(
    both: Server, backend: Backend, recorded: Any, make_run: Any, calls: Any, project: str
) -> None:
    """Traces that go elsewhere: the run is synced to where it belongs; a sentence, a number, and no wrong link."""
    run = recorded("proj")
    make_run("exp1", run_id="abc123")
    result = upload(run, project=project)

    assert result.sent == 4
    assert backend.runs["abc123"]["project"] == "proj"
    assert any("links no run of another project" in note for note in result.runs[0].notes)
    assert result.runs[0].without_link == {"attempt0": 4}
    assert any("4 calls of attempt attempt0 without a link" in note for note in result.runs[0].notes)
    assert all(row["wb_run_id"] is None for row in calls(project))


def test_offline_runs_that_belong_to_others(
    both: Server, backend: Backend, recorded: Any, make_run: Any, project: str
) -> None:
    """They hold nothing back, and are not synced; how many calls have no link is said."""
    run = recorded(project, experiment="mine")
    make_run("other", run_id="abc123", project=project)
    result = upload(run)

    assert (result.sent, result.runs[0].without_link, backend.runs) == (4, {"attempt0": 4}, {})
    assert any("none of the 1 offline W&B runs fits" in note for note in result.runs[0].notes)


def test_only_the_metrics(both: Server, backend: Backend, recorded: Any, make_run: Any, tmp_path: Path) -> None:
    """`only` syncs and sends no call; offline runs may lie anywhere that is named; a dry run only says it."""
    run = recorded("proj")
    folder = make_run("exp1", run_id="abc123")
    elsewhere = tmp_path / "elsewhere"
    shutil.move(folder, elsewhere / folder.name)
    options = WandbOptions(only=True, folders=(elsewhere,))
    missed = upload(run, dry_run=True, wandb=WandbOptions(only=True))
    dry = upload(run, dry_run=True, wandb=options)
    nothing = dict(backend.runs)
    done = upload(run, wandb=options)

    assert any("no offline run was found" in note for note in missed.runs[0].notes)
    assert ([found["state"] for found in dry.runs[0].wandb], nothing) == (["would be synced"], {})
    assert (done.sent, [found["state"] for found in done.runs[0].wandb]) == (0, ["synced"])
    assert backend.runs["abc123"]["exit"] == 0
