"""Where a run goes, and whether this key is let in there: the W&B API and the trace server are asked at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future

from .client import Client
from .target import Target, name_target

__all__ = ["open_target"]


def open_target(recorded: str | None, *, entity: str | None, project: str | None, max_wait: float) -> Target:
    """The Weave project of a run, made where it does not exist, on a trace server that answers (see `target.resolve`).

    Raises:
        MissingExtra, CannotStart: nothing can be sent; what the W&B API says comes first.
    """
    named = name_target(recorded, entity=entity, project=project, max_wait=max_wait)
    client = Client(named.target, max_wait=max_wait)
    answer = _beside(client.check)
    with contextlib.ExitStack() as unwanted:
        # whatever is still under way when it is left
        unwanted.callback(named.target.http.close)
        unwanted.callback(client.stop.set)
        target = named.made()
        if target is named.target:
            answer.result()
            unwanted.pop_all()
            return target
    # the answer is about a project that is called otherwise, or was not there yet
    Client(target, max_wait=max_wait).check()
    return target


def _beside(question: Callable[[], None]) -> Future[None]:
    """Ask in a thread of its own, which keeps nobody from ending."""
    answer: Future[None] = Future()

    def ask() -> None:
        try:
            question()
        except BaseException as error:  # noqa: BLE001
            # raised where the answer is wanted
            answer.set_exception(error)
        else:
            answer.set_result(None)

    threading.Thread(target=ask, name="upload-access", daemon=True).start()
    return answer
