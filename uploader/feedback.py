"""`--feedback`: rewards as Weave's own feedback on the root calls, which its UI shows among a call's scores.

Feedback is of type `wandb.runnable.reward`, from an object of the project that is called `reward`, with `{"output":
<number>}`. Its id is made from the call's, so that it is recognised, asked for before it is sent, and not given twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Client
    from .result import RunReport

__all__ = ["give_feedback"]

_NAME = "reward"
_SOURCE = {"name": _NAME, "description": "what the training gave the trajectory"}
_TYPE = f"wandb.runnable.{_NAME}"
# Of what the ids are made; never to be changed.
_NAMESPACE = uuid.UUID("5a1f6c1e-9a0b-5f53-8d5c-6d2b3c1f7e10")
_AT_ONCE = 200


def give_feedback(client: Client, rewards: Sequence[tuple[str, float]], report: RunReport) -> None:
    """Give those of the rewards, (id of a root call, reward), that the server does not have.

    Raises:
        Rejected, Unreachable
    """
    source = ""
    for at in range(0, len(rewards), _AT_ONCE):
        wanted = {_id(client.project_id, call_id): (call_id, reward) for call_id, reward in rewards[at : at + _AT_ONCE]}
        there = client.feedback_ids(list(wanted))
        missing = {key: value for key, value in wanted.items() if key not in there}
        if missing and not source:
            digest = client.create_object(_NAME, _SOURCE)
            source = f"weave:///{client.project_id}/object/{_NAME}:{digest}"
        if missing:
            client.give_feedback([_feedback(client, key, *value, source) for key, value in missing.items()])
        report.feedback += len(missing)


def _id(project_id: str, call_id: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{project_id}\0{call_id}\0{_NAME}"))


def _feedback(client: Client, key: str, call_id: str, reward: float, source: str) -> dict[str, Any]:
    call = f"weave:///{client.project_id}/call/{call_id}"
    return {
        "id": key,
        "project_id": client.project_id,
        "weave_ref": call,
        "feedback_type": _TYPE,
        "runnable_ref": source,
        "payload": {"output": reward},
    }
