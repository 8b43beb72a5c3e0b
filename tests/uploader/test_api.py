"""`from verl_trace.uploader import upload`: all that the command can, with a callback and a result."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from verl_trace.cli import app, main
from verl_trace.demo.server_env import Server
from verl_trace.schemas.errors import BadFilter, CannotStart, NotARun
from verl_trace.uploader import Choosing, Filters, RunReport, UploadResult, WandbOptions, upload
from verl_trace.uploader.estimate import keep_rate, last_rate
from verl_trace.uploader.forecast import Rate

# Options of the command under other names, or other forms, in Python.
RENAMED = {
    "run": "path", "no_wandb": "enabled", "wandb_only": "only", "wandb_dir": "folders", "every": "follow",
    "train": "validate",
}  # fmt: skip
# What only a terminal needs.
PRINTING = {"as_json", "help"}


@pytest.fixture
def run(wandb_login: Server, writer: Any, project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six steps of five trajectories, two calls each, with a reward; 60 calls."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = writer(tmp_path / "runs", project)
    for step in range(6):
        for sample in range(5):
            root = made.start("Loop.run", step=step, sample_index=sample, rollout_n=0, reward=sample / 4)
            made.end(made.start("Client.generate", parent=root), {"token_ids": [step] * 300, "logprobs": [-0.5] * 99})
            made.end(root, {"ok": True})
    made.close()
    return tmp_path / "runs"


def test_every_option_of_the_command_has_its_counterpart() -> None:
    """None is for the command line alone but those about printing."""
    takes: list[Callable[..., Any]] = [upload, Choosing, Filters.of, WandbOptions]
    names = {name for one in takes for name in inspect.signature(one).parameters}
    command = typer.main.get_command(app).commands["upload"]  # type: ignore[attr-defined]
    options = {str(option.name) for option in command.params} - PRINTING

    assert {option for option in options if RENAMED.get(option, option) not in names} == set()


@pytest.mark.parametrize(
    ("typed", "options"),
    [
        ("", {}),
        ("--step 0:4:2 --where reward>0.5", {"choosing": Choosing(Filters.of(step="0:4:2", where="reward>0.5"))}),
        ("--limit 7 --seed 3", {"choosing": Choosing(limit=7, seed=3)}),
        ("--budget 20kB --train", {"choosing": Choosing(Filters.of(validate=False), budget=20_000)}),
        ("--op generate --calls", {"choosing": Choosing(Filters.of(op="generate"), calls=True)}),
        ("--sample-rate 0.5 --seed 2", {"choosing": Choosing(sample_rate=0.5, seed=2)}),
        ("--drop-fields logprobs --max-field 1KB", {"drop_fields": ["logprobs"], "max_field": 1000}),
        (
            "--no-wandb --quota 10MB --project a/b",
            {"wandb": WandbOptions(enabled=False), "quota": 10**7, "project": "a/b"},
        ),
    ],
)
def test_the_command_is_the_function(
    run: Path, typed: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Word for word the same report, but for the time it took."""
    monkeypatch.setattr(sys, "argv", ["verl-trace", "upload", str(run), "--dry-run", "--json", *typed.split()])
    with pytest.raises(SystemExit):
        main()
    printed = json.loads(capsys.readouterr().out)
    result = json.loads(json.dumps(upload(run, dry_run=True, **options).as_json()))

    for report in (printed, result):
        report["seconds"] = report["estimate"]["seconds"] = 0
    assert printed == result
    assert 0 < result["estimate"]["calls"] <= 60


def broken(_: UploadResult) -> None:
    """A callback with a mistake in it."""
    raise ZeroDivisionError


def test_progress_and_result(run: Path, project: str, stored: Callable[[str], Any]) -> None:
    """The callback sees the counts grow; the result has them at the end, and a failure of it is not hidden."""
    seen: list[tuple[int, int]] = []
    result = upload(run, progress=lambda so_far: seen.append((so_far.recorded, so_far.sent)), workers=1)

    assert (result.sent, result.failed, result.stopped) == (60, 0, "")
    assert seen == sorted(seen)
    assert seen[-1] == (60, 60)
    assert len(stored(project)) == 60
    assert isinstance(result, UploadResult)
    assert [report.checked for report in result.runs] == [60]
    with pytest.raises(ZeroDivisionError):
        upload(run, progress=broken)


