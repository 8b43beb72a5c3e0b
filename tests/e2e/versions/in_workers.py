"""What Ray's workers have of the driver's settings, started through the runtime environment that verl gives to Ray."""

from __future__ import annotations

import json
import os
from typing import Any

import ray
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env


@ray.remote(num_cpus=1)
def ask() -> dict[str, Any]:
    """Asked before anything of verl was imported by the task itself."""
    import verl.protocol
    import verl.utils.rollout_trace as trace

    chosen = verl.protocol.DataProto.select_idxs
    return {
        "decorator": trace.rollout_trace_op.__globals__["__name__"],
        "named method": chosen.__globals__["__name__"],
        "variables": {name: value for name, value in os.environ.items() if name.startswith("VERL_TRACE_")},
    }


ray.init(
    address="local",
    num_cpus=1,
    include_dashboard=False,
    object_store_memory=100 << 20,
    log_to_driver=False,
    runtime_env=get_ppo_ray_runtime_env(),
)
answer = ray.get(ask.remote())
ray.shutdown()
print(json.dumps(answer))
