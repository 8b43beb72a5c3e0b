"""The same trajectories as in `behaviour`, for the recorder: `python -m ours BACKEND`."""

from __future__ import annotations

import json
import sys

BACKEND = sys.argv.pop()

import behaviour  # noqa: E402  (it reads the arguments, too)

print(json.dumps(behaviour.use(BACKEND, True), default=repr))
