"""`export --format chat` of calls that are no single turn of text: batches, several answers, bare token ids."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def requests(*answers: tuple[str, ...]) -> list[dict[str, Any]]:
    """The output of vLLM's `LLM.generate`."""
    return [
        {
            "_type": "RequestOutput", "request_id": str(number), "prompt": f"question {number}",
            "prompt_token_ids": [1, 2], "outputs": [
                {"_type": "CompletionOutput", "index": index, "text": text, "token_ids": [5, 6, 7]}
                for index, text in enumerate(texts)
            ],
        }
        for number, texts in enumerate(answers)
    ]  # fmt: skip


@pytest.fixture
def exported(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[str, list[Any]]]:
    """Export what `record` writes; what was said, and the lines. The report says the same as JSON."""

    def export(record: Callable[[Any], None], *options: object) -> tuple[str, list[Any]]:
        made = writer(tmp_path / "runs", "p")
        record(made)
        made.close()
        made.age(3600)
        words = ("export", tmp_path / "runs", "--format", "chat", "--out", tmp_path / "c.jsonl", "--force", *options)
        done = cli(*words)
        assert (done.code, done.err) == (0, "")
        rows = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
        report = json.loads(cli(*words, "--json").out)
        assert report["conversations"] == len(rows)
        assert report["trajectories"] == len({row["metadata"]["trace_id"] for row in rows})
        return done.out.partition(": ")[2].strip(), rows

    return export


def test_a_batch_is_a_conversation_for_each_answer(exported: Any) -> None:
    """With its own prompt, and numbers that say which it is; nowhere is JSON taken for what was said."""
    said, rows = exported(lambda made: made.call("LLM.generate", requests(("a", "b"), ("c", "d")), step=1))

    assert said == "1 trajectory, 4 conversations, 0 left out for lack of text"
    assert [[(message["role"], message["content"]) for message in row["messages"]] for row in rows] == [
        [("user", f"question {number}"), ("assistant", text)]
        for number, text in ((0, "a"), (0, "b"), (1, "c"), (1, "d"))
    ]
    assert [(row["metadata"]["request"], row["metadata"]["answer"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {row["metadata"]["tokens"] for row in rows} == {12}


def test_answers_to_the_messages_of_the_trajectory(exported: Any) -> None:
    """Each has these messages before it."""
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]

    def record(made: Any) -> None:
        root = made.start("Loop.run", inputs={"raw_prompt": messages}, step=1)
        made.call("LLM.generate", requests(("a", "b")), parent=root)
        made.end(root, "a")

    _, rows = exported(record)

    assert [row["messages"] for row in rows] == [[*messages, {"role": "assistant", "content": text}] for text in "ab"]


def test_several_answers_between_other_turns_are_left_out(exported: Any) -> None:
    """Nothing says which of them the conversation went on with; it is counted as what it is."""

    def record(made: Any) -> None:
        for output, op in ((requests(("a", "b")), "LLM.generate"), (requests(("a",)), "Search.execute")):
            root = made.start("Loop.run", step=1)
            made.call("LLM.generate", output, parent=root)
            made.call(op, "found" if op == "Search.execute" else requests(("c",)), parent=root)
            made.end(root, None)

    said, rows = exported(record)

    assert said == "1 trajectory, 0 left out for lack of text, 1 left out for several answers between other turns"
    assert [message["role"] for message in rows[0]["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("root", [None, "whole", "other ids"])
def test_bare_ids_are_no_text(root: str | None, exported: Any) -> None:
    """They have the text that was recorded with the trajectory, where it is of the same ids; else they are left out."""

    def record(made: Any) -> None:
        ids = [5, 6] if root != "other ids" else [5, 7]
        if root is None:
            made.end(made.start("generate", inputs={"prompt_ids": [1, 2]}, step=1), ids)
            return
        head = made.start("Loop.run", step=1)
        made.end(made.start("Manager.generate", parent=head, inputs={"prompt_ids": [1, 2]}), ids)
        said = {"prompt_text": "p", "response_text": "a"}
        made.end(head, {"prompt_ids": [1, 2], "response_ids": [5, 6]}, text=said)

    said, rows = exported(record)

    if root == "whole":
        assert said == "1 trajectory, 0 left out for lack of text"
        assert [message["content"] for message in rows[0]["messages"]] == ["p", "a"]
    else:
        assert (said, rows) == ("0 trajectories, 1 left out for lack of text", [])


@pytest.mark.parametrize(
    "output", [[5, 6], {"token_ids": [5, 6], "log_probs": [-0.5, -0.5]}, [[5, 6]], [{"a": [5]}, 6]]
)
def test_nothing_else_is_taken_for_text(output: Any, exported: Any) -> None:
    """Neither ids nor other values: of the model's calls, and of a trajectory of which only the whole is recorded."""

    def record(made: Any) -> None:
        made.call("Manager.generate", output, step=1)
        for whole in ([5, 6], 0.44, True, ["a page", "another"], [{"x": 1}]):
            made.call("Loop.run", whole, step=1)

    assert exported(record) == ("0 trajectories, 6 left out for lack of text", [])


def test_what_a_trajectory_said_as_a_whole(exported: Any) -> None:
    """One text, the parts of a message, or what a generator yielded."""

    def record(made: Any) -> None:
        made.call("Loop.run", "a", step=1)
        made.call("Loop.run", [{"type": "text", "text": "b"}], step=1)
        head = made.start("stream", step=1)
        made.end({**head, "generator": {"yielded": 2, "ended": "exhausted"}}, ["c", "d"])

    _, rows = exported(record)

    assert [row["messages"][0]["content"] for row in rows] == ["a", "b", "cd"]


def test_with_a_tokenizer_ids_are_text(exported: Any, tmp_path: Path) -> None:
    """Bare ones like any others."""
    tokenizers: Any = importlib.import_module("tokenizers")
    words = {word: number for number, word in enumerate(["what", "is", "it", "this"])}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="what")).save(str(tmp_path / "tokenizer.json"))
    said, rows = exported(
        lambda made: made.end(made.start("generate", inputs={"prompt_ids": [0, 1, 2]}, step=1), [3, 1, 2]),
        "--tokenizer", tmp_path,
    )  # fmt: skip

    assert said == "1 trajectory, 0 left out for lack of text"
    assert [message["content"] for message in rows[0]["messages"]] == ["what is it", "this is it"]


def test_a_batch_is_shown_by_request_and_answer(cli: Cli, writer: Callable[..., Any], tmp_path: Path) -> None:
    """With the tokens of all of them; an output that is no text is shown as the value that it is."""
    made = writer(tmp_path / "runs", "p")
    made.call("LLM.generate", requests(("a", "b"), ("c", "d")), step=1)
    made.call("Client.complete", [{"x": 1}], step=2)
    made.close()
    made.age(3600)
    batch, odd = (cli("show", tmp_path / "runs", "--step", step).out for step in (1, 2))
    query = "SELECT step, tokens FROM calls ORDER BY step"
    rows = cli("sql", tmp_path / "runs", query, "--format", "json").out.splitlines()

    assert "12 tokens" in batch
    assert "prompt · request 2 · 2 tokens" in batch
    assert "assistant · LLM.generate · request 2 · answer 1" in batch
    assert '[{"x":1}]' in odd
    assert [json.loads(row)["tokens"] for row in rows] == [12, None]
