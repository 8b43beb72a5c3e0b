"""Calls a traced tool for ever and prints each call's token once the call has returned. Run by test_kill.py."""

from __future__ import annotations

import os
import random
import sys
import uuid

from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op


class Tool:
    """A traced method whose output is its first input."""

    @rollout_trace_op
    def execute(self, token: str, padding: str) -> str:
        return token


def main() -> None:
    """Until killed; VERL_TRACE_DIR says where to record."""
    RolloutTraceConfig.init("soak", "kill", "jsonl")
    tool, draw = Tool(), random.Random()
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
        while True:
            token = uuid.uuid4().hex
            tool.execute(token, "x" * draw.randrange(4_000))
            os.write(sys.stdout.fileno(), f"{token}\n".encode())


if __name__ == "__main__":
    main()
