"""`verl-trace show`: what the model did on this sample."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import ATTEMPTS, HOSTILE, of_attempt, trajectory

Cli = Callable[..., Any]


def test_a_trajectory_is_a_conversation_and_a_tree(cli: Cli, rollouts: Path) -> None:
    """Roles, what the model wrote, tool calls with arguments and results, the reward, every call."""
    done = cli("show", rollouts, "1:0:0")

    assert (done.code, done.err) == (0, "")
    titles = [line for line in done.out.splitlines() if line.startswith("──")]
    assert [title.split()[1] for title in titles] == ["system", "user", "assistant", "tool", "assistant"]
    for said in ("question 0?", '→ {"expression":"6*7"}', "  42", "→ calls calculator", "It is 10.", "reward 1.0"):
        assert said in done.out
    tree = done.out.partition("\ncalls\n")[2].splitlines()
    assert tree[0].split()[0] == "ToolAgentLoop.run"
    assert len(tree) == 5
    assert max(map(len, done.out.splitlines())) <= 80


def test_an_error_has_its_traceback(cli: Cli, rollouts: Path) -> None:
    """Frames, type and message, in the place where the tool's answer would be."""
    done = cli("show", rollouts, "1:0:1")

    assert "/x/tool.py:7 in execute" in done.out
    assert "ZeroDivisionError: division by zero" in done.out


def test_a_beginning_of_an_id_names_a_trajectory_or_a_call(cli: Cli, rollouts: Path) -> None:
    """An ambiguous one lists the candidates, an unknown one says what names look like."""
    listed = json.loads(cli("ls", rollouts, "-t", "--json").out)
    trace_id = listed[0]["trace_id"]
    shown = json.loads(cli("show", rollouts, trace_id, "--json").out)
    call = shown["calls"][2]
    one = cli("show", rollouts, call["id"])
    several, none = cli("show", rollouts, trace_id[:8]), cli("show", rollouts, "ffff-none")

    assert shown["trajectory"]["trace_id"] == trace_id
    assert one.out.splitlines()[0].split()[:2] == ["call", call["id"]]
    assert {"inputs", "output"} <= set(one.out.splitlines())
    assert (several.code, none.code) == (2, 2)
    assert all(fact["trace_id"] in several.err for fact in listed)
    assert "8 trajectories" in several.err
    assert "STEP:SAMPLE:ROLLOUT" in none.err


