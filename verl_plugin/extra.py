"""What verl leaves undecorated but people look for in a trajectory. `VERL_TRACE_EXTRA=0` leaves it out.

- `execute` of tools and `run` of agent loops whose author did not decorate them (verl's own before 0.8 included)
- tools that are plain functions (`@function_tool`), under the tool's name, with the model's arguments as inputs
- calls that no tool ever saw: an unknown name, or arguments that are no JSON, under `ToolAgentLoop._call_tool`

Only the recorder sees any of it; every other backend gets what verl gives it.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import Any

from .. import recorder
from ..recorder.counters import warn_once
from .rollout_trace import recording
from .standin import is_traced, record_only
from .tool_actors import in_tool

__all__ = ["VARIABLE", "switched_on", "watch_agent_loops", "watch_function_tools", "watch_tool_calls", "watch_tools"]

VARIABLE = "VERL_TRACE_EXTRA"
_OFF = frozenset({"0", "false", "no", "off"})


def switched_on(environ: Mapping[str, str] | None = None) -> bool:
    """Whether VERL_TRACE_EXTRA leaves these calls in."""
    environ = os.environ if environ is None else environ
    return environ.get(VARIABLE, "").strip().lower() not in _OFF


def watch_tools(module: ModuleType) -> None:
    """Record `execute` of every subclass of `BaseTool` in `verl.tools.base_tool`, which has just been executed."""
    _watch(module.BaseTool, "execute")


def watch_agent_loops(module: ModuleType) -> None:
    """Record `run` of every subclass of `AgentLoopBase` in verl's agent-loop module, which has just been executed."""
    _watch(module.AgentLoopBase, "run")


def _watch(base: Any, name: str) -> None:
    """See to it that method `name` is recorded in every subclass of `base`, those to come included.

    Twice, because neither is certain: when a class is made (which its own `__init_subclass__` may keep from us), and
    when it is instantiated (its methods may have been put there later, as where a class travels by value).
    """
    own, init = base.__dict__.get("__init_subclass__"), base.__init__

    def hooked_init_subclass(cls: Any, /, **kwargs: Any) -> None:
        if own is not None:
            own.__func__(cls, **kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)
        _record_method(cls, base, name)

    @functools.wraps(init)
    def hooked_init(self: Any, *args: Any, **kwargs: Any) -> None:
        _record_method(type(self), base, name)
        init(self, *args, **kwargs)

    base.__init_subclass__ = classmethod(hooked_init_subclass)
    base.__init__ = hooked_init
    waiting = list(base.__subclasses__())
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        _record_method(cls, base, name)


def _record_method(cls: Any, base: Any, name: str) -> None:
    """Replace the method in `cls` and its bases below `base`, wherever it is a coroutine function not yet recorded."""
    try:
        for owner in cls.__mro__[: cls.__mro__.index(base)]:
            func = owner.__dict__.get(name)
            if not inspect.iscoroutinefunction(func) or getattr(func, "__isabstractmethod__", False):
                continue
            if not is_traced(func, name):
                setattr(owner, name, record_only(func))
    except Exception as error:  # noqa: BLE001
        warn_once(f"extra-{cls!r}", f"{name} of {cls!r} is not recorded: {type(error).__name__}: {error}")


class _Pending:
    """A call that is about to be made; its recorded method makes it and has the arguments for the record alone."""

    def __init__(self, make: Callable[[], Awaitable[Any]]) -> None:
        self._make = make


def watch_function_tools(module: ModuleType) -> None:
    """Record calls of plain functions as tools, in `verl.tools.function_tool`, which has just been executed."""
    original = module.FunctionTool.call
    kinds: dict[str, Any] = {}

    @functools.wraps(original)
    async def call(self: Any, parameters: Any) -> Any:
        if not recording() or is_traced(self.fn, self.name):
            return await original(self, parameters)
        kind = kinds.get(self.name) or kinds.setdefault(self.name, _tool(self.name))
        return await kind(lambda: original(self, parameters)).call(parameters)

    module.FunctionTool.call = call


def _tool(name: str) -> Any:
    """The `_Pending` class whose method `call` is recorded under the tool's name, with what the model sent."""

    async def call(self: Any, parameters: Any) -> Any:
        return await self._make()

    call.__qualname__ = name
    return type("_Tool", (_Pending,), {"call": recorder.rollout_trace_op(call)})


def watch_tool_calls(module: ModuleType) -> None:
    """Record the calls that `ToolAgentLoop._call_tool` refuses, in verl's tool agent, which has just been executed."""
    original = module.ToolAgentLoop._call_tool

    async def refuse(self: Any, name: Any, arguments: Any) -> Any:
        return await self._make()

    refuse.__qualname__ = original.__qualname__
    kind: Any = type("_Refused", (_Pending,), {"call": recorder.rollout_trace_op(refuse)})

    @functools.wraps(original)
    async def call_tool(self: Any, tool_call: Any, *args: Any, **kwargs: Any) -> Any:
        if not recording():
            return await original(self, tool_call, *args, **kwargs)
        if not _refused(self, tool_call, args, kwargs):
            with in_tool():
                return await original(self, tool_call, *args, **kwargs)
        pending = kind(lambda: original(self, tool_call, *args, **kwargs))
        return await pending.call(tool_call.name, tool_call.arguments)

    module.ToolAgentLoop._call_tool = call_tool


def _refused(loop: Any, tool_call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether verl will find no tool of that name, or no arguments in the text that the model wrote."""
    try:
        agent_data = kwargs.get("agent_data", args[1] if len(args) > 1 else None)
        if tool_call.name not in getattr(agent_data, "_active_tools", loop.tools):
            return True
        json.loads(tool_call.arguments)
    except (TypeError, ValueError):
        return True
    except Exception as error:  # noqa: BLE001
        warn_once("refused", f"a tool call cannot be looked at: {type(error).__name__}: {error}; verl goes on")
    return False
