"""A program of its own for `verl-trace doctor`: looks into a Ray worker on every node, and prints what it saw as JSON.

    python -m verl_trace.commands.ray_probe [ADDRESS]

Without an address a small Ray is started for it. A process apart, so that a Ray that hangs can be given up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

__all__ = ["PREFIXES", "main"]

PREFIXES = ("VERL_TRACE_", "VERL_USE_EXTERNAL_")
# Seconds for the workers of a cluster to start and answer.
PATIENCE = 60.0


def look(prefixes: tuple[str, ...]) -> dict[str, Any]:
    """Run in a worker; stands alone, since verl-trace may not be installed there."""
    import os
    import socket
    import sys

    seen: dict[str, Any] = {
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "variables": {name: value for name, value in os.environ.items() if name.startswith(prefixes)},
        "python": sys.executable,
        "installed": None,
        "loads": None,
        "folder": None,
        "trouble": "",
    }
    try:
        import pathlib
        from importlib import metadata

        from verl_trace.recorder import read_settings

        seen["installed"] = metadata.version("verl-trace")
        folder = pathlib.Path(read_settings().folder)
        seen["folder"] = str(folder)
        try:
            existing = next(path for path in (folder, *folder.parents) if path.exists())
            if not os.access(existing, os.W_OK | os.X_OK):
                seen["trouble"] = f"{existing} cannot be written"
        except OSError as error:
            seen["trouble"] = f"{folder}: {error.strerror}"
    except Exception as error:  # noqa: BLE001
        seen["trouble"] = f"verl_trace cannot be imported: {type(error).__name__}: {error}"
    try:
        import verl  # noqa: F401

        seen["loads"] = "verl_trace.verl_plugin" in sys.modules
    except ImportError:
        # no verl here: nothing that could load it
        pass
    except Exception as error:  # noqa: BLE001
        seen["trouble"] = seen["trouble"] or f"verl cannot be imported: {type(error).__name__}: {error}"
    return seen


def main(address: str | None) -> dict[str, Any]:
    """What workers see: `expected` variables, `workers` (one a node), `way`: how the variables are carried."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    runtime_env, way = _runtime_env()
    # only now: to import the plugin is to load it, which is verl's part here
    from verl_trace.verl_plugin.ray_env import forwarded

    expected = forwarded()
    start: dict[str, Any] = {}
    if address is None:
        start = {"num_cpus": 1, "include_dashboard": False}
        # its processes would inherit them from us: what is to be seen is what comes by the runtime environment
        for name in expected:
            os.environ.pop(name, None)
    ray.init(address=address or "local", runtime_env=runtime_env, log_to_driver=False, logging_level="ERROR", **start)
    try:
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]

        def on(node: str, function: Any) -> Any:
            strategy = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
            return ray.remote(num_cpus=0, max_retries=0)(function).options(scheduling_strategy=strategy)

        looks = [on(node, look).remote(PREFIXES) for node in nodes]
        workers = ray.get(looks, timeout=PATIENCE)

        def now() -> float:
            return time.time()

        for node, worker in zip(nodes, workers, strict=True):
            # the worker that looked is warm: what is left of the way is short
            worker["ahead"] = min((_ahead(ray, on(node, now)) for _ in range(3)), key=abs)
        return {"expected": expected, "workers": workers, "way": way}
    finally:
        ray.shutdown()


def _runtime_env() -> tuple[dict[str, Any], str]:
    """The runtime environment that a training has, and who gives it."""
    try:
        from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
    except ImportError:
        from verl_trace.verl_plugin.ray_env import forwarded

        return {"env_vars": forwarded()}, "as the plugin gives them to agent-loop workers"
    return dict(get_ppo_ray_runtime_env()), "as verl's trainer gives them to its workers"


def _ahead(ray: Any, clock: Any) -> float:
    """Seconds by which the worker's clock is ahead, 0 where that is within the time that the question took."""
    before = time.time()
    there = float(ray.get(clock.remote(), timeout=PATIENCE))
    after = time.time()
    return there - after if there > after else min(0.0, there - before)


if __name__ == "__main__":
    # Ray and verl print to stdout, also from other processes: the answer has a descriptor of its own
    answer = os.dup(1)
    os.dup2(2, 1)
    os.write(answer, json.dumps(main(sys.argv[1] if len(sys.argv) > 1 else None)).encode())
