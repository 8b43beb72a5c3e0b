"""The public API: the names and signatures of verl 0.9.1's `verl.utils.rollout_trace`.

Code written for verl's helpers works when only the import changes. Here `init` with any backend name records, and
`get_backend` returns that name; only `backend=None` records nothing, as in verl.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar, Token

from ..schemas.interrupts import pass_on
from . import session as sessions
from .context import Place, TraceAttributes, current_attributes, current_span, expected_place, extra_attributes, tracing
from .counters import warn_once
from .decorator import rollout_trace_op
from .spans import Op, Span, begin, encode_attributes, record_skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
else:
    # pydantic and the like ask what the annotations of public names mean
    Any = object

__all__ = ["RolloutTraceConfig", "rollout_trace_attr", "rollout_trace_op"]


class RolloutTraceConfig:
    """Configuration of the recording, one per process; `init` starts it, `reset` ends it.

    Attributes:
        backend: the name that `init` was given; None before `init`.
        client: always None; there is no client while recording.
        token2text: whether token ids are decoded to text beside the record.
        project_name: Weave project, `project` or `entity/project`, that an upload goes to.
        experiment_name: name of the run within the project; names the folder.
        max_samples_per_step_per_worker: sampling limit, applied by whoever calls `rollout_trace_attr(trace=False)`.
    """

    _instance: RolloutTraceConfig | None = None

    backend: str | None = None
    client: object | None = None
    token2text: bool = False
    project_name: str | None = None
    experiment_name: str | None = None
    max_samples_per_step_per_worker: int | None = None
    _initialized: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> RolloutTraceConfig:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance._initialized = False
        return cls._instance

    @classmethod
    def get_instance(cls) -> RolloutTraceConfig:
        """The one instance, made on first use."""
        return cls()

    @classmethod
    def init(
        cls,
        project_name: str,
        experiment_name: str,
        backend: str | None,
        token2text: bool = False,
        max_samples_per_step_per_worker: int | None = None,
    ) -> None:
        """Start recording. The first call counts; later ones change nothing until `reset`."""
        config = cls.get_instance()
        if config._initialized:
            return
        config.backend = backend
        config.token2text = token2text
        config.project_name = project_name
        config.experiment_name = experiment_name
        config.max_samples_per_step_per_worker = max_samples_per_step_per_worker
        config._initialized = True
        if backend is not None:
            sessions.start(
                project_name,
                experiment_name,
                backend,
                token2text=token2text,
                max_samples_per_step_per_worker=max_samples_per_step_per_worker,
            )

    @classmethod
    def get_backend(cls) -> str | None:
        """The backend name given to `init`, None before it."""
        return cls.get_instance().backend

    @classmethod
    def get_client(cls) -> object | None:
        """None: while recording there is no client."""
        return cls.get_instance().client

    @classmethod
    def enable_token2text(cls) -> bool | None:
        """Whether token ids are decoded to text beside the record."""
        return cls.get_instance().token2text

    @classmethod
    def reset(cls) -> None:
        """End the recording (its files are closed and sealed) and forget the configuration."""
        cls._instance = None
        sessions.stop()


@contextlib.contextmanager
def rollout_trace_attr(
    sample_index: Any = None,
    step: int | None = None,
    rollout_n: int | None = None,
    name: str = "rollout_trace",
    validate: bool = False,
    trace: bool = True,
) -> Iterator[None]:
    """Give all calls inside the attributes of one trajectory.

    Args:
        sample_index: index of the sample in the data set; any JSON value.
        step: training step.
        rollout_n: number of this rollout among those of its sample (GRPO).
        name: name of the trajectory; shown where one was left out.
        validate: whether this is a validation rollout.
        trace: False leaves the trajectory out, with every call in it; a `skip` record says so.
    """
    session = sessions.current()
    if session is None:
        yield
        return
    values: dict[str, Any] = {}
    for key, value in (("sample_index", sample_index), ("step", step), ("rollout_n", rollout_n)):
        if value is not None:
            values[key] = value
    values["validate"] = validate
    values["experiment_name"] = session.experiment_name
    values.update(extra_attributes.get() or {})
    reason = "" if trace else "sampling"
    if not reason and session.settings.steps is not None and step not in session.settings.steps:
        reason = "VERL_TRACE_STEPS"
    if reason:
        if tracing.get():
            record_skip(session, name, values, reason)
        with _set(tracing, False):
            yield
        return
    encoded: TraceAttributes | None
    place = expected_place.get()
    if place is None or place.attributes is not None:
        # nobody waits for this block, or for the one around it
        place = Place()
    try:
        # the place holds a copy that does not hold it: a cycle would wait for the collector
        place.attributes = encode_attributes(values, session.experiment_name)
        encoded = place.attributes.within(place)
    except Exception as error:  # noqa: BLE001
        pass_on(error)
        warn_once("attributes", f"attributes of a trajectory could not be encoded: {type(error).__name__}: {error}")
        encoded = current_attributes.get()
    try:
        with _set(current_attributes, encoded):
            if session.settings.tree == "trajectory" and current_span.get() is None:
                with _root(name, place):
                    yield
            else:
                yield
    finally:
        if encoded is not None and encoded.repeats is not None:
            encoded.repeats.clear()


def _trajectory() -> None:
    """What stands for the block where it is a call of its own."""


@functools.lru_cache(maxsize=16)
def _root_op(name: str) -> Op:
    return Op(_trajectory, name, skip=0)


@contextlib.contextmanager
def _root(name: str, place: Place) -> Iterator[None]:
    """A root call around the whole block (VERL_TRACE_TREE=trajectory); its output is the scores told of it."""
    span: Span | None = begin(_root_op(name), (), {})
    if span is None:
        yield
        return
    try:
        try:
            yield
        except BaseException as error:
            span.fail(error)
            raise
        span.finish(dict(place.scores) or None)
    finally:
        span.leave_call()


@contextlib.contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    before = variable.get()
    token: Token[Any] | None = None
    try:
        token = variable.set(value)
        yield
    finally:
        if token is None:
            # a signal handler raised before it was stored
            variable.set(before)
        else:
            try:  # noqa: SIM105  # a signal handler may raise in the first line of any function
                variable.reset(token)
            except ValueError:
                # left in another context (an abandoned generator): that context was never changed
                pass
