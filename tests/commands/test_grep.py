"""`verl-trace grep`: held against a plain search of every decoded text."""

from __future__ import annotations

import importlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from verl_trace.viewer.patterns import Pattern

from .conftest import trajectory

Cli = Callable[..., Any]
TEXTS = [
    'he said "no"\nand left', "tab\there", "back\\slash C:\\new", "naïve Zoë", "漢字 text", "KELVIN \u212a sign",
    "\u017ftraße",    "12/0", "line one\nline two\nline three", "", "<|im_end|>", "\x1b[31m", "a.b*c", "https://x/y?z=1",
]  # fmt: skip


def rows(done: Any) -> list[list[str]]:
    return [line.split("\t", 4) for line in done.out.splitlines()]


def test_a_match_says_where_it_is(cli: Cli, rollouts: Path) -> None:
    """Trajectory, place, op, field path and the line around the match; exit codes are grep's."""
    found, none, wrong = cli("grep", "by zero", rollouts), cli("grep", "nothing", rollouts), cli("grep", "(", rollouts)

    assert [(row[1], row[2], row[3]) for row in rows(found)] == [
        (f"{step}:{sample}:1", "CalculatorTool.execute", "exception.message") for step in (1, 2) for sample in (0, 1)
    ]
    assert (found.code, none.code, wrong.code) == (0, 1, 2)
    assert none.out == ""
    assert "no regular expression" in wrong.err


def test_it_sees_through_the_escapes_of_json(cli: Cli, rollouts: Path) -> None:
    """A quote in a text is `\\"` in the file; who looks for it types a quote."""
    found = cli("grep", "-F", '{"expression": "6*7", "n": 1}', rollouts)

    assert {row[3] for row in rows(found)} == {"output.response_text"}
    assert len(rows(found)) == 4


@pytest.mark.parametrize("ignore_case", [False, True])
@pytest.mark.parametrize("text", [text for text in TEXTS if text] + ['"', "\\", "\n", "e", "zoë", "k", "S", "STRASSE"])
def test_fixed_strings_are_found_where_they_are(
    cli: Cli, writer: Callable[..., Any], tmp_path: Path, text: str, ignore_case: bool
) -> None:
    """Whatever JSON makes of them, in files of our writer and of one that escapes all that is not ASCII."""
    made = writer(tmp_path / "runs", "p")
    for number, value in enumerate(TEXTS):
        made.call("a", {"v": value}, step=number)
        head = {"step": number + 100, "op": "a", "id": f"x{number}", "trace_id": f"x{number}", "parent_id": None}
        made.append(json.dumps({"kind": "end", **head, "output": {"v": value}}).encode())
    made.close()
    found = cli("grep", "-F", *(["-i"] if ignore_case else []), "--field", "v", "--json", "--", text, tmp_path / "runs")
    pattern = Pattern(text, fixed=True, ignore_case=ignore_case)
    expected = {number for number, value in enumerate(TEXTS) if pattern.find(value)}

    assert {json.loads(line)["step"] for line in found.out.splitlines()} == expected | {n + 100 for n in expected}
    if not ignore_case:
        assert expected == {number for number, value in enumerate(TEXTS) if text in value}


@pytest.mark.parametrize(
    "pattern",
    [
        "line (one|two)",
        "^line two$",
        r"\d+/\d",
        "(?i)kelvin",
        "x|y",
        r"a\.b\*c",
        "n.*e",
        "[äï]ve",
        "(ab)?12",
        "z{0,2}t",
        ".",
        "(?=12)1",
    ],
)
def test_expressions_are_found_where_they_are(
    cli: Cli, writer: Callable[..., Any], tmp_path: Path, pattern: str
) -> None:
    """The bytes that are looked for first never hide a match."""
    made = writer(tmp_path / "runs", "p")
    for number, value in enumerate(TEXTS):
        made.call("op", {"v": value}, step=number)
    made.close()
    found = cli("grep", "--json", "--field", "v", pattern, tmp_path / "runs")
    find = Pattern(pattern).find

    assert {json.loads(line)["step"] for line in found.out.splitlines()} == {n for n, v in enumerate(TEXTS) if find(v)}


