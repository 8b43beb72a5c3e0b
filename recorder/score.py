"""What is known of a trajectory beside its calls: rewards and their kin, each a `score` record of its own.

The public `record_score` and what integrations use, `write_scores`. As safe as all recording: nothing raises into the
caller, an odd value costs that value alone, and what cannot be attributed is counted.
"""

from __future__ import annotations

import re
import time

from ..schemas.interrupts import pass_on
from ..schemas.objects import exception_message
from ..schemas.values import encode
from . import session as sessions
from .context import Place, TraceAttributes, current_attributes, current_span, tracing
from .counters import warn_once
from .ids import new_id, timestamp
from .propagation import TraceContext
from .session import Session
from .spans import no_attributes, without

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
else:
    # pydantic and the like ask what the annotations of public names mean
    Any = object

__all__ = ["FAILED", "PARTIAL", "SCORED", "Join", "record_score", "write_scores"]

# Whether more is to come: the reward is known; it could not be computed; somebody else will tell it.
SCORED, FAILED, PARTIAL = "scored", "failed", "partial"
_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z"
_TRACEPARENT_TRACE = slice(3, 35)


class Join:
    """By what a score finds its trajectory, and the trajectory its group; None where not known.

    Attributes:
        uid: verl's name of the group.
        session: number of the rollout within the group, as the default trainer counts.
        row: verl's own number of the row, which stays with it (its `priority`).
        response: 16 hex digits of a hash over prompt and response ids.
        group_size: how many rollouts the group is to have.
    """

    __slots__ = ("group_size", "response", "row", "session", "uid")

    def __init__(
        self,
        uid: str | None = None,
        session: int | None = None,
        row: int | None = None,
        response: str | None = None,
        group_size: int | None = None,
    ) -> None:
        self.uid = uid
        self.session = session
        self.row = row
        self.response = response
        self.group_size = group_size

    def answering(self, response: str | None) -> Join:
        """The same with the hash of an answer."""
        return Join(self.uid, self.session, self.row, response, self.group_size)


def record_score(name: str, value: Any, *, trajectory: str | TraceContext | None = None) -> None:
    """Record a score of a trajectory, such as `record_score("reward", 1.0)`.

    `reward` is the name that listings, filters and groups use. Told twice, the later value counts.

    Args:
        name: any text.
        value: any value; numbers can be sorted by after an upload.
        trajectory: the trajectory's id (its root call's `trace_id`) or context. Default: the one that this code runs
            in: its traced call, else the root call begun last in the surrounding `rollout_trace_attr`.
    """
    session = sessions.current()
    if session is None:
        return
    try:
        if trajectory is None and not tracing.get():
            return
        if isinstance(trajectory, TraceContext) and not trajectory.traced:
            return
        trace, place, trace_id = _here() if trajectory is None else _there(trajectory)
        if trace_id is None:
            session.counters.drop("score of no trajectory")
            where = "outside of any trajectory" if trajectory is None else f"trajectory={trajectory!r:.60} is no id"
            warn_once("score-nowhere", f"record_score({name!r:.60}, …): {where}; it is not recorded")
            return
        if place is not None:
            place.scores[str(name)] = value
        write_scores(session, {str(name): value}, source="user", trace=trace, trace_id=trace_id)
    except Exception as error:  # noqa: BLE001
        pass_on(error)
        session.counters.drop("internal error scoring")
        warn_once("score", f"a score could not be recorded: {type(error).__name__}: {error}; the caller goes on")


def _here() -> tuple[TraceAttributes | None, Place | None, str | None]:
    trace, where = current_attributes.get(), current_span.get()
    place = trace.place if trace is not None else None
    if where is None and place is not None:
        where = place.root
    return trace, place, None if where is None else where.trace_id


def _there(trajectory: str | TraceContext) -> tuple[TraceAttributes | None, None, str | None]:
    if isinstance(trajectory, TraceContext):
        return trajectory.attributes(), None, trajectory.trace_id or None
    text = str(trajectory).strip().lower()
    digits = text[_TRACEPARENT_TRACE] if text.startswith("00-") else text.replace("-", "")
    text = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    return None, None, text if re.match(_ID, text) else None


def write_scores(
    session: Session,
    scores: dict[str, Any],
    *,
    source: str,
    trace: TraceAttributes | None = None,
    trace_id: str | None = None,
    join: Join = Join(),  # noqa: B008
    status: str | None = None,
    error: BaseException | None = None,
    now: int | None = None,
) -> None:
    """Append one `score` record.

    Args:
        session: the recording.
        scores: names and values; `reward` None means that it is not known.
        source: who computed them: `agent_loop`, `reward_worker`, `trainer` or `user`.
        trace: the trajectory's attributes; None where they are not known here.
        trace_id: the trajectory; None where a reader has to find it by `join`.
        join: what else names the trajectory.
        status: SCORED, FAILED or PARTIAL; by default what `scores` and `error` say.
        error: what scoring raised.
        now: the time to record, in ns; the same for all rows of a batch. Default: this moment.
    """
    trace = no_attributes(session) if trace is None else trace
    now = time.time_ns() if now is None else now
    if status is None:
        status = FAILED if error is not None else PARTIAL if scores.get("reward") is None else SCORED
    if session.settings.drop_fields:
        scores = without(scores, session.settings.drop_fields)
    payload = _payload(scores)
    uid = join.uid if join.uid is not None else trace.values.get("uid")
    exception = None if error is None else {"type": type(error).__name__, "message": exception_message(error)}
    session.append(
        b"".join(
            (
                b'{"kind":"score","bytes":%d,' % len(payload),
                trace.head,
                f'"source":"{source}","status":"{status}","id":"{new_id(now)}",'.encode(),
                b'"trace_id":' + encode(trace_id) + b',"uid":' + encode(uid),
                b',"session":' + encode(join.session) + b',"row":' + encode(join.row),
                b',"response":' + encode(join.response) + b',"group_size":' + encode(join.group_size),
                f',"recorded_at":"{timestamp(now)}","exception":'.encode() + encode(exception),
                b',"scores":',
                payload,
                b"}\n",
            )
        )
    )


def _payload(scores: dict[str, Any]) -> bytes:
    """The scores as a JSON object, each value encoded for itself."""
    parts = []
    for name, value in scores.items():
        extras = name == "reward_extra_info" and type(value) is dict
        parts.append(encode(str(name)) + b":" + (_payload(value) if extras else _value(value)))
    return b"{" + b",".join(parts) + b"}"


def _value(value: Any) -> bytes:
    try:
        return encode(value)
    except Exception as error:  # noqa: BLE001
        pass_on(error)
        return encode({"_omitted": f"{type(error).__name__}", "_type": type(value).__name__, "size": None})
