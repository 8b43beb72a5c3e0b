"""How an unmodified verl finds the recorder: importing this package is all that verl does, and all that is needed.

Invariants
1. Importing never raises, and without verl it changes nothing that anybody could notice.
2. With VERL_TRACE_DISABLED=1 every function of verl stays the object it was.
3. Unless the recorder was chosen (`rollout_trace`), each replaced function calls verl's own.
4. A verl that does not look as expected is left as it is, with one warning.

`hooks` says what is watched, `import_hook` how; `rollout_trace` replaces the decorators, `agent_loop` adds what the
worker of verl does not say, `extra` and `ops` record what nobody decorated, with `standin`; `ray_env` carries settings
to the workers, `offline` and `folder` decide, `status` tells people.
"""

from ..recorder.counters import warn_once
from .status import Status, status

__all__ = ["Status", "load", "status"]

try:
    from .hooks import install

    install()
except Exception as error:  # noqa: BLE001
    warn_once("plugin", f"the verl plugin is off: {type(error).__name__}: {error}; verl runs unchanged")


def load() -> None:
    """Nothing more than the import: a name for Ray's `worker_process_setup_hook`."""
