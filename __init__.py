"""Record verl rollouts to node-local span files; read them offline; replay them into W&B Weave.

The names are those of `verl.utils.rollout_trace`: code written for verl's helpers works when only the import changes;
`with_context` beside them carries a call's place into other threads.
"""

from verl_trace.recorder import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op, with_context

__version__ = "0.1.0"

__all__ = ["RolloutTraceConfig", "__version__", "rollout_trace_attr", "rollout_trace_op", "with_context"]
