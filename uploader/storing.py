"""One batch of calls -> each of them stored, or refused alone: whatever the server says on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..schemas.errors import Rejected
from .outcome import Outcome, Refused
from .payload import Encoded
from .transport import Patience, Refusal, Transient, Unreachable

__all__ = ["ELSEWHERE", "Sending", "Storing"]

# So many answers of 500 in a row are no hiccup but this batch: it is halved …
SERVER_ERRORS = 3
# … and a call alone that brings as many, while others arrive, is given up.
SERVER_ERRORS_ALONE = 4
# SQLite's words for an id that is taken. Its table has one key for the calls of all projects.
_TAKEN = "UNIQUE constraint failed: calls"
# The end of the reason that no repetition helps against.
ELSEWHERE = "; a second server can"


class Sending(Protocol):
    """What is needed of the client: one attempt, what the server has, and how long to try (`client.Client`)."""

    project_id: str
    lighten: Callable[[Encoded], Encoded | None] | None
    successes: int
    refused_for_good: bool

    @property
    def url(self) -> str: ...
    def patience(self) -> Patience: ...
    def post_calls(self, calls: Sequence[Encoded], started: frozenset[str]) -> None: ...
    def existing(self, ids: Sequence[str]) -> dict[str, str | None]: ...


class Storing:
    """Stores one batch; `outcome` is complete as far as it got, at any time."""

    def __init__(self, client: Sending, outcome: Outcome) -> None:
        self._client = client
        self._outcome = outcome
        self._lightened: set[str] = set()
        # how many requests of the client had succeeded when this batch first brought a 500
        self._before: int | None = None

    def run(self, calls: list[Encoded], started: frozenset[str], errors_allowed: int = SERVER_ERRORS) -> None:
        """Deal with all of them.

        Raises:
            Unreachable: gave up; what is in neither list of the outcome was not stored, as far as we know.
        """
        patience = self._client.patience()
        errors = 0
        while calls:
            try:
                self._client.post_calls(calls, started)
            except Refusal as error:
                self._divide(calls, started, error)
                return
            except Transient as trouble:
                patience.wait(trouble)
                sent = len(calls)
                calls, started = self._missing(calls)
                if _TAKEN in str(trouble) and len(calls) == sent and not started:
                    self._client.refused_for_good = True
                    raise Unreachable(
                        f"{self._client.url} keeps one call per id over all of its projects (SQLite storage), and"
                        f" another project has these: it cannot take a copy for {self._client.project_id}{ELSEWHERE}"
                    ) from None
                if trouble.status != 500:
                    continue
                errors += 1
                if self._before is None:
                    self._before = self._client.successes
                if len(calls) > 1 and errors >= errors_allowed:
                    self._divide(calls, started, trouble)
                    return
                if len(calls) == 1 and errors >= SERVER_ERRORS_ALONE and self._client.successes > self._before:
                    self._divide(calls, started, trouble)
                    return
            else:
                self._outcome.stored += calls
                return

    def _divide(self, calls: list[Encoded], started: frozenset[str], error: Refusal | Transient) -> None:
        """Halves of a batch that the server does not take, or the verdict on a single call."""
        if error.status == 413 and len(calls) > 1:
            # the hosted service may have stored some of them one by one before it said no
            calls, started = self._missing(calls)
        if len(calls) == 1:
            self._verdict(calls[0], started, error)
        elif calls:
            half = len(calls) // 2
            # the pieces of a batch that brought 500 so often need not prove it as often again
            errors_allowed = 1 if error.status == 500 else SERVER_ERRORS
            self.run(calls[:half], started, errors_allowed)
            self.run(calls[half:], started, errors_allowed)

    def _verdict(self, call: Encoded, started: frozenset[str], error: Refusal | Transient) -> None:
        words = str(error)
        lighten = self._client.lighten
        if lighten is not None and call.id not in self._lightened:
            self._lightened.add(call.id)
            try:
                lighter = lighten(call)
            except Rejected as rejection:
                lighter = None
                words += f"; its heavy fields were refused, too: {rejection}"
            if lighter is not None:
                stored = len(self._outcome.stored)
                self.run([lighter], started)
                self._outcome.lightened += len(self._outcome.stored) - stored
                return
        named = error.field if isinstance(error, Refusal) else ""
        self._outcome.refused.append(Refused(call, words, named or (_largest(call) if error.status == 413 else "")))

    def _missing(self, calls: list[Encoded]) -> tuple[list[Encoded], frozenset[str]]:
        """What is still to be sent, and of which of it the server has the start; the rest is noted as stored."""
        known = self._client.existing([call.id for call in calls])
        self._outcome.stored += [call for call in calls if known.get(call.id) is not None]
        rest = [call for call in calls if known.get(call.id) is None]
        return rest, frozenset(call.id for call in rest if call.id in known)


def _largest(call: Encoded) -> str:
    """What of a call that is too large is the most of it."""
    sizes = {"inputs": len(call.inputs), "output": len(call.output), "attributes": len(call.attributes)}
    name = max(sizes, key=lambda name: sizes[name])
    return f"{name} ({sizes[name] / 1e6:.1f} MB)"
