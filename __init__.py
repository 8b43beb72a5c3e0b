"""Record verl rollouts to node-local span files; read them offline; replay them into W&B Weave.

The names are those of `verl.utils.rollout_trace`: code written for verl's helpers works when only the import changes;
`with_context` beside them carries a call's place into other threads, `current_context` and `use_context` into other
processes; `record_score` tells a trajectory's reward.
"""

from verl_trace.recorder import (
    RolloutTraceConfig,
    TraceContext,
    current_context,
    record_score,
    rollout_trace_attr,
    rollout_trace_op,
    use_context,
    with_context,
)

__version__ = "0.1.0"

__all__ = [
    "RolloutTraceConfig",
    "TraceContext",
    "__version__",
    "current_context",
    "record_score",
    "rollout_trace_attr",
    "rollout_trace_op",
    "use_context",
    "with_context",
]
