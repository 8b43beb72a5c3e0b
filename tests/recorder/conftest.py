"""A recording into a temporary folder, and its records read back with nothing but zstandard and json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from verl_trace import RolloutTraceConfig

Record = dict[str, Any]


class Recording:
    """A running recording; `records()` reads what is on disk now, `finish()` ends it first."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "exp1"

    def start(self, **options: Any) -> None:
        RolloutTraceConfig.init("me/proj", "exp1", options.pop("backend", "jsonl"), **options)

    def records(self, *kinds: str) -> list[Record]:
        lines: list[Record] = []
        for path in sorted(self.folder.glob("*.jsonl*")):
            if path.suffix == ".tmp" or (path.suffix == ".zst" and path.with_suffix("").exists()):
                # being compressed on a busy machine: the raw file holds the same
                continue
            data = path.read_bytes()
            if path.suffix == ".zst":
                data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
            assert data.endswith(b"\n")
            lines += [json.loads(line) for line in data.splitlines()]
        return [line for line in lines if not kinds or line["kind"] in kinds]

    def finish(self, *kinds: str) -> list[Record]:
        RolloutTraceConfig.reset()
        return self.records(*kinds)


@pytest.fixture
def unstarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    for name in ("VERL_TRACE_DISABLED", "VERL_TRACE_STEPS", "VERL_TRACE_DROP_FIELDS", "VERL_TRACE_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VERL_TRACE_DIR", str(tmp_path))
    monkeypatch.setenv("VERL_TRACE_MIN_FREE", "0")
    RolloutTraceConfig.reset()
    yield Recording(tmp_path)
    RolloutTraceConfig.reset()


@pytest.fixture
def recording(unstarted: Recording) -> Recording:
    unstarted.start()
    return unstarted


@pytest.fixture
def by_op() -> Callable[[list[Record]], dict[str, Record]]:
    return lambda records: {record["op"]: record for record in records}
