"""Real rollouts of an unmodified verl, ended the way verl ends: everything that was called is in the files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.e2e

WORKERS, STEPS, SAMPLES, N = 2, 2, 4, 2
TRAINING, VALIDATION = STEPS * SAMPLES * N, STEPS * SAMPLES
LIMIT = 1
# Questions 1 and 5 make the calculator divide by zero, in each of their rollouts.
TOOL_ERRORS = 2 * (N + 1)


class Run(NamedTuple):
    """What the driver says it did, twice in full and once with a limit, and what lies in the folders."""

    reports: list[dict[str, Any]]
    limited_report: dict[str, Any]
    full: Any
    limited: Any

    def attempts(self) -> dict[str, set[str]]:
        """Attempt -> the files of its writers, for the experiment that was started twice."""
        out: dict[str, set[str]] = {}
        for header in self.full.of("header"):
            out.setdefault(header["attempt"], set()).add(header["file"])
        return out


class Starts(NamedTuple):
    """The reports of the two starts, by experiment, and the folder of both."""

    first: dict[str, dict[str, Any]]
    second: dict[str, dict[str, Any]]
    folder: Path


@pytest.fixture(scope="module")
def starts(drive: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Starts:
    """Two starts under the same names: the first also samples, the second ends by killing the workers."""
    folder = tmp_path_factory.mktemp("starts")
    full = [{"worker": w, "backend": "jsonl", "experiment": f"{w}-full", "validate": True} for w in ("v0", "tq")]
    limited = [{"worker": w, "backend": "jsonl", "experiment": f"{w}-limited", "limit": LIMIT} for w in ("v0", "tq")]
    return Starts(drive(folder, scenes=full + limited), drive(folder, scenes=full, end="kill"), folder)


@pytest.fixture(scope="module", params=["v0", "tq"])
def run(request: pytest.FixtureRequest, starts: Starts, records: Callable[[Path], Any]) -> Run:
    """The part of both starts that one kind of worker did."""
    full, limited = (f"{request.param}-{name}" for name in ("full", "limited"))
    return Run(
        [starts.first[full], starts.second[full]],
        starts.first[limited],
        records(starts.folder / "runs" / full),
        records(starts.folder / "runs" / limited),
    )


def expected_ops(report: dict[str, Any]) -> Counter[str]:
    """The calls that the driver, the model and the tool counted themselves."""
    return Counter(
        {
            "ToolAgentLoop.run": report["trajectories"],
            "LLMServerClient.generate": report["model_calls"],
            "HermesToolParser.extract_tool_calls": report["model_calls"],
            "CalculatorTool.execute": report["tool_calls"],
        }
    )


def test_every_call_is_recorded_and_ended(run: Run) -> None:
    """Whether the driver just exits or kills its workers: every call that really happened has its start and its end."""
    assert [report["trajectories"] for report in run.reports] == [TRAINING + VALIDATION] * 2
    expected = expected_ops(run.reports[0])
    assert expected == expected_ops(run.reports[1])
    assert len(run.attempts()) == 2
    for files in run.attempts().values():
        for kind in ("start", "end"):
            ops = Counter(head["op"] for head in run.full.of(kind) if head["file"] in files)
            assert ops == expected
    assert {head["id"] for head in run.full.of("start")} == {head["id"] for head in run.full.of("end")}
    assert run.full.of("lost") == run.full.of("skip") == []


def test_two_starts_are_two_attempts(run: Run) -> None:
    """Both starts go into one folder as two attempts, each with one file per worker."""
    assert [len(files) for files in run.attempts().values()] == [WORKERS, WORKERS]
    assert {header["project_name"] for header in run.full.of("header")} == {"me/proj"}


def test_every_trajectory_has_its_numbers(run: Run) -> None:
    """step, sample_index, rollout_n and validate are verl's, on the default trainer too; uid names the group."""
    expected = Counter(
        (step, (step - 1) * SAMPLES + i, n, validate)
        for step in range(1, STEPS + 1)
        for i in range(SAMPLES)
        for validate in (False, True)
        for n in range(1 if validate else N)
    )
    roots = run.full.of("start", parent_id=None)
    assert len(run.attempts()) == 2
    for files in run.attempts().values():
        mine = [head for head in roots if head["file"] in files]
        assert Counter((h["step"], h["sample_index"], h["rollout_n"], h["validate"]) for h in mine) == expected
    assert {head["attributes"]["uid"].rpartition("group-")[2] == str(head["sample_index"]) for head in roots} == {True}
    assert {head["experiment_name"] for head in roots} == {run.reports[0]["experiment"]}


def test_calls_hang_below_their_trajectory(run: Run) -> None:
    """Every call below a root names a parent of the same trajectory and carries the trajectory's attributes."""
    starts = {head["id"]: head for head in run.full.of("start")}
    assert starts
    for head in starts.values():
        root = starts[head["trace_id"]]
        assert root["op"] == "ToolAgentLoop.run"
        assert root["parent_id"] is None
        assert head is root or starts[head["parent_id"]]["trace_id"] == root["id"]
        assert head["attributes"] == root["attributes"]