def test_needles_are_in_whatever_matches() -> None:
    """Random expressions over a small alphabet: a text that matches has, as JSON, one of the needles."""
    rng = random.Random(7)
    for _ in range(3000):
        source = "".join(
            rng.choice(["a", "b", '"', "(a|b)", "b+", "a?", ".", "(ab)", "c|", "[ab]", "é"]) for _ in range(4)
        )
        pattern = Pattern(source, ignore_case=rng.random() < 0.3)
        text = "".join(rng.choice('abcAB"é') for _ in range(8))
        search = pattern.searcher()
        if pattern.find(text) is not None and search is not None:
            for ascii_only in (True, False):
                data = json.dumps(text, ensure_ascii=ascii_only).encode()
                assert search(data, 0, len(data)) >= 0, (source, text)


def test_names_counts_and_the_rest(cli: Cli, rollouts: Path) -> None:
    """-l, -c, -v, --op, --field and the filters of trajectories."""
    listed = cli("grep", "-l", "It is", rollouts).out.splitlines()
    counted = cli("grep", "-c", "calculator|It is", rollouts).out.splitlines()
    other = cli("grep", "-v", "--field", "response_text", "--op", "generate", "It is", rollouts)

    assert len(listed) == len(set(listed)) == 8
    assert [line.split("\t")[0] for line in counted] == ["2"] * 8
    assert {row[4][:11] for row in rows(other)} == {"<tool_call>"}
    assert len(rows(cli("grep", "It is", rollouts, "--step", "2", "--where", "reward < 2"))) == 2
    assert rows(cli("grep", "question", rollouts, "--op", "Calculator*")) == []


def test_sealed_files_are_searched_by_all_cores(
    cli: Cli, writer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same result as by one process, in the same order; a damaged file gives what it has and exit code 2."""
    for pid in range(6):
        made = writer(tmp_path / "runs", "p", pid=pid)
        for step in range(20):
            trajectory(made, step, pid, 0)
        made.close()
        data = zstandard.ZstdCompressor(write_checksum=True).compress(made.path.read_bytes())
        made.path.with_name(made.path.name + ".zst").write_bytes(data)
        made.path.unlink()
    alone = cli("grep", "It is", tmp_path / "runs")
    monkeypatch.setattr("verl_trace.reader.cores._SMALL", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    together = cli("grep", "It is", tmp_path / "runs")
    sealed = sorted((tmp_path / "runs" / "exp1").glob("*.zst"))[2]
    sealed.write_bytes(sealed.read_bytes()[:-200])
    damaged = cli("grep", "It is", tmp_path / "runs")

    assert len(rows(alone)) == 120
    assert together == alone
    assert damaged.code == 2
    assert 100 <= len(rows(damaged)) < 120
    assert sealed.name in damaged.err


def test_python_alone_finds_the_same(cli: Cli, rollouts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where re2 is not installed."""
    patterns = ("It is [0-9]+", "by zero", "CALCULATOR")
    with_re2 = [cli("grep", "-i", pattern, rollouts) for pattern in patterns]
    monkeypatch.setitem(__import__("sys").modules, "re2", None)

    assert [cli("grep", "-i", pattern, rollouts) for pattern in patterns] == with_re2


def test_tokens_are_searched_as_text(cli: Cli, rollouts: Path, tmp_path: Path) -> None:
    """With a tokenizer, text that no record holds is found."""
    tokenizers: Any = importlib.import_module("tokenizers")
    words = {f"word{number}": number for number in range(10)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="word0")).save(str(tmp_path / "tokenizer.json"))
    found = cli("grep", "word6 word7", rollouts, "--tokenizer", tmp_path)

    assert {row[3] for row in rows(found)} == {"output.token_ids", "inputs.prompt_ids"}
    assert cli("grep", "word6 word7", rollouts).code == 1