def test_follow_until_it_has_ended_or_is_stopped(run: Path) -> None:
    """`follow` as `--follow`; a `stop` that is set already looks at nothing."""
    stop = threading.Event()
    ended = upload(run, follow=0.05)
    stop.set()
    stopped = upload(run, follow=0.05, stop=stop)

    assert (ended.sent, stopped.recorded) == (60, 0)


def test_without_the_extra() -> None:
    """The import says which package is missing and what brings it."""
    program = "import sys; sys.modules['requests'] = None\nfrom verl_trace.uploader import upload"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "verl_trace.uploader.upload needs the package requests" in done.stderr
    assert "pip install 'verl-trace[upload]'" in done.stderr


def test_what_cannot_be_is_told_by_exceptions(run: Path, tmp_path: Path) -> None:
    """The errors that end the command with 2."""
    with pytest.raises(NotARun):
        upload(tmp_path / "nothing")
    with pytest.raises(CannotStart, match="no such check"):
        upload(run, check="thorough")
    with pytest.raises(BadFilter, match="no range"):
        Filters.of(step="a:b")


def test_time_at_the_rate_of_the_last_upload(run: Path, wandb_login: Server, tmp_path: Path) -> None:
    """Before the first upload only the least is known; a small one measures nothing; then it is the measured rate."""
    before = upload(run, dry_run=True, quota=100_000)
    upload(run)
    too_small = last_rate(tmp_path / "state" / "verl-trace" / "uploads")
    report = RunReport("p", "e", "t", recorded=2000, sent=1500, bytes=6_000_000)
    keep_rate(tmp_path / "other", "https://server", report, 100.0)
    after = upload(run, dry_run=True, state_dir=tmp_path / "other")

    assert before.estimate is not None
    assert after.estimate is not None
    assert (before.estimate.rate, too_small) == (None, None)
    assert before.estimate.seconds == before.seconds
    assert (before.estimate.trajectories, before.estimate.calls) == (30, 60)
    assert before.estimate.share == before.runs[0].stored_bytes / 100_000
    assert after.estimate.rate is not None
    assert after.estimate.rate == Rate("https://server", 1500, 6_000_000, 100.0, after.estimate.rate.at)
    # by calls, 60 of 1,500 in 100 s, it takes longer than by bytes
    assert after.estimate.seconds == pytest.approx(4.0)


@pytest.mark.parametrize("skip", ["stopped", "sent", "recorded"])
def test_an_upload_that_tells_nothing_of_the_rate_keeps_none(tmp_path: Path, skip: str) -> None:
    """Stopped, too little sent, or most of it was there already: the rate before stays."""
    known = RunReport("p", "e", "t", recorded=1000, sent=1000, bytes=1)
    other = RunReport("p", "e", "t", recorded=1000, sent=1000, bytes=1)
    setattr(other, skip, {"stopped": "gone", "sent": 100, "recorded": 5000}[skip])
    keep_rate(tmp_path, "https://one", known, 1.0)
    keep_rate(tmp_path, "https://two", other, 1.0)
    kept = last_rate(tmp_path)

    assert kept is not None
    assert kept.server == "https://one"
    (tmp_path / "last-rate.json").write_bytes(b'{"server":1}')
    assert last_rate(tmp_path) is None


def test_a_real_upload_measures_its_rate(wandb_login: Server, writer: Any, project: str, tmp_path: Path) -> None:
    """250 calls to the real server: its rate is kept, and the next dry run says about as long as it took."""
    made = writer(tmp_path / "runs", project)
    for number in range(250):
        made.call("Loop.run", {"n": number}, step=1)
    made.close()
    result = upload(made.folder, state_dir=tmp_path / "state")
    rate = last_rate(tmp_path / "state")
    planned = upload(made.folder, state_dir=tmp_path / "state", dry_run=True).estimate

    assert rate is not None
    assert (rate.server, rate.calls, rate.bytes) == (wandb_login.url, 250, result.runs[0].bytes)
    assert planned is not None
    assert rate.seconds * 0.99 <= planned.seconds
    assert 0 < rate.seconds <= result.seconds
