"""The least that Python can do for the records of a call: what the recorder's hot path is to be measured by.

The same two lines as the recorder writes, byte for byte but for ids and times: UUIDv7, times to the microsecond, parent
and trajectory from context variables, the start before the call and the end after it. Nothing beside: no look for
credentials, NaN and media, no lock, no counts, no rotation, no care for a full or slow disk, for errors of the method,
for positional arguments, signal handlers, generators and forks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from sides import PROJECT, Side, count_calls

RUN = "least"
# How the records of a trajectory begin, and its attributes as both kinds of records have them.
_trajectory: ContextVar[tuple[str, str, str]] = ContextVar("_trajectory")
# Ids of the call and of its trace.
_call: ContextVar[tuple[str, str] | None] = ContextVar("_call", default=None)


class Least(Side):  # type: ignore[misc]
    """One function, and the file that it writes to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from orjson import dumps

        from verl_trace.recorder.identity import Identity
        from verl_trace.schemas.files import segment_file_name

        about = {"project_name": PROJECT, "experiment_name": RUN, "backend": "jsonl", "token2text": False}
        identity = Identity()
        (folder / RUN).mkdir()
        name = folder / RUN / segment_file_name(identity.writer, 0)
        self.fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self.fd, dumps(identity.header(about, 0)) + b"\n")

    @contextlib.contextmanager
    def trajectory(self, step: int, sample: int, rollout: int) -> Iterator[None]:
        numbers = f'"rollout_n":{rollout},"validate":false,"experiment_name":"{RUN}"'
        attributes = f'"attributes":{{"sample_index":{sample},"step":{step},{numbers}}}'
        head = f'"step":{step},"sample_index":{sample},{numbers},'
        token = _trajectory.set((head, f'{attributes},"inputs":', f'{attributes},"output":'))
        try:
            yield
        finally:
            _trajectory.reset(token)

    def decorate(self, func: Any) -> Any:
        from orjson import dumps

        fd, write, now, clock = self.fd, os.write, time.time_ns, time.perf_counter_ns
        get_trajectory, get_call, set_call, reset_call = _trajectory.get, _call.get, _call.set, _call.reset
        op = f'"op":"{func.__qualname__}","id":"'
        middle, count = f"-7{os.urandom(2).hex()[1:]}-8{os.urandom(2).hex()[1:]}-", itertools.count(1 << 44).__next__
        outcome, seconds = '"text":false,"status":"success","exception":null', dict[int, str]()

        def text_of(second: int) -> str:
            seconds.clear()
            return seconds.setdefault(second, time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second)))

        async def traced(self: Any, **inputs: Any) -> Any:
            started = now()
            second, rest = divmod(started // 1000, 1_000_000)
            millis = started // 1_000_000
            call = "%08x-%04x%s%x" % (millis >> 16, millis & 0xFFFF, middle, count())  # noqa: UP031
            began = "%s%06dZ" % (seconds.get(second) or text_of(second), rest)  # noqa: UP031
            head, before_inputs, before_output = get_trajectory()
            parent = get_call()
            if parent is None:
                trace = call
                core = f'{head}{op}{call}","trace_id":"{call}","parent_id":null,"started_at":"{began}",'
            else:
                trace = parent[1]
                core = f'{head}{op}{call}","trace_id":"{trace}","parent_id":"{parent[0]}","started_at":"{began}",'
            token = set_call((call, trace))
            body = dumps(inputs)
            line = f'{{"kind":"start","bytes":{len(body)},{core}{before_inputs}'
            write(fd, b"%b%b}\n" % (line.encode(), body))
            begun = clock()
            result = await func(self, **inputs)
            duration = clock() - begun
            reset_call(token)
            body = dumps(result)
            second, rest = divmod((started + duration) // 1000, 1_000_000)
            ended = "%s%06dZ" % (seconds.get(second) or text_of(second), rest)  # noqa: UP031
            told = f'"ended_at":"{ended}","duration":{duration / 1e9:.9f},{outcome},'
            line = f'{{"kind":"end","bytes":{len(body)},{core}{told}{before_output}'
            write(fd, b"%b%b}\n" % (line.encode(), body))
            return result

        return traced

    def finish(self) -> int | None:
        from verl_trace.reader import find_runs
        from verl_trace.reader.outlines import iter_outlines

        os.close(self.fd)
        (run,) = find_runs(self.folder / RUN)
        read = sum(outline.figures.calls for outline in iter_outlines(run))
        return min(read, int(count_calls(self.folder / RUN)))
