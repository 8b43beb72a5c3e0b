"""The worker's tokenizer is there for whatever runs below one of its trajectories, and nowhere else."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest

from verl_trace.recorder.token2text import lent_tokenizer
from verl_trace.verl_plugin import tokenizers


class Worker:
    """Like verl's, as far as this goes."""

    tokenizer: Any = "the worker's"

    async def _run_agent_loop(self, fail: bool = False) -> Any:
        await asyncio.sleep(0)
        if fail:
            raise LookupError("verl's own")
        return lent_tokenizer.get()


def watched(name: str) -> tuple[Any, ModuleType]:
    """A worker of a class of its own, in a module where it has that name."""
    kind = type("Worker", (Worker,), {"_run_agent_loop": Worker._run_agent_loop})
    module = ModuleType("agent_loop")
    setattr(module, name, kind)
    tokenizers.lend(module)
    return kind(), module


@pytest.mark.parametrize("name", ["AgentLoopWorker", "AgentLoopWorkerBase"])
@pytest.mark.parametrize("active", [True, False])
def test_lent_while_recording(monkeypatch: pytest.MonkeyPatch, name: str, active: bool) -> None:
    """Below a trajectory it is the worker's, after it nothing is left; without a recording nothing is lent."""
    monkeypatch.setattr(tokenizers, "recording", lambda: active)
    worker, _ = watched(name)

    async def main() -> tuple[Any, Any]:
        return await worker._run_agent_loop(), lent_tokenizer.get()

    assert asyncio.run(main()) == ("the worker's" if active else None, None)


def test_exceptions_are_verls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the trajectory raises arrives, and the tokenizer is taken back."""
    monkeypatch.setattr(tokenizers, "recording", lambda: True)
    worker, _ = watched("AgentLoopWorker")

    async def main() -> Any:
        with pytest.raises(LookupError, match="verl's own"):
            await worker._run_agent_loop(fail=True)
        return lent_tokenizer.get()

    assert asyncio.run(main()) is None


def test_an_actor_class_is_left_alone() -> None:
    """verl 0.5: the worker is an actor class already."""
    module = ModuleType("agent_loop")
    module.AgentLoopWorker = actor = object()  # type: ignore[attr-defined]
    tokenizers.lend(module)
    assert module.AgentLoopWorker is actor
