"""What verl's SGLang path imports of SGLang, which needs a GPU to be installed, with a script in place of the engine.

Only `sglang` itself is replaced: verl's replica, its server actor, the way to it and back are verl's own. Requests and
answers have the shapes of SGLang 0.5.10's (`GenerateReqInput`; a dict with `text`, `output_ids`, `meta_info`), and the
answers follow the script of `rollout_parts.reply`.
"""

from __future__ import annotations

import enum
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import fastapi

__version__ = "0.5.10"


def module(name: str, **content: Any) -> None:
    """Make `sglang.NAME` importable, and its parents with it."""
    parent = sys.modules[__name__]
    path = __name__
    for part in name.split("."):
        path = f"{path}.{part}"
        child = sys.modules.setdefault(path, ModuleType(path))
        child.__path__ = []
        setattr(parent, part, child)
        parent = child
    vars(parent).update(content)


@dataclass(init=False)
class ServerArgs:
    """Keeps whatever verl asks for."""

    model_path: str
    enable_metrics: bool = False
    enable_weights_cpu_backup: bool = False

    def __init__(self, **arguments: Any) -> None:
        vars(self).update(arguments)


@dataclass
class GenerateReqInput:
    """The fields that verl sets."""

    rid: str
    input_ids: list[int]
    sampling_params: dict[str, Any]
    return_logprob: bool = False
    image_data: Any = None
    video_data: Any = None


class ServerStatus(enum.Enum):
    """As verl sets it once its server listens."""

    Up = "Up"
    Starting = "Starting"


class TokenizerManager:
    """Where requests enter SGLang and answers leave it; each request is noted in the file that the plan names."""

    def __init__(self, arguments: ServerArgs) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(arguments.model_path)
        self.server_status = ServerStatus.Starting
        self.requests = Path(json.loads(Path(os.environ["VERL_E2E_PLAN"]).read_text())["requests_file"])

    async def generate_request(self, request: GenerateReqInput, _: Any) -> AsyncIterator[dict[str, Any]]:
        """The one answer to a request that asked for no stream."""
        from rollout_parts import END_OF_TURN, reply_to

        began = time.monotonic()
        with self.requests.open("a") as file:
            file.write(json.dumps({"rid": request.rid, "sampling_params": request.sampling_params}) + "\n")
        ids = self.tokenizer.encode(reply_to(self.tokenizer.decode(request.input_ids)) + END_OF_TURN)
        logprobs = [(-0.25 - position / 1000, token, None) for position, token in enumerate(ids)]
        yield {
            "text": self.tokenizer.decode(ids[:-1]),
            "output_ids": ids,
            "meta_info": {
                "id": request.rid,
                "finish_reason": {"type": "stop", "matched": ids[-1]},
                "prompt_tokens": len(request.input_ids),
                "weight_version": "default",
                "total_retractions": 0,
                "input_token_logprobs": [],
                "output_token_logprobs": logprobs if request.return_logprob else None,
                "completion_tokens": len(ids),
                "cached_tokens": 0,
                "e2e_latency": time.monotonic() - began,
            },
        }


class Engine:
    """Starts no process: the tokenizer manager answers by itself."""

    @staticmethod
    def _launch_subprocesses(server_args: ServerArgs, **functions: Any) -> tuple[Any, ...]:
        return TokenizerManager(server_args), None, {}, None


class _State:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


def nothing(*args: Any, **kwargs: Any) -> None:
    """What verl imports for occasions that no rollout of the tests has: new weights, profiles, GPUs."""


def request_class(name: str) -> type:
    """A request other than for an answer."""
    return type(name, (_State,), {})


names = ["ContinueGeneration", "PauseGeneration", "ReleaseMemoryOccupation", "ResumeMemoryOccupation"]
inputs = {f"{name}ReqInput": request_class(f"{name}ReqInput") for name in [*names, "UpdateWeightsFromTensor"]}
module("srt.server_args", ServerArgs=ServerArgs)
module("srt.managers.io_struct", GenerateReqInput=GenerateReqInput, **inputs)
module("srt.managers.tokenizer_manager", ServerStatus=ServerStatus, TokenizerManager=TokenizerManager)
module("srt.entrypoints.EngineBase", EngineBase=object)
module(
    "srt.entrypoints.engine",
    init_tokenizer_manager=nothing,
    run_scheduler_process=nothing,
    run_detokenizer_process=nothing,
)
module(
    "srt.entrypoints.http_server",
    Engine=Engine,
    ServerArgs=ServerArgs,
    _GlobalState=_State,
    app=fastapi.FastAPI(),
    launch_server=nothing,
    set_global_state=nothing,
)
utils = ["assert_pkg_version", "is_cuda", "kill_process_tree", "set_prometheus_multiproc_dir", "set_ulimit"]
module("srt.utils", MultiprocessingSerializer=object, **dict.fromkeys(utils, nothing))
module("srt.weight_sync.utils", _preprocess_tensor_for_update_weights=nothing, update_weights=nothing)
