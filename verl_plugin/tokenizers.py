"""A tokenizer for verl's client, which has none before 0.9: without one, token2text leaves each turn as bare ids.

The worker's own tokenizer is lent to whatever runs below a trajectory and has none of its own. No object of verl is
changed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from ..recorder.token2text import lent_tokenizer
from .rollout_trace import recording

__all__ = ["lend"]


def lend(module: ModuleType) -> None:
    """Wrap `_run_agent_loop` of verl's agent-loop module, which has just been executed."""
    worker: Any = getattr(module, "AgentLoopWorkerBase", None) or module.AgentLoopWorker
    is_class = inspect.isclass(worker)
    if not is_class:
        # in 0.5 it is an actor class already, and its client answers with a bare list, which has no text
        return
    worker._run_agent_loop = _lending(worker.__dict__["_run_agent_loop"])


def _lending(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(original)
    async def run_agent_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recording():
            return await original(self, *args, **kwargs)
        token = lent_tokenizer.set(getattr(self, "tokenizer", None))
        try:
            return await original(self, *args, **kwargs)
        finally:
            lent_tokenizer.reset(token)

    return run_agent_loop
