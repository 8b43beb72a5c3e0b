"""Records for ever from threads and coroutines, and reports through a FIFO what it has done. Run by test_kill.py.

Reads lines `FIFO SEED` on stdin and forks one such process for each, whose pid it prints; none of them ends by itself.
A report is `s TOKEN` from inside of a call, when its start is to be on disk, and `e TOKEN` after it has returned.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading

from verl_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op


class Tool:
    """Traced methods whose output is their token."""

    def __init__(self, report: int, seed: int, name: str) -> None:
        self.report = report
        self.name = name
        self.draw = random.Random(f"{seed} {name}")
        self.count = 0

    def token(self) -> str:
        """One that no other call has."""
        self.count += 1
        return f"{os.getpid()}-{self.name}-{self.count}"

    def say(self, what: str, token: str) -> None:
        """One atomic write to the FIFO."""
        os.write(self.report, f"{what} {token}\n".encode())

    @rollout_trace_op
    def execute(self, token: str, padding: str) -> str:
        """A call without children."""
        self.say("s", token)
        return token

    @rollout_trace_op
    async def run(self, token: str) -> str:
        """A trajectory: a few calls, with other trajectories in between."""
        self.say("s", token)
        for _ in range(3):
            await asyncio.sleep(0)
            self.call()
        return token

    def call(self) -> None:
        """One reported call."""
        token = self.token()
        self.execute(token, "x" * self.draw.randrange(3_000))
        self.say("e", token)


async def trajectory(report: int, seed: int, number: int) -> None:
    """One sample's rollouts, one after another."""
    tool = Tool(report, seed, f"loop{number}")
    while True:
        with rollout_trace_attr(step=1, sample_index=number, rollout_n=0):
            token = tool.token()
            await tool.run(token)
            tool.say("e", token)


def thread(report: int, seed: int, number: int) -> None:
    """Calls outside of any loop."""
    tool = Tool(report, seed, f"thread{number}")
    while True:
        tool.call()


async def record(report: int, seed: int) -> None:
    """Two threads and four trajectories."""
    RolloutTraceConfig.init("me/proj", "exp1", "jsonl")
    for number in range(2):
        threading.Thread(target=thread, args=(report, seed, number), daemon=True).start()
    await asyncio.gather(*(trajectory(report, seed, number) for number in range(4)))


def main() -> None:
    """Until stdin ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in iter(sys.stdin.readline, ""):
        fifo, seed = line.split()
        pid = os.fork()
        if pid == 0:
            asyncio.run(record(os.open(fifo, os.O_WRONLY), int(seed)))
        print(pid, flush=True)


if __name__ == "__main__":
    main()
