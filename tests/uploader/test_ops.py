"""Op names and references are those of W&B's own client."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from verl_trace.uploader.client import Client
from verl_trace.uploader.ops import OBJECT_DIGEST, Ops, op_object_id
from verl_trace.uploader.target import resolve

NAMES = [
    "ToolAgentLoop.run",
    "ToolAgentLoop._call_tool",
    "outer.<locals>.Tool.execute",
    "a__b..c",
    "__call__",
    "Ünïcode.läuft",
    "with space/and/slash",
    "x" * 300,
]


def test_names_are_sanitised_as_the_client_does() -> None:
    """Every name becomes the object id that the client would have published it under."""
    program = (
        "import json, sys; from weave.trace.weave_client import sanitize_object_name as f;"
        "print(json.dumps([f(name) for name in json.loads(sys.argv[1])]))"
    )
    command = [sys.executable, "-c", program, json.dumps(NAMES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    assert [op_object_id(name) for name in NAMES] == json.loads(done.stdout)
    assert op_object_id("._-") == "unnamed"


def test_reference_is_the_documented_one(proxy: Any, project: str) -> None:
    """The server computes the very digests under which live traces refer to an op; each op is published once."""
    ops = Ops(Client(resolve(project)))

    first = ops.ref("ToolAgentLoop._call_tool")
    again = ops.ref("ToolAgentLoop._call_tool")

    assert first == again == f"weave:///demo/{project}/op/ToolAgentLoop-call_tool:{OBJECT_DIGEST}"
    assert len(proxy.sent("/obj/create")) == len(proxy.sent("/file/create")) == 1


def test_refused_op_gets_a_plain_name(proxy: Any, project: str, fault: Any) -> None:
    """A server that does not take the object still gets the calls, under the op's name."""
    proxy.decide = lambda path, body: fault(400) if path == "/obj/create" else None
    ops = Ops(Client(resolve(project)))

    assert ops.ref("A._run") == "A-run"
    assert ops.refused == {"A._run": "HTTP 400: as told by the test"}


@pytest.mark.parametrize("status", [503, 429])
def test_publishing_is_repeated(proxy: Any, project: str, fault: Any, status: int) -> None:
    """A hiccup while an op is published costs a moment and nothing else."""
    pending = [fault(status)]
    proxy.decide = lambda path, body: pending.pop() if pending and path == "/file/create" else None

    assert Ops(Client(resolve(project))).ref("A.run").endswith(OBJECT_DIGEST)
