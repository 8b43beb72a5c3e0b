"""Recording inside a rollout process: decorators -> lines -> one append each -> segments on the local disk.

Invariants
1. The traced call returns and raises exactly what it would have; trouble of ours is one warning and a count.
2. When a traced call has returned, its record is in the page cache: SIGKILL of the process does not lose it.
3. On the caller's thread: no network, no waiting for a disk beyond the append, no lock but around that append.
4. Threads and files belong to one pid; a forked child gets its own.

A call's way: `rollout_trace` (decorator) -> `spans` (records) with `arguments`, `context`, `ids`, `token2text` and the
values of `schemas` -> `appender` (append). What is known beside the calls: `score`; in other processes: `propagation`.
Beside it: `writer` and `segment` (files), `background` and `sealer` (threads), `sealing`, `leftovers` (of dead
processes), `limits`, `locking`, `mounts` (what outlives the node), `backlog` (stalled disk), `session` (start, stop),
`identity` (header), `loading` (of modules, later).

Commands and the collector import from here, and from `settings`, `leftovers` and `mounts`, which training does not need
at its start: what is imported here is loaded by `import verl_trace`.
"""

from .context import with_context
from .decorator import is_traced
from .identity import node_name
from .propagation import TraceContext, current_context, use_context
from .rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
from .score import record_score
from .settings import Settings, disabled, read_settings

__all__ = [
    "RolloutTraceConfig",
    "Settings",
    "TraceContext",
    "current_context",
    "disabled",
    "is_traced",
    "node_name",
    "read_settings",
    "record_score",
    "rollout_trace_attr",
    "rollout_trace_op",
    "use_context",
    "with_context",
]
