"""One process of a training that is followed: rolls out, and tells rewards late.

Arguments: project, number, seed, rollouts. Half-way it waits for a file `enough` in its folder.

Two processes share each group, so that a group becomes whole when the slower one has told its reward. Each line of the
log beside the runs, written before a reward is told, is: trace id, group, time.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
from verl_trace.recorder import session as sessions
from verl_trace.recorder.context import current_attributes
from verl_trace.recorder.score import Join, write_scores


@rollout_trace_op
def generate(prompt_ids: list[int]) -> list[int]:
    return prompt_ids[::-1]


@rollout_trace_op
def run(prompt_ids: list[int]) -> list[int]:
    for _ in range(2):
        prompt_ids = prompt_ids + generate(prompt_ids)
    return prompt_ids


def main(project: str, number: int, seed: int, rollouts: int) -> None:
    """Roll out, tell the reward of an earlier rollout, and so on; at last the rewards that are left."""
    dice = random.Random(seed * 1000 + number)
    RolloutTraceConfig.init(project, "exp1", "jsonl")
    untold: list[tuple[Any, str]] = []
    with Path(f"told-{number}.log").open("a", encoding="utf-8") as log:

        def tell() -> None:
            trace, group = untold.pop(dice.randrange(len(untold)))
            log.write(f"{trace.place.root.trace_id} {group} {time.time()}\n")
            log.flush()
            session = sessions.current()
            assert session is not None
            join = Join(uid=group, group_size=2, session=number % 2)
            trace_id = trace.place.root.trace_id
            write_scores(
                session, {"reward": dice.random()}, source="agent_loop", trace=trace, trace_id=trace_id, join=join
            )

        for rollout in range(rollouts):
            sample = 10_000 * (number // 2) + rollout
            with rollout_trace_attr(step=rollout // 4, sample_index=sample, rollout_n=number % 2):
                run([dice.randrange(50_000) for _ in range(300)])
                untold.append((current_attributes.get(), f"group-{sample}"))
            time.sleep(dice.uniform(0, 0.5))
            if len(untold) > 3:
                tell()
            while rollout == rollouts // 2 and not Path("enough").exists():
                time.sleep(0.1)
        while untold:
            time.sleep(dice.uniform(0, 0.1))
            tell()
    RolloutTraceConfig.reset()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
