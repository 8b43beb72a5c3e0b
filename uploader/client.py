"""Weave's HTTP protocol: what is asked of the server, and what happens when it does not answer as hoped.

answer                          what we do
2xx                             done
429, 5xx, no connection         wait (exponential, jittered, Retry-After) and try again, for `max_wait` seconds in all
… after calls were sent         ask first which of them arrived: a lost answer must not store a call twice
400, 413, 422                   halve the batch until the refused call stands alone; its neighbours arrive
500, again and again            the same: one call may be what the server cannot digest
404 on the v2 route             an older server: send starts and ends by /call/upsert_batch, and say so
401, 403                        give up: nothing else will succeed
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ..schemas.errors import CannotStart, Rejected
from .payload import Encoded
from .target import Target
from .transport import Http, Patience, Refusal, Transient, Unreachable

__all__ = ["Client", "Outcome", "Unreachable"]

# The server takes at most 1000 ids in a filter.
IDS_PER_QUERY = 500
# So many answers of 500 in a row are no hiccup but this batch.
SERVER_ERRORS = 3


@dataclass
class Outcome:
    """What became of a batch."""

    stored: list[Encoded] = field(default_factory=list)
    refused: list[tuple[Encoded, str]] = field(default_factory=list)


class Client:
    """One Weave project. May be used by several threads.

    `max_wait`: seconds for which one request may fail before `Unreachable` is raised. `stop`: when set, ends every wait
    at once.
    """

    def __init__(self, target: Target, *, max_wait: float = 300.0, stop: threading.Event | None = None) -> None:
        self.project_id = target.project_id
        self._complete_path = f"/v2/{quote(target.entity, safe='')}/{quote(target.project, safe='')}/calls/complete"
        self._http = Http(target)
        self._max_wait = max_wait
        self.stop = stop or threading.Event()
        self._complete_works = False
        self.legacy = False

    def disconnect(self) -> None:
        """Close the connection of the calling thread."""
        self._http.close()

    def check(self) -> None:
        """One cheap question, so that a wrong key or a host that is down is known before anything is read.

        Raises:
            CannotStart: in words for the user.
        """
        try:
            self._http.post_json("/calls/query_stats", {"project_id": self.project_id, "limit": 1})
        except Transient as error:
            raise CannotStart(
                f"the Weave server {self._http.url} does not answer: {error}",
                hint="is it up, and is WF_TRACE_SERVER_URL (or WANDB_BASE_URL) right?",
            ) from None
        except Refusal as error:
            raise CannotStart(
                f"the Weave server {self._http.url} refuses access to {self.project_id}: {error}",
                hint="check WANDB_API_KEY, --entity and --project" if error.status in (401, 403, 404) else "",
            ) from None

    def create_file(self, name: str, content: bytes) -> str:
        """Store a file, content-addressed; returns its digest.

        Raises:
            Rejected, Unreachable
        """
        return str(self._insist(lambda: self._http.post_file(self.project_id, name, content))["digest"])

    def create_object(self, object_id: str, value: dict[str, Any]) -> str:
        """Store an object, content-addressed; returns its digest.

        Raises:
            Rejected, Unreachable
        """
        body = {"obj": {"project_id": self.project_id, "object_id": object_id, "val": value}}
        return str(self._insist(lambda: self._http.post_json("/obj/create", body))["digest"])

    def existing(self, ids: Sequence[str]) -> dict[str, bool]:
        """Those of the calls that the server has: id -> whether it has the end, too.

        Raises:
            Rejected, Unreachable
        """
        found: dict[str, bool] = {}
        for at in range(0, len(ids), IDS_PER_QUERY):
            body = {
                "project_id": self.project_id,
                "filter": {"call_ids": list(ids[at : at + IDS_PER_QUERY])},
                "columns": ["id", "ended_at"],
            }
            lines = self._insist(lambda body=body: self._http.post_for_lines("/calls/stream_query", body))
            found |= {row["id"]: row.get("ended_at") is not None for row in lines}
        return found

    def store(self, calls: Sequence[Encoded], started: frozenset[str] = frozenset()) -> Outcome:
        """Store calls that the server does not have; of those in `started` it has the beginning.

        Raises:
            Unreachable: gave up; `outcome` of the error says what was stored before.
        """
        outcome = Outcome()
        try:
            self._store(list(calls), started, outcome)
        except Unreachable as error:
            error.outcome = outcome
            raise
        return outcome

    def _patience(self) -> Patience:
        return Patience(self._max_wait, self.stop)

    def _store(
        self, calls: list[Encoded], started: frozenset[str], outcome: Outcome, server_errors: int = SERVER_ERRORS
    ) -> None:
        patience = self._patience()
        while calls:
            try:
                self._post(calls, started)
            except Refusal as error:
                self._divide(calls, started, error, outcome)
                return
            except Transient as trouble:
                patience.wait(trouble)
                calls, started = self._missing(calls, outcome)
                if trouble.status == 500 and patience.failures >= server_errors:
                    self._divide(calls, started, trouble, outcome)
                    return
            else:
                outcome.stored += calls
                return

    def _divide(
        self, calls: list[Encoded], started: frozenset[str], error: Refusal | Transient, outcome: Outcome
    ) -> None:
        """Halves of a batch that the server does not take, or the verdict on a single call."""
        if error.status in (401, 403):
            raise Unreachable(f"the server refuses access: {error}")
        if error.status == 413 and len(calls) > 1:
            # the hosted service may have stored some of them one by one before it said no
            calls, started = self._missing(calls, outcome)
        # the pieces of a batch that brought 500 so often need not prove it as often again
        tries = 1 if error.status == 500 else SERVER_ERRORS
        if len(calls) == 1:
            outcome.refused.append((calls[0], str(error)))
        elif calls:
            half = len(calls) // 2
            self._store(calls[:half], started, outcome, tries)
            self._store(calls[half:], started, outcome, tries)

    def _missing(self, calls: list[Encoded], outcome: Outcome) -> tuple[list[Encoded], frozenset[str]]:
        """What is still to be sent, and of which of it the server has the start; the rest is noted as stored."""
        known = self.existing([call.id for call in calls])
        outcome.stored += [call for call in calls if known.get(call.id)]
        rest = [call for call in calls if not known.get(call.id)]
        return rest, frozenset(call.id for call in rest if call.id in known)

    def _post(self, calls: list[Encoded], started: frozenset[str]) -> None:
        whole = [call for call in calls if call.id not in started]
        ends = [call.end() for call in calls if call.id in started]
        if ends:
            self._post_batch("/call/upsert_batch", ends)
        if not whole:
            return
        if not self.legacy:
            try:
                self._post_batch(self._complete_path, [call.complete() for call in whole])
                self._complete_works = True
                return
            except Refusal as error:
                if error.status != 404 or self._complete_works:
                    raise
        self._post_batch("/call/upsert_batch", [part for call in whole for part in (call.start(), call.end())])
        self.legacy = True

    def _post_batch(self, path: str, items: list[bytes]) -> None:
        self._http.post(path, b'{"batch":[' + b",".join(items) + b"]}")

    def _insist(self, request: Any) -> Any:
        """Repeat a harmless request until it is answered."""
        patience = self._patience()
        while True:
            try:
                return request()
            except Transient as trouble:
                patience.wait(trouble)
            except Refusal as error:
                if error.status in (401, 403):
                    raise Unreachable(f"the server refuses access: {error}") from None
                raise Rejected(str(error)) from None
