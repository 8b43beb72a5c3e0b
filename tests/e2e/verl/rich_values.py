"""A program: one traced call for each kind of value, by verl's own decorator; the backend is the first argument."""

from __future__ import annotations

import datetime
import decimal
import enum
import hashlib
import pathlib
import random
import sys
import uuid
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from pydantic import BaseModel
from verl.tools.schemas import ToolResponse
from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op


class Message(BaseModel):
    """A model with another one in it."""

    role: str = "user"
    content: Any = None
    inner: Any = None


@dataclass
class Metrics:
    """As agent loops return them."""

    generate_sequences: float = 0.25
    notes: list[str] = field(default_factory=lambda: ["a"])
    message: Any = None


class Color(enum.Enum):
    """An enum."""

    RED = "red"


class Plain:
    """An object without a form of its own."""

    def __init__(self) -> None:
        self.name, self.text = "n", "x" * 3000


Pair = namedtuple("Pair", ["left", "right"])
R = random.Random(7)
VALUES: dict[str, Any] = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**53, 2**62],
    "floats": [0.1, -0.0, 1e300, 5e-324],
    "text": "ünï\u2028\x85\x1b[31m\r\n",
    "long text": "x" * 200_000,
    "token ids": [R.randrange(150_000) for _ in range(20_000)],
    "log probs": [-R.random() for _ in range(3000)],
    "messages": [{"role": "user", "content": "hi", "tool_calls": None}] * 5,
    "tuple": (1, ("a", 2)),
    "keys": {1: "a", None: "b", 1.5: "c"},
    "ordered": OrderedDict(b=1, a={"z": []}),
    "model": Message(content=["x", 1.5], inner=Message(role="tool")),
    "dataclass": Metrics(message=Message()),
    "list of models": [Message(), Message(role="tool")],
    "datetime": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901),
    "numpy text and float": [np.str_("s"), np.float64(1.5)],
    "image": Image.frombytes("RGB", (37, 21), R.randbytes(37 * 21 * 3)),
    "gray image": Image.frombytes("L", (8, 8), R.randbytes(64)),
    "tool response": ToolResponse(text="seen", image=[Image.frombytes("RGB", (12, 9), R.randbytes(324))]),
    "nan": float("nan"),
    "infinities": [float("inf"), float("-inf"), 1.0],
    "numpy scalars": [np.int64(3), np.float32(1.5), np.bool_(True)],
    "array": np.arange(3000),
    "small array": np.array([[1, 2], [3, 4]]),
    "object array": np.array([{"role": "user", "content": "hi"}, None], dtype=object),
    "tensor": torch.arange(2000),
    "bf16": torch.tensor([0.5, 1.0], dtype=torch.bfloat16),
    "bytes": b"\xff" * 2000,
    "date": datetime.date(2026, 1, 2),
    "decimal": decimal.Decimal("1.10"),
    "path": pathlib.PurePosixPath("/a/b"),
    "uuid": uuid.UUID(int=1),
    "enum": Color.RED,
    "set": {1, 2},
    "deque": deque([1, 2]),
    "plain object": Plain(),
    "big int": 2**70,
    "namedtuple": Pair(1, "x"),
    "exception": ValueError("boom"),
}

VALUES |= {
    f"pixels of {name}": [VALUES[name].mode, hashlib.sha256(VALUES[name].tobytes()).hexdigest()]
    for name in ("image", "gray image")
}


class Probe:
    """What is traced."""

    @rollout_trace_op
    def give(self, name: str, value: Any) -> Any:
        """Return the value."""
        return {"value": value}


def main() -> None:
    """Trace every value."""
    project, experiment, backend = sys.argv[1:4]
    RolloutTraceConfig.init(project, experiment, backend, token2text=False)
    with rollout_trace_attr(step=1, sample_index=0, rollout_n=0):
        for name, value in VALUES.items():
            Probe().give(name=name, value=value)
    client = RolloutTraceConfig.get_client()
    if hasattr(client, "finish"):
        client.finish()
    if backend == "jsonl":
        import verl_trace

        verl_trace.RolloutTraceConfig.reset()


if __name__ == "__main__":
    main()
