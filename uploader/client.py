"""Weave's HTTP protocol: what is asked of the server, and what happens when it does not answer as hoped.

answer                          what we do
2xx                             done
429, 5xx, no connection         wait (exponential, jittered, Retry-After) and try again, for `max_wait` seconds in all
… after calls were sent         ask first which of them arrived: a lost answer must not store a call twice
400, 409, 413, 422              halve the batch until the refused call stands alone; its neighbours arrive (`storing`)
500, again and again            the same: one call may be what the server cannot digest
404 on the v2 route             an older server: send starts and ends by /call/upsert_batch, and say so
401, 403, 404, any other        stop: nothing else will succeed
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from ..schemas.errors import CannotStart, NoAnswer, Rejected
from .outcome import Outcome
from .payload import Encoded
from .storing import Storing
from .target import Target
from .transport import Patience, Refusal, Transient, Unreachable

__all__ = ["Client", "Unreachable"]

# The server takes at most 1000 ids in a filter.
IDS_PER_QUERY = 500
# The server's name for: this project takes whole calls only.
COMPLETE_MODE = "CALLS_COMPLETE_MODE_REQUIRED"
# What a server refuses for what is in it. Every other refusal is about who asks, or where.
_ABOUT_THE_DATA = (400, 409, 413, 422)
# Of those, what is about who asks. What a proxy says for a moment, 404 or a page to log in, is not.
_ABOUT_THE_KEY = (401, 402, 403)

Lighten = Callable[[Encoded], "Encoded | None"]


class Client:
    """One Weave project. May be used by several threads.

    `max_wait`: seconds for which one request may fail before `Unreachable` is raised. `stop`: when set, ends every wait
    at once. `lighten`: gives a refused call again with its heavy fields moved out, or None when it has none. It is
    called once for each refused call, from any thread, and may raise what the methods here raise.
    """

    def __init__(
        self,
        target: Target,
        *,
        max_wait: float = 300.0,
        stop: threading.Event | None = None,
        lighten: Lighten | None = None,
    ) -> None:
        self.project_id = target.project_id
        self._target = target
        self._complete_path = f"/v2/{quote(target.entity, safe='')}/{quote(target.project, safe='')}/calls/complete"
        self._http = target.http
        self._max_wait = max_wait
        self.stop = stop or threading.Event()
        self.lighten = lighten
        self._complete_works = False
        self.legacy = False
        # requests with calls that the server took, of all threads: others of a time when one batch fails
        self.successes = 0
        # whether something was refused that this server would refuse this key and project again
        self.refused_for_good = False

    @property
    def url(self) -> str:
        """The trace server."""
        return self._http.url

    def check(self) -> None:
        """One cheap question, so that a wrong key or a host that is down is known before anything is read. A server
        that is there and asks for patience gets it.

        Raises:
            CannotStart: in words for the user.
        """
        patience = self.patience()
        while True:
            try:
                self._http.post_json("/calls/query_stats", {"project_id": self.project_id, "limit": 1})
            except Transient as trouble:
                try:
                    if trouble.reached:
                        patience.wait(trouble)
                        continue
                    words = str(trouble)
                except Unreachable as error:
                    words = str(error)
                raise NoAnswer(
                    f"the Weave server {self.url} does not answer: {words}",
                    hint="is it up, and is WF_TRACE_SERVER_URL (or WANDB_BASE_URL) right?",
                ) from None
            except Refusal as error:
                raise CannotStart(
                    f"the Weave server {self._refuses(error)}",
                    hint="check WANDB_API_KEY, --entity and --project" if error.status in (401, 403, 404) else "",
                ) from None
            return

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

    def feedback_ids(self, ids: Sequence[str]) -> set[str]:
        """Those of the feedback ids that the server has.

        Raises:
            Rejected, Unreachable
        """
        wanted = [{"$literal": key} for key in ids]
        query = {"$expr": {"$in": [{"$getField": "id"}, wanted]}}
        body = {"project_id": self.project_id, "fields": ["id"], "query": query, "limit": len(ids)}
        return {row["id"] for row in self._insist(lambda: self._http.post_json("/feedback/query", body))["result"]}

    def give_feedback(self, feedback: Sequence[dict[str, Any]]) -> None:
        """Store feedback that the server does not have; after a lost answer it is asked what arrived.

        Raises:
            Rejected, Unreachable
        """
        left = list(feedback)
        patience = self.patience()
        while left:
            try:
                self._http.post_json("/feedback/batch/create", {"batch": left})
                return
            except Transient as trouble:
                patience.wait(trouble)
                there = self.feedback_ids([item["id"] for item in left])
                left = [item for item in left if item["id"] not in there]
            except Refusal as error:
                raise Rejected(f"feedback: {error}") from None

    def existing(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Those of the calls that the server has: id -> when it ended; None when the server has only the start.

        Raises:
            Rejected, Unreachable
        """
        return {row["id"]: row.get("ended_at") for row in self.rows(ids, ("id", "ended_at"))}

    def rows(self, ids: Sequence[str], columns: Sequence[str] = ()) -> list[dict[str, Any]]:
        """The calls as the server holds them, those `columns` or all. One that it shows twice is there twice.

        Raises:
            Rejected, Unreachable
        """
        found: list[dict[str, Any]] = []
        for at in range(0, len(ids), IDS_PER_QUERY):
            body: dict[str, Any] = {
                "project_id": self.project_id,
                "filter": {"call_ids": list(ids[at : at + IDS_PER_QUERY])},
            }
            if columns:
                body["columns"] = list(columns)
            found += self._insist(partial(self._http.post_for_lines, "/calls/stream_query", body))
        return found

    def count(self, trace_ids: Sequence[str]) -> int:
        """How many calls the server has of these traces, of which there may be 500.

        Raises:
            Rejected, Unreachable
        """
        body = {"project_id": self.project_id, "filter": {"trace_ids": list(trace_ids)}}
        return int(self._insist(lambda: self._http.post_json("/calls/query_stats", body))["count"])

    def store(self, calls: Sequence[Encoded], started: frozenset[str] = frozenset()) -> Outcome:
        """Store calls that the server does not have; of those in `started` it has the beginning.

        Raises:
            Unreachable: gave up; `outcome` of the error says what was stored before.
        """
        outcome = Outcome()
        try:
            Storing(self, outcome).run(list(calls), started)
        except Unreachable as error:
            error.outcome = outcome
            raise
        return outcome

    def patience(self) -> Patience:
        """For the attempts of one request."""
        return Patience(self._max_wait, self.stop)

    def post_calls(self, calls: Sequence[Encoded], started: frozenset[str]) -> None:
        """One attempt to store calls.

        Raises:
            Transient
            Refusal: something about the calls.
            Unreachable: something about who asks, or where.
        """
        try:
            self._post_calls(calls, started)
        except Refusal as error:
            if error.code == COMPLETE_MODE:
                self.refused_for_good = True
                raise Unreachable(
                    f"{self.project_id} is kept in Weave's newer form, and {self.url} does not offer its route"
                    f" {self._complete_path}: an older server, or a proxy on the way, and nothing was lost: {error}"
                ) from None
            if error.status not in _ABOUT_THE_DATA:
                raise Unreachable(self._refuses(error)) from None
            raise
        self.successes += 1

    def _post_calls(self, calls: Sequence[Encoded], started: frozenset[str]) -> None:
        whole = [call for call in calls if call.id not in started]
        ends = [call.end() for call in calls if call.id in started]
        if ends:
            self._http.post_batch("/call/upsert_batch", ends)
        if not whole:
            return
        if not self.legacy:
            try:
                self._http.post_batch(self._complete_path, [call.complete() for call in whole])
                self._complete_works = True
                return
            except Refusal as error:
                if error.status != 404 or self._complete_works:
                    raise
        self._http.post_batch("/call/upsert_batch", [part for call in whole for part in (call.start(), call.end())])
        self.legacy = True

    def _insist(self, request: Callable[[], Any]) -> Any:
        """Repeat a harmless request until it is answered."""
        patience = self.patience()
        while True:
            try:
                return request()
            except Transient as trouble:
                patience.wait(trouble)
            except Refusal as error:
                if error.status not in _ABOUT_THE_DATA:
                    raise Unreachable(self._refuses(error)) from None
                raise Rejected(str(error)) from None

    def _refuses(self, error: Refusal) -> str:
        """Who refuses what to whom, in the server's words, and nothing secret."""
        self.refused_for_good = self.refused_for_good or error.status in _ABOUT_THE_KEY
        return f"{self.url} refuses access to {self.project_id} with {self._target.credential}: {error}"
