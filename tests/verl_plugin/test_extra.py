"""What verl leaves undecorated: recorded while the recorder was chosen, once, and never for another backend."""

from __future__ import annotations

import abc
import asyncio
import functools
import json
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from verl_trace.verl_plugin import extra

Recorded = Callable[[], list[dict[str, Any]]]


def without_wraps(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of somebody who forgot `functools.wraps`."""

    async def inner(*args: Any, **kwargs: Any) -> Any:
        return await func(*args, **kwargs)

    return inner


def with_wraps(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as it ought to be."""
    return functools.wraps(func)(without_wraps(func))


@pytest.fixture
def base() -> Any:
    """A `BaseTool` whose subclasses are watched, as in `verl.tools.base_tool`."""

    class BaseTool:
        def __init__(self, config: Any = None) -> None:
            self.config = config

        async def execute(self, parameters: Any) -> Any:
            return parameters

    module: Any = ModuleType("base_tool")
    module.BaseTool = BaseTool
    extra.watch_tools(module)
    return BaseTool


def starts(recorded: Recorded) -> list[tuple[str, Any]]:
    """Operation and inputs of every call, in order."""
    return [(head["op"].rpartition(".<locals>.")[2], head["payload"]) for head in recorded() if head["kind"] == "start"]


def test_undecorated_tool_is_recorded(base: Any, recorded: Recorded) -> None:
    """`execute` of a subclass is recorded under its own name, and its result is the tool's."""

    class Search(base):  # type: ignore[misc]
        async def execute(self, parameters: Any) -> Any:
            return {"found": parameters}

    assert asyncio.run(Search().execute({"q": "x"})) == {"found": {"q": "x"}}
    assert starts(recorded) == [("Search.execute", {"parameters": {"q": "x"}})]
    assert [head["payload"] for head in recorded()][1] == {"found": {"q": "x"}}


@pytest.mark.parametrize("above", [lambda func: func, with_wraps, without_wraps])
def test_decorated_tool_is_recorded_once(base: Any, verl: Any, recorded: Recorded, above: Callable[[Any], Any]) -> None:
    """Where the author used verl's decorator, also below another decorator, there is the author's record only."""

    class Search(base):  # type: ignore[misc]
        @above
        @verl.rollout_trace_op  # type: ignore[untyped-decorator]
        async def execute(self, parameters: Any) -> Any:
            return parameters

    asyncio.run(Search().execute(1))
    assert starts(recorded) == [("Search.execute", {"parameters": 1})]


def test_helper_in_the_closure_is_not_the_method(base: Any, verl: Any, recorded: Recorded) -> None:
    """A method that merely uses a traced function is recorded itself, with the function's call below it."""

    class Helper:
        @verl.rollout_trace_op  # type: ignore[untyped-decorator]
        async def look(self) -> int:
            return 1

    look = Helper().look

    class Search(base):  # type: ignore[misc]
        async def execute(self, parameters: Any) -> Any:
            return await look()

    assert asyncio.run(Search().execute(1)) == 1
    assert [name for name, _ in starts(recorded)] == ["Search.execute", "Helper.look"]
    first, second = (head for head in recorded() if head["kind"] == "start")
    assert second["parent_id"] == first["id"]


def test_class_that_keeps_its_making_to_itself(base: Any, recorded: Recorded) -> None:
    """A class with an `__init_subclass__` of its own, or a method put in later, is found when it is instantiated."""

    class Closed(base):  # type: ignore[misc]
        def __init_subclass__(cls, **kwargs: Any) -> None:
            pass

    class Search(Closed):
        pass

    async def execute(self: Any, parameters: Any) -> Any:
        return parameters

    Search.execute = execute
    tool = Search()
    assert [asyncio.run(tool.execute(n)) for n in (1, 2)] == [1, 2]
    assert starts(recorded) == [("execute", {"parameters": 1}), ("execute", {"parameters": 2})]


def test_class_made_before_the_plugin(recorded: Recorded) -> None:
    """Classes that were there already are recorded too, at any depth; `__init_subclass__` still gets its arguments."""
    given: list[Any] = []

    class AgentLoopBase(abc.ABC):  # noqa: B024
        def __init_subclass__(cls, kind: str = "", **kwargs: Any) -> None:
            given.append(kind)
            super().__init_subclass__(**kwargs)

    class Middle(AgentLoopBase):
        @abc.abstractmethod
        async def run(self) -> int: ...

    class Old(Middle):
        async def run(self) -> int:
            return 1

    module: Any = ModuleType("agent_loop")
    module.AgentLoopBase = AgentLoopBase
    extra.watch_agent_loops(module)

    class New(Middle, kind="new"):
        async def run(self) -> int:
            return 2

    assert [asyncio.run(Old().run()), asyncio.run(New().run())] == [1, 2]
    assert [name for name, _ in starts(recorded)] == ["Old.run", "New.run"]
    assert given == ["", "", "new"]
    assert getattr(Middle.run, "__isabstractmethod__", False)


def test_other_backends_see_nothing(base: Any, verl: Any) -> None:
    """With a backend that is not ours nothing is recorded, and the methods do what they did."""

    class Search(base):  # type: ignore[misc]
        async def execute(self, parameters: Any) -> Any:
            return parameters

    verl.RolloutTraceConfig.init("p", "e", "mlflow")
    assert asyncio.run(Search().execute(1)) == 1
    assert verl.log == []


@pytest.fixture
def function_tool() -> Any:
    """A `FunctionTool` as verl's, watched."""

    class FunctionTool:
        def __init__(self, name: str, fn: Callable[..., Any]) -> None:
            self.name, self.fn = name, fn

        async def call(self, parameters: Any) -> Any:
            return await asyncio.to_thread(self.fn, **parameters)

    module: Any = ModuleType("function_tool")
    module.FunctionTool = FunctionTool
    extra.watch_function_tools(module)
    return FunctionTool


def test_function_tool_is_recorded_under_its_name(function_tool: Any, recorded: Recorded) -> None:
    """The tool's name is the operation, the model's arguments are the inputs, whatever they are; errors are kept."""
    tool = function_tool("shout", lambda text: text.upper())

    assert asyncio.run(tool.call({"text": "hi"})) == "HI"
    with pytest.raises(TypeError):
        asyncio.run(tool.call([1]))
    assert starts(recorded) == [("shout", {"parameters": {"text": "hi"}}), ("shout", {"parameters": [1]})]
    assert [(h["status"], h["payload"]) for h in recorded() if h["kind"] == "end"] == [
        ("success", "HI"),
        ("error", None),
    ]


def test_function_tool_of_a_careful_author(function_tool: Any, verl: Any, recorded: Recorded) -> None:
    """A tool function that is decorated already has its author's record and no other."""

    @verl.rollout_trace_op  # type: ignore[untyped-decorator]
    def look(self: int, text: str) -> str:
        return text

    assert asyncio.run(function_tool("web", look).call({"self": 1, "text": "x"})) == "x"
    assert len(starts(recorded)) == 1


@pytest.fixture
def loop(request: pytest.FixtureRequest) -> Any:
    """A `ToolAgentLoop` that answers unknown names and broken arguments by itself, watched."""

    class ToolAgentLoop:
        tools = ("known", "other")

        async def _call_tool(self, tool_call: Any, tools_kwargs: Any = None, agent_data: Any = None) -> Any:
            return f"called {tool_call.name}"

    module: Any = ModuleType("tool_agent_loop")
    module.ToolAgentLoop = ToolAgentLoop
    extra.watch_tool_calls(module)
    return ToolAgentLoop()


@pytest.mark.parametrize(
    ("name", "arguments", "active", "refused"),
    [
        ("known", "{}", None, False),
        ("known", "[1]", None, False),
        ("known", "{", None, True),
        ("known", None, None, True),
        ("unknown", "{}", None, True),
        ("other", "{}", ["known"], True),
        (["known"], "{}", None, True),
    ],
)
def test_refused_calls_are_recorded(
    loop: Any, recorded: Recorded, name: Any, arguments: Any, active: Any, refused: bool
) -> None:
    """A call that no tool will see leaves a record with what the model wrote and what it was told; others do not."""
    agent_data = SimpleNamespace() if active is None else SimpleNamespace(_active_tools=active)
    call = SimpleNamespace(name=name, arguments=arguments)

    assert asyncio.run(loop._call_tool(call, {}, agent_data)) == f"called {name}"
    expected = [("ToolAgentLoop._call_tool", {"name": name, "arguments": arguments})] if refused else []
    assert starts(recorded) == expected
    assert [head["payload"] for head in recorded()][1:] == [f"called {name}"] * refused


def test_odd_calls_are_verls(loop: Any, recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    """A call that does not look like one goes to verl unrecorded; one line says so."""

    class Odd:
        name = "known"

        @property
        def arguments(self) -> str:
            raise RuntimeError("odd")

    assert asyncio.run(loop._call_tool(Odd())) == "called known"
    assert json.dumps(starts(recorded)) == "[]"
    assert "RuntimeError: odd" in capsys.readouterr().err
