"""A Ray cluster that was there before the driver: prints its address, ends when its input does."""

from __future__ import annotations

import sys

import ray

# verl books a GPU for each server of a model; this one is a number in Ray's books
context = ray.init(
    address="local",
    num_cpus=16,
    num_gpus=1,
    include_dashboard=False,
    object_store_memory=256 << 20,
    log_to_driver=False,
)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
ray.shutdown()
