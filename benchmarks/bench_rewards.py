"""What rewards cost: µs per trajectory on the agent loop's thread, and seconds per step of real verl with and without.

    python benchmarks/bench_rewards.py [--seconds 1]      the parts, without verl
    python benchmarks/bench_rewards.py --verl [--steps 12]   steps of verl's agent loops with its reward workers

With --verl the same job rolls out each step twice, in turn: tracing off, and recording with rewards and scoring calls.
It needs the environment of `.ci/verl-e2e`.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from table import tell

DRIVER = Path(__file__).resolve().parents[1] / "tests/e2e/verl"
SCORES = {"reward": 0.5, "reward_extra_info": {"score": 0.5, "acc": True}, "num_turns": 6, "tool_rewards": [0.5, 0.0]}


def parts(seconds: float, folder: str) -> None:
    """Print µs of each thing that is done for a trajectory."""
    os.environ.update(VERL_TRACE_DIR=folder, VERL_TRACE_SEGMENT_BYTES="16G")
    from verl_trace import RolloutTraceConfig, current_context, rollout_trace_attr, rollout_trace_op, use_context
    from verl_trace.recorder import session as sessions
    from verl_trace.recorder.context import current_attributes
    from verl_trace.recorder.score import write_scores

    @rollout_trace_op
    def scoring(data_source: str, ground_truth: str) -> dict[str, Any]:
        return SCORES

    RolloutTraceConfig.init("bench", "rewards", "jsonl")
    session = sessions.current()
    assert session is not None
    with rollout_trace_attr(step=1, sample_index=1, rollout_n=0):
        scoring("gsm8k", "42")
        trace, context = current_attributes.get(), current_context()
        assert trace is not None
        assert trace.place is not None
        assert trace.place.root is not None
        assert context is not None
        trace_id, text = trace.place.root.trace_id, context.to_text()
        write = lambda: write_scores(session, SCORES, source="agent_loop", trace=trace, trace_id=trace_id)  # noqa: E731

        def enter() -> None:
            with use_context(text):
                pass

        for title, call in (
            ("scores of a trajectory, one record", write),
            ("the scoring call, two records", lambda: scoring("gsm8k", "42")),
            ("its place for another process", lambda: current_context().to_text()),  # type: ignore[union-attr]
            ("the place put in force there", enter),
        ):
            cost = per_call(call, seconds)
            print(f"{title:<36} {cost:6.1f} µs")
            tell(title, cost, "µs")


def per_call(call: Callable[[], Any], seconds: float) -> float:
    """The median of short batches, in µs."""
    batch, times = 20, []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(batch):
            call()
        times.append((time.perf_counter() - start) / batch)
    return statistics.median(times) * 1e6


def steps(count: int, folder: Path) -> None:
    """Print the step times of one job."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("VERL_TRACE_", "WANDB_"))},
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray lets a second program into a cluster only with the cluster's token
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "PYTHONPATH": str(DRIVER),
        "VERL_TRACE_DIR": str(folder / "runs"),
    }
    make = "import sys, pathlib, rollout_parts; rollout_parts.make_model_folder(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", make, str(folder / "model")], env=environment, check=True)
    tool = {"class_name": "rollout_parts.CalculatorTool", "config": {"type": "native", "calls_file": str(folder / "c")}}
    (folder / "tools.yaml").write_text(json.dumps({"tools": [tool]}))
    scenes = [{"worker": "v0", "backend": backend, "experiment": name} for name, backend in SCENES.items()]
    cluster = subprocess.Popen(
        [sys.executable, str(DRIVER / "cluster.py")],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    try:
        plan = {
            "project": "me/bench", "model": str(folder / "model"), "address": cluster.stdout.readline().strip(),
            "tools_file": str(folder / "tools.yaml"), "calls_file": str(folder / "c"), "start": "run_ppo",
            "report": str(folder / "report.json"), "workers": 2, "samples": 8, "n": 4, "steps": count, "scenes": scenes,
        }  # fmt: skip
        (folder / "plan.json").write_text(json.dumps(plan))
        command = [sys.executable, str(DRIVER / "reward_driver.py"), str(folder / "plan.json")]
        subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    finally:
        cluster.stdin.close()
        cluster.wait()
    for scene in json.loads((folder / "report.json").read_text()):
        # the first step loads what the others have
        seconds = scene["seconds"][1:]
        low, _, high = statistics.quantiles(seconds, n=4)
        print(
            f"{scene['experiment']:10} median {statistics.median(seconds):.3f} s, half of all {low:.3f}..{high:.3f} s"
        )


SCENES = {"off": None, "recorded": "jsonl"}


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="time per part")
    parser.add_argument("--verl", action="store_true", help="steps of real verl instead")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.verl:
            steps(options.steps, Path(folder))
        else:
            parts(options.seconds, folder)


if __name__ == "__main__":
    main()
