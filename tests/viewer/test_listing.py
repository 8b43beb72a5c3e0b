"""What a terminal shows of a run: facts in plain text, and never an escape sequence out of a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from verl_trace.reader import find_runs, summarise
from verl_trace.reader.repair import repair as repair_run
from verl_trace.viewer.listing import listing, run_facts
from verl_trace.viewer.text import human_bytes, plain_table, visible


def shown(path: Path) -> str:
    return listing([run_facts(run, summarise(run)) for run in find_runs(path)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exp1", "exp1"),
        ("två ü 漢字", "två ü 漢字"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u200b", r"\u200b"),
        ("\ud800", r"\ud800"),
    ],
)
def test_control_characters_are_shown_and_not_obeyed(text: str, expected: str) -> None:
    """Escapes, line ends, direction marks and lone surrogates become visible; letters stay."""
    assert visible(text) == expected


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 50, "3072.0 TiB")]
)
def test_sizes_are_read_at_a_glance(size: int, text: str) -> None:
    """Binary units, one digit."""
    assert human_bytes(size) == text


def test_columns_are_aligned() -> None:
    """Numbers to the right, text to the left, nothing trailing."""
    table = plain_table(("run", "n"), [("a", "1"), ("longer", "1000")], right=frozenset({1}))

    assert table.splitlines() == ["run        n", "a          1", "longer  1000"]


def test_a_run_is_one_row_and_its_troubles_are_sentences(tmp_path: Path, writer: type[Any]) -> None:
    """Calls, errors, unfinished ones, losses, sampling and damage are all told."""
    made = writer(tmp_path, "me/proj")
    made.call("a", step=1)
    made.end(made.start("b", step=4), exception={"type": "E", "message": "", "traceback": []})
    made.start("c", step=4)
    made.write({"kind": "lost", "since": "", "until": "", "counts": {"EIO": 7}, "records": 7})
    made.append(b"garbage")
    made.age(3600)
    text = shown(tmp_path)
    row = text.splitlines()[1].split()

    assert row[:3] == ["exp1", "me/proj", "torn"]
    assert "1..4" in row
    for sentence in ("1 call without an end", "7 records", made.path.name):
        assert sentence in text


def test_a_paused_recording_is_not_called_killed(tmp_path: Path, writer: type[Any]) -> None:
    """Calls without an end of a process that closed its recording: told with the limit that paused it."""
    made = writer(tmp_path, "p")
    made.start("a")
    made.write({"kind": "lost", "since": "", "until": "", "counts": {"MIN_FREE": 7, "EIO": 1}, "records": 8})
    made.close()
    text = shown(tmp_path)

    assert "1 call without an end (the record was not written)" in text
    assert "never written: 8 records (1 because of EIO, 7 while recording was paused by VERL_TRACE_MIN_FREE)" in text
    assert "killed" not in text


def test_what_a_repaired_copy_lacks_was_written(tmp_path: Path, writer: type[Any]) -> None:
    """Damaged records are not told as never written, nor a killed process as one that closed its recording."""
    made = writer(tmp_path / "runs", "p")
    made.start("a")
    made.append(b"garbage\n")
    made.age(3600)
    repair_run(made.folder, tmp_path / "copy")
    text = shown(tmp_path / "copy")

    assert "1 call without an end (the record was damaged, or the process was killed)" in text
    assert "damaged or missing where this copy was repaired: 2 records" in text
    assert "never written" not in text


def test_an_empty_run_says_so(tmp_path: Path, writer: type[Any]) -> None:
    """A recording that never met a traced call is not mistaken for a broken one."""
    writer(tmp_path, "p").close()

    assert "no calls recorded" in shown(tmp_path)


def test_hostile_names_stay_in_their_row(tmp_path: Path, writer: type[Any]) -> None:
    """Names with line ends, escapes and markup: no control character reaches the terminal, rows stay rows."""
    writer(tmp_path, "p\x1b[31m\n[red]", "e\x1b]0;x\x07\u202e").close()
    text = shown(tmp_path)

    assert not [char for char in text if char != "\n" and not char.isprintable()]
    assert "\\x1b[31m" in text
    assert "[red]" in text


def test_rows_that_are_too_wide_fold_between_names_and_numbers(tmp_path: Path, writer: type[Any]) -> None:
    """80 columns hold large numbers and names of a usual length; without a limit a run stays on one line."""
    made = writer(tmp_path, "my-team/verl-grpo", "qwen3-8b-run7")
    for step in (1, 12000):
        made.call("a", step=step)
    made.close()
    facts = [run_facts(run, summarise(run)) for run in find_runs(tmp_path)]
    facts[0] |= {"trajectories": 123456, "calls": 1234567, "errors": 12345, "bytes": 123 << 30}
    folded, plain = listing(facts, columns=80).splitlines(), listing(facts).splitlines()

    assert max(len(line) for line in folded) <= 80
    assert folded[2] == "qwen3-8b-run7  my-team/verl-grpo"
    assert plain[1].split() == [*folded[2].split(), *folded[3].split()]
    assert listing(facts, columns=200).splitlines() == plain


def test_many_damages_do_not_flood_the_terminal(tmp_path: Path, writer: type[Any]) -> None:
    """Some are told one by one, the rest as a number."""
    made = writer(tmp_path, "p")
    made.call("a")
    for _ in range(500):
        made.append(b"garbage")
    made.close()
    text = shown(tmp_path)

    assert len(text.splitlines()) < 40
    assert "495 more" in text


def test_wide_and_combining_characters_keep_the_columns() -> None:
    """A terminal gives two columns to 漢 and to an emoji, none to an accent of its own."""
    rows = [("漢字", "1"), ("\U0001f600", "2"), ("e\u0301", "3"), ("abcd", "4")]
    table = plain_table(("name", "n"), rows).splitlines()

    assert table == ["name  n", "漢字  1", "\U0001f600    2", "e\u0301     3", "abcd  4"]


def test_rewards_are_a_column(tmp_path: Path, writer: type[Any]) -> None:
    """Mean and range; a dash where no reward is known, and a sentence for those that are missing."""
    made, other = writer(tmp_path, "me/proj"), writer(tmp_path, "me/proj", "exp2")
    for reward in (1.0, 0.25, None):
        call = made.call("run", step=1)
        status = "partial" if reward is None else "scored"
        head = {"step": 1, "source": "agent_loop", "status": status, "id": call["id"], "trace_id": call["trace_id"]}
        scores = f'{{"reward":{"null" if reward is None else reward}}}'
        line = f'{{"kind":"score","bytes":{len(scores)},{json.dumps(head)[1:-1]},"scores":{scores}}}'
        made.append(line.encode())
    other.call("run", step=1)
    for one in (made, other):
        one.close()
    text = shown(tmp_path)

    assert "0.625 [0.25..1]" in text
    assert "exp1: 1 trajectory whose reward is not known (yet)" in text
    facts = {run.experiment_name: run_facts(run, summarise(run))["reward"] for run in find_runs(tmp_path)}
    assert facts["exp1"] == {"trajectories": 2, "mean": 0.625, "min": 0.25, "max": 1.0}
    assert facts["exp2"] == {"trajectories": 0, "mean": None, "min": None, "max": None}
