"""A run with everything that readers meet, written by hand, and the command line in this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from verl_trace.cli import main

ATTEMPTS = ("a1aaaaaaaaaa", "b2bbbbbbbbbb", "c3cccccccccc")
HOSTILE = "[/INST] [red]x[/red] \x1b[31mred\x1b[0m </script><img src=x onerror=alert(1)> \u202egnp.exe \x07"
Writers = Callable[..., Any]


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> Callable[..., Done]:
    """`cli("ls", folder)` runs the command line as `main` does, in this process where it changes nothing of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("VERL_TRACE_CACHE", "VERL_TRACE_DIR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Done:
        if arguments[0] == "collect":
            # gives up its priority for good
            program = [sys.executable, "-c", "from verl_trace.cli import main; main()", *map(str, arguments)]
            child = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
            return Done(child.returncode, child.stdout, child.stderr)
        monkeypatch.setattr(sys, "argv", ["verl-trace", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
        out, err = capsysbinary.readouterr()
        return Done(code, out.decode(), err.decode())

    return run


def trajectory(made: Any, step: Any, sample: Any, rollout: int, *, answer: str = "42", **fields: Any) -> dict[str, Any]:
    """Prompt, model, parser, tool, model, as verl records them; the tool of rollout 1 raises."""
    numbers = {"step": step, "sample_index": sample, "rollout_n": rollout, "validate": False, **fields}
    prompt = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": f"question {sample}?"}]
    root = made.start("ToolAgentLoop.run", inputs={"sampling_params": {}, "kwargs": {"raw_prompt": prompt}}, **numbers)
    call = made.start("LLMServerClient.generate", parent=root, inputs={"prompt_ids": [1, 2, 3]})
    said = {
        "prompt_text": "question",
        "response_text": f'<tool_call>{{"expression": "6*7", "n": {sample!r}}}</tool_call>',
    }
    made.end(call, {"token_ids": [5, 6, 7, 8], "log_probs": [-0.5] * 4, "stop_reason": "completed"}, text=said)
    asked = [{"_type": "FunctionCall", "name": "calculator", "arguments": '{"expression": "6*7"}'}]
    made.end(made.start("HermesToolParser.extract_tool_calls", parent=root, inputs={}), ["", asked])
    call = made.start("CalculatorTool.execute", parent=root, inputs={"parameters": {"expression": "6*7"}})
    if rollout == 1:
        frame = {"filename": "/x/tool.py", "line_number": 7, "function_name": "execute", "text": "a / b"}
        error = {"type": "ZeroDivisionError", "message": "division by zero", "traceback": [frame]}
        made.end(call, None, exception=error)
    else:
        made.end(call, [{"_type": "ToolResponse", "text": "42", "image": None}, 0.5, {}])
    call = made.start("LLMServerClient.generate", parent=root, inputs={"prompt_ids": [1, 2, 3, 5, 6, 7, 8, 9]})
    made.end(call, {"token_ids": [1, 1], "stop_reason": "completed"}, text={"response_text": f"It is {answer}."})
    made.end(
        root, {"prompt_ids": [1, 2, 3], "response_ids": [5] * 7, "response_mask": [1, 1, 1, 1, 0, 1, 1], "num_turns": 4}
    )
    return dict(root)


def of_attempt(made: Any, attempt: str) -> None:
    """Let the file say that it belongs to this attempt."""
    made.path.write_bytes(made.path.read_bytes().replace(b"5c1d0a77be02", attempt.encode()))


@pytest.fixture
def rollouts(tmp_path: Path, writer: Writers) -> Path:
    """Two steps of two samples, two rollouts each, with rewards; closed and old."""
    made = writer(tmp_path / "runs", "me/proj")
    for step in (1, 2):
        for sample in (0, 1):
            for rollout in (0, 1):
                trajectory(made, step, sample, rollout, reward=step + sample / 4 - rollout, answer=f"{step}{rollout}")
    made.close()
    made.age(3600)
    return Path(made.folder)
