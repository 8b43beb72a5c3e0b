"""When a follower looks again, and when it ends: the loop alone, with looks that do what a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_trace.schemas.errors import BadFilter, NoAnswer
from verl_trace.uploader.follow import Seen, follow
from verl_trace.uploader.replay import Options
from verl_trace.uploader.result import RunReport, UploadResult
from verl_trace.uploader.wandb_options import WandbOptions


def seen(*, stopped: str = "", for_good: bool = False, others: int = 0, ended: bool = True) -> Seen:
    """A look at one run, and at others that go well."""
    reports = [RunReport("proj", "exp1", f"demo/proj{number}") for number in range(1 + others)]
    reports[0].stopped, reports[0].for_good = stopped, for_good
    return Seen(UploadResult(runs=reports), ended)


@pytest.fixture
def looks(writer: Any, tmp_path: Path) -> Callable[..., tuple[UploadResult, list[bool]]]:
    """`looks(first, second, …)`: follow a closed run; each is a look's answer, an error, or what makes one of them.
    Gives the result, and of each look whether it was to be the last."""
    recording = writer(tmp_path / "runs", "proj")
    recording.close()

    def run(*answers: Any) -> tuple[UploadResult, list[bool]]:
        finals: list[bool] = []
        stop = threading.Event()

        def look(progress: Callable[[UploadResult], None], final: bool) -> Seen:
            answer = answers[len(finals)]
            finals.append(final)
            if len(finals) == len(answers) and not final:
                stop.set()
            if isinstance(answer, Exception):
                raise answer
            found = answer() if callable(answer) else answer
            assert isinstance(found, Seen)
            return found

        return follow(tmp_path / "runs", look, every=0.01, stop=stop, progress=lambda _: None), finals

    return run


def test_an_ordinary_end(looks: Callable[..., tuple[UploadResult, list[bool]]]) -> None:
    """One look at a run that has ended, and a last one when nothing has changed."""
    assert looks(seen(), seen())[1] == [False, True]


def test_the_server_is_away_in_the_last_look(looks: Callable[..., tuple[UploadResult, list[bool]]]) -> None:
    """Then it was not the last: when the server is there again, all is checked."""
    gone = NoAnswer("no answer")
    result, finals = looks(seen(), seen(stopped="gone"), gone, gone, gone, gone, seen(), gone, seen(), seen())

    assert finals == [False, True, False, False, False, False, False, True, False, True]
    assert result.stopped == ""


def test_what_stops_each_last_look(looks: Callable[..., tuple[UploadResult, list[bool]]]) -> None:
    """A W&B run that cannot be synced is not the server's trouble: it ends the third time."""
    stopped = seen(stopped="not synced")
    result, finals = looks(seen(), stopped, seen(), stopped, seen(), stopped, seen())

    assert finals == [False, True] * 3
    assert result.stopped == "not synced"


def test_what_would_stop_every_look(looks: Callable[..., tuple[UploadResult, list[bool]]]) -> None:
    """A key that may read and not write, a project that cannot take the calls: asking again would not help."""
    refused = seen(stopped="refused", for_good=True, ended=False)
    result, finals = looks(refused, seen())

    assert (finals, result.stopped) == ([False], "refused")


def test_what_would_stop_one_run_of_several(looks: Callable[..., tuple[UploadResult, list[bool]]]) -> None:
    """The others are followed to their end; then it does not wait for what cannot come."""
    going_on, at_the_end = (seen(stopped="refused", for_good=True, others=1, ended=ended) for ended in (False, True))
    result, finals = looks(going_on, going_on, at_the_end, at_the_end, seen())

    assert (finals, result.stopped) == ([False, False, False, True], "refused")


def test_the_folder_is_away_for_a_while(looks: Callable[..., tuple[UploadResult, list[bool]]], tmp_path: Path) -> None:
    """Renamed or unmounted when the run has ended: nothing has been checked yet, so it is waited for."""
    moved = tmp_path / "moved"

    def away() -> Seen:
        (tmp_path / "runs").rename(moved)
        threading.Timer(0.2, moved.rename, [tmp_path / "runs"]).start()
        return seen()

    assert looks(away, seen(), seen())[1] == [False, False, True]


def test_a_run_without_that_attempt_comes_later(looks: Callable[..., tuple[UploadResult, list[bool]]]) -> None:
    """`--attempt 2` for a folder of runs: an error at the beginning, something to wait for later."""
    with pytest.raises(BadFilter):
        looks(BadFilter("no attempt 2"))
    assert looks(seen(ended=False), BadFilter("no attempt 2"), seen(), seen())[1] == [False, False, False, True]


def test_what_the_last_look_is_for() -> None:
    """Reading everything back and syncing W&B runs is done once, and not at all where it was not asked for."""
    between = Options(check="deep", wandb=WandbOptions()).between()

    assert (between.check, between.wandb.later, between.trusting) == ("counts", True, True)
    assert Options(check="none").between().check == "none"