def test_attempts_are_told_apart_by_a_filter(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """The same numbers in three attempts are three candidates, of which `--attempt` leaves one."""
    for number, attempt in enumerate(ATTEMPTS):
        made = writer(tmp_path / "runs", "p", pid=number + 1)
        trajectory(made, 1, 0, 0, answer=attempt)
        made.close()
        of_attempt(made, attempt)
    run = tmp_path / "runs" / "exp1"
    several, last = cli("show", run, "1:0:0"), cli("show", run, "1:0:0", "--attempt", "last")

    assert several.code == 2
    assert [f"attempt {n}" in several.err for n in (1, 2, 3)] == [True] * 3
    assert sum(f"It is {attempt}." in last.out for attempt in ATTEMPTS) == 1


def test_raw_records_and_one_field(cli: Cli, rollouts: Path) -> None:
    """`--raw` is what the files say; `--field` is the bare value."""
    raw = cli("show", rollouts, "2:1:0", "--raw").out
    lines = (next(rollouts.glob("*.jsonl"))).read_text().splitlines()

    assert raw.splitlines() == [line for line in lines if '"step":2,"sample_index":1,"rollout_n":0,' in line]
    assert cli("show", rollouts, "2:1:0", "--field", "inputs.kwargs.raw_prompt.1.content").out == "question 1?\n"
    assert json.loads(cli("show", rollouts, "2:1:0", "--field", "output.response_mask").out) == [1, 1, 1, 1, 0, 1, 1]
    wrong = cli("show", rollouts, "2:1:0", "--field", "output.nothing")
    assert (wrong.code, "output.prompt_ids" in wrong.err) == (2, True)


def test_long_values_are_visibly_shortened(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """A message of 1 MB, and a list of numbers; `--full` has all of it."""
    made = writer(tmp_path / "runs", "p")
    prompt = [{"role": "user", "content": "word " * 200_000}]
    head = made.start("AgentLoop.run", inputs={"raw_prompt": prompt}, step=1)
    made.end(head, {"token_ids": list(range(5000)), "response_text": "short"})
    made.close()
    short, full = cli("show", tmp_path / "runs"), cli("show", tmp_path / "runs", "--full")

    assert "shortened: 1,000,000 characters in 1 line; --full shows all" in short.out
    assert len(short.out) < 10_000
    assert full.out.count("word") == 200_000
    assert "shortened" not in full.out


def test_hostile_text_is_text(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """In ops, prompts, answers, errors, keys and attributes: shown, and never a control character."""
    made = writer(tmp_path / "runs", "p")
    head = made.start(
        HOSTILE, inputs={"raw_prompt": [{"role": HOSTILE, "content": HOSTILE}]}, step=1, **{HOSTILE: HOSTILE}
    )
    call = made.start(f"{HOSTILE}.execute", parent=head, inputs={HOSTILE: HOSTILE})
    error = {"type": HOSTILE, "message": HOSTILE, "traceback": [{"filename": HOSTILE, "text": HOSTILE}]}
    made.end(call, None, exception=error)
    made.end(head, {"response_text": HOSTILE})
    made.close()
    outputs = [cli("show", tmp_path / "runs", *more).out for more in ([], ["--full"], [call["id"]])]
    outputs += [
        cli(*words).out
        for words in (("ls", tmp_path, "-t"), ("stats", tmp_path / "runs"), ("grep", "INST", tmp_path / "runs"))
    ]

    for out in outputs:
        assert not [char for char in out if char not in "\n\t" and not char.isprintable()]
    assert "[/INST] [red]x[/red] \\x1b[31mred" in outputs[0]
    assert "</script><img src=x onerror=alert(1)>" in outputs[1]


@pytest.mark.parametrize("closed", [True, False])
def test_a_turn_without_an_end(cli: Cli, writer: Callable[..., Any], tmp_path: Path, closed: bool) -> None:
    """A process that closed its recording was not killed."""
    made = writer(tmp_path / "runs", "p")
    root = made.start("Agent.run")
    made.start("Model.generate", parent=root, inputs={"prompt_ids": [1, 2]})
    made.close() if closed else made.age(3600)
    shown = cli("show", made.folder, root["id"]).out

    assert ("its process was killed" in shown) is not closed
    assert ("the record was not written, or the recording ended first" in shown) is closed


def test_a_tree_may_be_deep_or_wide(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """A chain of 3,000 levels, and 6,700 children: told in part, all with `--full`, quickly and without recursion."""
    made = writer(tmp_path / "runs", "p")
    head = root = made.start("root", step=1)
    for _ in range(3000):
        head = made.start("mid.level", parent=head)
    for _ in range(6700):
        made.start("wide.child", parent=root)
    made.age(3600)
    short, full = cli("show", tmp_path / "runs"), cli("show", tmp_path / "runs", "--full")

    assert "--full shows all" in short.out
    assert len(short.out.splitlines()) < 300
    assert full.out.count("mid.level") == 3000
    assert full.out.count("wide.child") == 6700


def test_a_folder_without_tokenizer_json(
    cli: Cli, rollouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the package that could read the folder, and no extra that does not bring it."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "model").mkdir()
    done = cli("show", rollouts, "1:0:0", "--tokenizer", tmp_path / "model")

    assert done.code == 2
    assert "tokenizer.json" in done.err
    assert "pip install transformers" in done.err
    assert "verl-trace[" not in done.err


def test_ids_without_text_need_a_tokenizer(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """Without one they are counted; with one they are text, and the mask says who wrote what."""
    tokenizers: Any = importlib.import_module("tokenizers")
    words = {word: number for number, word in enumerate(["hello", "world", "tool", "said", "bye"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="hello"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    made = writer(tmp_path / "runs", "p")
    ids, mask = [1, 2, 3, 4], [1, 0, 0, 1]
    made.call("Loop.run", {"prompt_ids": [0, 999], "response_ids": ids, "response_mask": mask}, step=1)
    made.close()
    run = tmp_path / "runs"
    without, turns = cli("show", run), json.loads(cli("show", run, "--json", "--tokenizer", tmp_path).out)["turns"]

    assert "2 token ids and no text; --tokenizer PATH decodes them" in without.out
    assert "tell them apart with --tokenizer" in without.out
    assert [(turn["role"], turn["text"]) for turn in turns] == [
        ("prompt", "hello"), ("assistant", "world"), ("tool", "tool said"), ("assistant", "bye"),
    ]  # fmt: skip


@pytest.mark.parametrize("broken", ["missing", "empty.json"])
def test_a_bad_tokenizer_is_one_line(cli: Cli, rollouts: Path, tmp_path: Path, broken: str) -> None:
    """Not there, or not a tokenizer: named, with what to give instead."""
    (tmp_path / "empty.json").write_text("{}")
    done = cli("show", rollouts, "1:0:0", "--tokenizer", tmp_path / broken)

    assert done.code == 2
    assert f"--tokenizer {tmp_path / broken}" in done.err
    assert "tokenizer.json" in done.err
    assert done.err.count("\n") == 1


def test_json_without_a_conversation(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """Calls that are no rollout at all are a tree, and say so."""
    made = writer(tmp_path / "runs", "p")
    made.call("thing", 5, step="x")
    made.start("open", step=None)
    made.age(3600)
    done, open_one = cli("show", tmp_path / "runs", "x:-:-"), cli("show", tmp_path / "runs", "--", "-:-:-")

    assert done.code == open_one.code == 0
    assert "thing" in done.out
    assert "unfinished" in open_one.out


@pytest.mark.parametrize("name", ["content", "text"])
def test_an_answer_that_is_one_message_is_shown(
    cli: Cli, writer: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    """A loop of one's own that returns what the engine's server answered, and has no calls below it."""
    made = writer(tmp_path / "runs", "p")
    asked = {"messages": [{"role": "user", "content": "how much?"}]}
    root = made.start("MyLoop.run", inputs=asked, step=1, sample_index=0, rollout_n=0)
    made.end(root, {"role": "assistant", name: "It is 42."})
    done = cli("show", tmp_path / "runs", "1:0:0")

    titles = [line.split()[1] for line in done.out.splitlines() if line.startswith("──")]
    assert titles[:2] == ["user", "assistant"]
    assert "It is 42." in done.out


def test_what_is_not_known_is_left_out(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """Of a file without its header, whose records lack what ours have."""
    made = writer(tmp_path / "runs", "p")
    ids = b'"id":"01a22a92-0000-7000-8000-000000000001","trace_id":"01a22a92-0000-7000-8000-000000000001"'
    made.path.write_bytes(b'{"kind":"end",%b,"output":5}\n' % ids)
    shown = cli("show", made.folder, "01a22a92").out

    assert shown.splitlines()[1].split(" · ") == ["  success", "-", "1 call"]
    assert "None" not in shown
    assert "attempt" not in shown
    assert "  unknown\n" in shown
