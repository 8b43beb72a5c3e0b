"""Stand-ins for verl's decorators; each hands over to verl's own unless the recorder was chosen.

`RolloutTraceConfig.init` chooses: backend `jsonl`, and `weave` while W&B is offline, are recorded; everything else is
verl's. The configuration object stays verl's, so that code which asks it (`get_backend`, `_initialized`) sees what it
would see without us.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import recorder
from ..recorder import session as sessions
from ..recorder.context import current_span
from ..recorder.counters import warn_once
from ..recorder.session import Session
from .folder import pin_folder
from .offline import decide

__all__ = ["adopt", "chosen", "recording", "replace", "visit"]

# Not on the class or the module of verl: both must stay what they are.
_chosen = False
# In a process where verl traces nothing: calls of trajectories of other processes are recorded all the same.
_visited = False
_verl_op: Callable[[Any], Any] | None = None
_backends = frozenset({"jsonl", "weave"})


def chosen() -> bool:
    """Whether verl's configuration was initialised for the recorder, or this call belongs to a trajectory elsewhere."""
    return _chosen or (_visited and current_span.get() is not None)


def recording() -> bool:
    """Whether verl was initialised for the recorder and a recording runs."""
    return _chosen and sessions.current() is not None


def visit() -> None:
    """From now on record calls that belong to a trajectory of another process, unless verl traces here by itself."""
    global _visited
    module = sys.modules.get("verl.utils.rollout_trace")
    _visited = module is None or module.RolloutTraceConfig.get_instance().backend is None


def adopt(project_name: str, experiment_name: str, backend: object) -> Session | None:
    """A recording for what this process knows of other processes' trajectories; None where that is not ours to do.

    verl's configuration here stays as it is, and no call of this process is recorded for it.
    """
    session = sessions.current()
    if session is None and _is_ours(backend):
        pin_folder()
        session = sessions.start(project_name, experiment_name, str(backend))
    return session


def replace(module: ModuleType, backends: frozenset[str] = _backends) -> None:
    """Put the stand-ins into `verl.utils.rollout_trace`; none but `backends` are ever recorded."""
    global _verl_op, _backends
    config = module.RolloutTraceConfig
    own_op, own_attr = module.rollout_trace_op, module.rollout_trace_attr
    init, reset = _init(config.__dict__["init"].__func__), _reset(config.__dict__["reset"].__func__)
    # nothing above this line has changed anything, so a verl that looks different is left whole
    _verl_op, _backends = own_op, backends
    module.rollout_trace_op = functools.wraps(own_op)(_rollout_trace_op)  # type: ignore[attr-defined]
    module.rollout_trace_attr = _attr(own_attr)  # type: ignore[attr-defined]
    config.init = classmethod(init)
    config.reset = classmethod(reset)


class _Forms:
    """The two forms of a decorated function, each made on first use.

    A pickle holds only the function: both forms refer to context variables, which cannot be pickled, and classes that
    a program defines itself travel to Ray's workers by value.
    """

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func

    def __reduce__(self) -> tuple[type[_Forms], tuple[Callable[..., Any]]]:
        return (_Forms, (self.func,))

    @functools.cached_property
    def recorded(self) -> Callable[..., Any]:
        """`func`, recorded."""
        try:
            return recorder.rollout_trace_op(self.func)
        except Exception as error:  # noqa: BLE001
            warn_once(f"decorate-{self.func!r}", f"{self.func!r} is not recorded: {type(error).__name__}: {error}")
            return self.func

    @functools.cached_property
    def verl(self) -> Callable[..., Any]:
        """`func`, decorated by verl's own decorator."""
        if _verl_op is None:
            return self.func
        form: Callable[..., Any] = _verl_op(self.func)
        return form


def _rollout_trace_op(func: Any) -> Any:
    forms = _Forms(func)

    if inspect.iscoroutinefunction(func):

        @functools.wraps(func)
        async def traced_async(*args: Any, **kwargs: Any) -> Any:
            return await (forms.recorded if chosen() else forms.verl)(*args, **kwargs)

        return traced_async

    @functools.wraps(func)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return (forms.recorded if chosen() else forms.verl)(*args, **kwargs)

    return traced


def _attr(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def rollout_trace_attr(*args: Any, **kwargs: Any) -> Any:
        return (recorder.rollout_trace_attr if chosen() else original)(*args, **kwargs)

    return rollout_trace_attr


def _init(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(cls: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(cls, *args, **kwargs)
        except TypeError:
            return original(cls, *args, **kwargs)
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        if cls.get_instance()._initialized:
            return None
        if not _is_ours(given.get("backend")):
            _release()
            return original(cls, *args, **kwargs)
        _choose(cls.get_instance(), given)
        return None

    return init


def _reset(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def reset(cls: Any) -> None:
        original(cls)
        _release()

    return reset


def _is_ours(backend: object) -> bool:
    if backend not in _backends:
        return False
    try:
        return backend != "weave" or decide().offline
    except Exception as error:  # noqa: BLE001
        # a user without a home folder, for one
        warn_once("offline", f"is W&B offline? {type(error).__name__}: {error}; backend=weave stays verl's own")
        return False


def _choose(config: Any, given: dict[str, Any]) -> None:
    """Start the recorder and fill verl's configuration as verl would, without a client."""
    global _chosen
    for name, value in given.items():
        setattr(config, name, value)
    config.client = None
    config._initialized = True
    _chosen = True
    try:
        pin_folder()
    except Exception as error:  # noqa: BLE001
        # a current folder that is gone, a user without a home folder: `start` says what that means for the recording
        warn_once("folder", f"no folder to record to: {type(error).__name__}: {error}; set VERL_TRACE_DIR")
    sessions.start(
        given["project_name"],
        given["experiment_name"],
        given["backend"],
        token2text=bool(given.get("token2text", False)),
        max_samples_per_step_per_worker=given.get("max_samples_per_step_per_worker"),
    )


def _release() -> None:
    global _chosen
    if _chosen:
        _chosen = False
        sessions.stop()