def test_outcomes_are_recorded(run: Run) -> None:
    """A tool that raises is an error with verl's exception; everything else succeeded and has an output."""
    ends = run.full.of("end")
    errors = [head for head in ends if head["status"] != "success"]

    assert {(head["op"], head["exception"]["type"]) for head in errors} == {
        ("CalculatorTool.execute", "ZeroDivisionError")
    }
    assert len(errors) == TOOL_ERRORS * len(run.attempts())
    assert all(head["payload"] is not None for head in ends if head["status"] == "success")


def test_text_follows_the_ids(run: Run) -> None:
    """With token2text, decoded text is a record of its own that belongs to an end which announced it."""
    announced = {head["id"] for head in run.full.of("end", text=True)}
    texts = run.full.of("text")

    assert texts
    assert {head["id"] for head in texts} <= announced
    assert all("question" in head["payload"]["prompt_text"] for head in texts)
    assert all(head["payload"]["response_text"] for head in texts)


def test_sampling_limit_is_exact(run: Run) -> None:
    """Per worker and step one sample, with all its rollouts and all their calls; the others are counted as skipped."""
    groups = Counter((h["file"], h["step"], h["sample_index"]) for h in run.limited.of("start", parent_id=None))
    recorded = WORKERS * STEPS * LIMIT * N

    assert set(groups.values()) == {N}
    assert Counter((file, step) for file, step, _ in groups) == Counter(
        {(file, step): LIMIT for file in {f for f, _, _ in groups} for step in range(1, STEPS + 1)}
    )
    assert sum(groups.values()) == recorded
    assert len(run.limited.of("skip", reason="sampling")) == TRAINING - recorded
    traces = {head["id"] for head in run.limited.of("start", parent_id=None)}
    assert {head["trace_id"] for kind in ("start", "end") for head in run.limited.of(kind)} == traces
    skipped = {(h["step"], h["sample_index"], h["rollout_n"]) for h in run.limited.of("skip")}
    assert skipped.isdisjoint({(h["step"], h["sample_index"], h["rollout_n"]) for h in run.limited.of("start")})


def test_workers_stay_offline(run: Run) -> None:
    """In a verl worker our code opens no socket, and neither weave nor wandb is imported."""
    for report in (*run.reports, run.limited_report):
        assert report["loaded"] == [["verl_trace"]] * WORKERS
        assert [[asked.rpartition("/")[2] for asked in worker] for worker in report["sockets"]] == [
            ["control.py"]
        ] * WORKERS


def test_verl_sees_its_own_configuration(run: Run) -> None:
    """verl's configuration object says what was asked for, and the one that the trainer logs is not touched."""
    for report in (*run.reports, run.limited_report):
        assert report["config_unchanged"]
        for config in report["trace_config"]:
            assert config == {
                "backend": "jsonl",
                "token2text": True,
                "project_name": "me/proj",
                "experiment_name": report["experiment"],
                "max_samples_per_step_per_worker": LIMIT if report is run.limited_report else None,
                "client": "None",
            }


@pytest.mark.parametrize("worker", ["v0", "tq"])
def test_show_tells_what_was_said(starts: Starts, worker: str) -> None:
    """Roles, texts, tool calls with arguments and results, a tool that raises, the reward, who wrote which ids."""
    folder = starts.folder / "runs" / f"{worker}-full"

    def show(*words: str) -> Any:
        command = [str(Path(sys.executable).with_name("verl-trace")), "show", str(folder), *words]
        done = subprocess.run(
            [*command, "--attempt", "1", "--train"], capture_output=True, text=True, timeout=300, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    def asked(expression: str) -> list[dict[str, Any]]:
        return [{"name": "calculator", "arguments": {"expression": expression}}]

    right, wrong = show("1:0:0", "--json"), show("1:1:0", "--json")

    said = [(turn["role"], turn["text"]) for turn in right["turns"]]
    assert said[:2] == [("system", "You may call tools."), ("user", "question 0: what is 0 times 7?")]
    assert [role for role, _ in said[2:]] == ["assistant", "tool", "assistant"]
    assert right["turns"][2]["tool_calls"] == asked("0*7")
    assert (right["turns"][3]["arguments"], said[3][1]) == ({"expression": "0*7"}, "0")
    assert said[4][1].removesuffix("<|im_end|>") == "The answer to 0 is 0."
    assert right["trajectory"]["reward"] == 1.0

    failed = next(turn for turn in wrong["turns"] if turn["role"] == "tool")
    assert failed["arguments"] == {"expression": "1/0"}
    assert failed["exception"]["type"] == "ZeroDivisionError"
    assert [turn["tool_calls"] for turn in wrong["turns"] if turn["role"] == "assistant"][:2] == [
        asked("1/0"),
        asked("1-1"),
    ]

    mask = show("1:0:0", "--field", "output.response_mask")
    written = sum(turn["tokens"] for turn in right["turns"] if turn["role"] == "assistant")
    assert sum(mask) == written < len(mask)
